"use strict";
// A method's curves stand out while its entry in the legend is pointed at or focused

document.querySelectorAll(".legend button").forEach((button) => {
  const curves = button.closest("section").querySelectorAll(".curve");
  const light = (on) => curves.forEach((curve) => {
    curve.classList.toggle("faint", on && curve.dataset.row !== button.dataset.row);
  });
  for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => light(true));
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => light(false));
});
