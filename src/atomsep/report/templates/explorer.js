"use strict";
// The explorer: one sample at a time, its tokens coloured by charge. Everything from the data
// enters the page as text (textContent), never as HTML.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("samples").textContent);

const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

// Charges

const decode = (text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new Int16Array(bytes.buffer); // little-endian, as every browser's machine
};

const rgb = (charge) => {
  const after = data.stops.findIndex(([place]) => place >= charge);
  if (after <= 0) return data.stops[0][1];
  const [[low, from], [high, to]] = [data.stops[after - 1], data.stops[after]];
  const share = (charge - low) / (high - low);
  return from.map((byte, channel) => Math.round(byte + share * (to[channel] - byte)));
};

const css = (charge) => `rgb(${rgb(charge).join(" ")})`;

const inkOn = (charge) => {
  const [red, green, blue] = rgb(charge).map((byte) => (byte / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#000" : "#fff";
};

const signed = (charge) => {
  const digits = Math.abs(charge).toFixed(3);
  return Number(digits) === 0 ? digits : (charge < 0 ? "−" : "+") + digits;
};

// What is shown: a run, one of its samples, its charges, a token (or none), a threshold

const now = { run: null, sample: null, charges: null, token: -1, threshold: 0 };
const hidden = (charge) => Math.abs(charge) < now.threshold;

const chooseRun = (place) => {
  now.run = data.runs[place];
  now.run.decoded ??= decode(now.run.charges);
  $("list").replaceChildren(...now.run.samples.map(listEntry));
  chooseSample(0);
};

const wrong = (sample) => sample.prediction !== null && sample.prediction !== sample.label;

const listEntry = (sample, place) => {
  const text = sample.tokens?.map(([before, token, special]) => (special ? "" : before + token));
  const shown = sample.image
    ? make("img", { src: sample.image, alt: "", loading: "lazy" })
    : make("span", { textContent: text.join("") });
  const button = make("button", { type: "button", tabIndex: -1 }, shown);
  button.ariaLabel = `Sample ${place + 1}: ${sampleTitle(sample)}`;
  button.title = sampleTitle(sample);
  button.classList.toggle("wrong", wrong(sample));
  button.addEventListener("click", () => chooseSample(place));
  return make("li", {}, button);
};

const sampleTitle = (sample) => {
  if (sample.label === null) return "generated";
  if (sample.prediction === null) return sample.label;
  return wrong(sample)
    ? `${sample.label}, predicted as ${sample.prediction}`
    : `${sample.label}, predicted correctly`;
};

const chooseSample = (place) => {
  const [height, width] = now.run.grid;
  const all = height * width;
  now.sample = now.run.samples[place];
  const count = now.sample.tokens?.length ?? all;
  now.charges = Float32Array.from(
    now.run.decoded.subarray(place * all, place * all + count),
    (number) => number / data.steps,
  );
  $("list").querySelectorAll("button").forEach((button, each) => {
    button.tabIndex = each === place ? 0 : -1;
    button.toggleAttribute("aria-current", each === place);
  });
  $("sample-title").textContent = `Sample ${place + 1}: ${sampleTitle(now.sample)}`;
  view = now.sample.image ? imageView() : tokenView();
  point(-1);
  hide();
};

const point = (token) => {
  now.token = token;
  view.mark(token);
  $("readout").textContent =
    token < 0
      ? "Point at a token to read its charge."
      : `${view.name(token)}: charge ${signed(now.charges[token])}` +
        (hidden(now.charges[token]) ? " (hidden)" : "");
};

const hide = () => {
  $("threshold-value").textContent = now.threshold.toFixed(2);
  const left = now.charges.filter((charge) => !hidden(charge)).length;
  $("shown").textContent = `${left} of ${now.charges.length} tokens shown`;
  view.draw();
};

// A row of tokens: a sentence, or the sub-units of a mixture

let view = null;

const tokenView = () => {
  const tokens = now.sample.tokens.map(([before, text, special], place) => {
    const charge = now.charges[place];
    const token = make("span", { className: "token", textContent: text, tabIndex: -1 });
    token.classList.toggle("special", special);
    token.role = "option";
    token.ariaLabel = `${text}, charge ${signed(charge)}`;
    token.style.backgroundColor = css(charge);
    token.style.color = inkOn(charge);
    token.addEventListener("pointerenter", () => point(place));
    token.addEventListener("focus", () => point(place));
    return token;
  });
  tokens[0].tabIndex = 0;
  const line = make("div", { className: "tokens", role: "listbox", ariaLabel: "Tokens" });
  now.sample.tokens.forEach(([before], place) => line.append(before, tokens[place]));
  line.addEventListener("keydown", (event) => {
    const next = moved(event.key, tokens.indexOf(document.activeElement), tokens.length, 1);
    if (next === null) return;
    event.preventDefault();
    tokens[next].focus();
  });
  $("view").replaceChildren(line);
  return {
    name: (place) => `“${now.sample.tokens[place][1]}”`,
    mark: (place) => tokens.forEach((token, each) => {
      token.classList.toggle("pointed", each === place);
      token.ariaSelected = each === place;
      if (place >= 0) token.tabIndex = each === place ? 0 : -1;
    }),
    draw: () => tokens.forEach((token, place) => {
      token.classList.toggle("hidden", hidden(now.charges[place]));
    }),
  };
};

// An image and the map of its charges, with the same tokens hidden in both

const imageView = () => {
  const [rows, columns] = now.run.grid;
  const picture = make("img", { src: now.sample.image, alt: "" });
  const panels = ["input", "charges"].map((name) => {
    const canvas = make("canvas", { className: name, tabIndex: 0 });
    canvas.role = "application";
    canvas.ariaLabel = `${name === "input" ? "The image" : "Its charges"}: arrow keys move between tokens`;
    const frame = make("div", { className: "frame" });
    const panel = make("div", { className: "panel" }, canvas, frame);
    const follow = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = (offset, size, count) =>
        Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
      const row = at(event.clientY - box.top, box.height, rows);
      const column = at(event.clientX - box.left, box.width, columns);
      point(row * columns + column);
    };
    canvas.addEventListener("pointermove", follow);
    canvas.addEventListener("pointerdown", follow);
    canvas.addEventListener("focus", () => now.token < 0 && point(0));
    canvas.addEventListener("keydown", (event) => {
      const next = moved(event.key, now.token, rows * columns, columns);
      if (next === null) return;
      event.preventDefault();
      point(next);
    });
    const caption = make("figcaption", { textContent: name === "input" ? "image" : "charges" });
    return { canvas, frame, figure: make("figure", {}, panel, caption) };
  });
  $("view").replaceChildren(...panels.map(({ figure }) => figure));

  const draw = () => {
    if (!picture.naturalWidth) return; // not decoded yet
    // Enough pixels for every token; a pixel belongs to the token that holds its centre.
    const fine = Math.ceil(Math.max(1, columns / picture.naturalWidth, rows / picture.naturalHeight));
    const [width, height] = [picture.naturalWidth * fine, picture.naturalHeight * fine];
    const edge = (place, size, count) => Math.ceil((place * size) / count - 0.5);
    const [input, map] = panels.map(({ canvas }) => {
      [canvas.width, canvas.height] = [width, height];
      return canvas.getContext("2d");
    });
    input.imageSmoothingEnabled = false;
    input.drawImage(picture, 0, 0, width, height);
    now.charges.forEach((charge, place) => {
      const [row, column] = [Math.floor(place / columns), place % columns];
      const [left, right] = [edge(column, width, columns), edge(column + 1, width, columns)];
      const [top, bottom] = [edge(row, height, rows), edge(row + 1, height, rows)];
      const box = [left, top, right - left, bottom - top];
      if (hidden(charge)) return input.clearRect(...box);
      map.fillStyle = css(charge);
      map.fillRect(...box);
    });
  };
  const here = now.sample;
  picture.addEventListener("load", () => now.sample === here && draw());
  return {
    name: (place) => `Row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`,
    mark: (place) => panels.forEach(({ frame }) => {
      frame.hidden = place < 0;
      frame.style.left = `${((place % columns) / columns) * 100}%`;
      frame.style.top = `${(Math.floor(place / columns) / rows) * 100}%`;
      frame.style.width = `${100 / columns}%`;
      frame.style.height = `${100 / rows}%`;
    }),
    draw,
  };
};

// Keys: where an arrow leads among `count` places in rows of `width`; null for another key

const moved = (key, from, count, width) => {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in steps)) return null;
  const to = from + steps[key];
  return to < 0 || to >= count ? Math.max(0, from) : to;
};

$("list")?.addEventListener("keydown", (event) => {
  const buttons = [...$("list").querySelectorAll("button")];
  const next = moved(event.key, buttons.indexOf(document.activeElement), buttons.length, 1);
  if (next === null) return;
  event.preventDefault();
  chooseSample(next);
  buttons[next].focus();
});

if (data.runs.length) {
  data.runs.forEach((run, place) => $("run").append(make("option", { value: place, textContent: run.title })));
  $("run-label").hidden = data.runs.length < 2;
  $("run").addEventListener("change", () => chooseRun(Number($("run").value)));
  $("threshold").addEventListener("input", () => {
    now.threshold = Number($("threshold").value);
    hide();
  });
  const colours = data.stops.map(([place]) => `${css(place)} ${(place + 1) * 50}%`);
  $("bar").style.background = `linear-gradient(to right, ${colours.join(", ")})`;
  chooseRun(0);
}
