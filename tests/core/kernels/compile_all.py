"""Compile every kernel for a GPU that need not be there: `python compile_all.py`.

The interpreter takes programs that the compiler refuses, so the tests run this file on its own.
"""

from __future__ import annotations

import itertools
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from atomsep.core.kernels import backward, forward_kernels, pairs

ORIGIN = ("stretches", "shifts")
POINTERS = {
    "source": "*bf16", "scores": "*bf16", "mask": "*i1", "copy": "*bf16", "charge": "*bf16",
    "arriving": "*bf16", "written": "*bf16", "grad_scores": "*bf16", "arrivals": "*i32",
    **dict.fromkeys(("count", "scratch", "table", "mean_direction", "grad_table"), "*fp32"),
    **dict.fromkeys(("losses", "slopes", "scale", "lightness"), "*fp32"), "order": "*i16",
    **dict.fromkeys(("parts", "loss", "numbers", "present", *ORIGIN), "*fp32"), "absent": "*i1",
    **dict.fromkeys(("weight", "softening", "pair_weight", "target"), "fp32"),
    **dict.fromkeys(("neutrality", "occupancy"), "fp32"),
}  # fmt: skip


def compile_kernel(kernel: Any, warps: int, **constants: Any) -> None:
    signature, fixed = {}, {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name], fixed[name] = "constexpr", constants[name]
        else:
            signature[name] = POINTERS.get(name, "i32")
    source = ASTSource(kernel, signature, constexprs=fixed)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


NONE = dict.fromkeys(("scores", "mask", "copy", "arriving", "scale", "grad_scores", *ORIGIN))
ALIKE = dict.fromkeys(
    f"{a}_{b}" for a in ("written", "arriving") for b in ("sample", "token", "feature")
)
KINDS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "everything given": (1, {}, {"FEATURE": 1 << 30, "FULL": True, "NORM": 2, "ALIGN": 2}),
    "nothing given": (1, {**NONE, **ALIKE}, {"FEATURE": 3, "FULL": False, "NORM": 1, "ALIGN": 1}),
    "as usual": (
        4, {**{k: None for k in NONE if k != "arriving"}, **ALIKE},
        {"FEATURE": 0, "FULL": True, "NORM": 2, "ALIGN": 4},
    ),
    "made by a batch norm": (
        1, {**{k: None for k in NONE if k not in ("arriving", *ORIGIN)}, **ALIKE},
        {"FEATURE": 0, "FULL": True, "NORM": 2, "ALIGN": 4},
    ),
}  # fmt: skip
"""Warps, arguments that are None, and constants."""


def main() -> None:
    done = 0
    for (warps, missing, kind), rows, whole in itertools.product(
        KINDS.values(), (True, False), (True, False)
    ):
        tile = {"ROWS": rows, "TOKENS": 4 if rows else 32, "FEATURES": 64 if whole else 32, **kind}
        second = {**tile, "WHOLE": whole, "STEPS": 8, "KEPT": 8, "STAGES": 3 if rows else 1}
        lists = () if rows and whole else ("lightness", "order") if rows else ("order",)
        kernels = [(forward_kernels.radius_kernel, second), (backward.backward_kernel, second)]
        if whole:
            first = {k: v for k, v in tile.items() if k != "NORM"}
            kernels += [
                (forward_kernels.nucleus_kernel, first),
                (forward_kernels.atoms_kernel, tile),
            ]
        for kernel, constants in kernels:
            names = kernel.arg_names
            absent = {k: None for k in (*missing, *lists) if k in names}
            compile_kernel(kernel, warps, **constants, **absent)
            done += 1
            if (
                "lightness" in names
                and "lightness" not in absent
                and not (rows and "order" in names)
            ):
                compile_kernel(kernel, warps, **constants, **absent, lightness=None)
                done += 1
    alone: dict[str, None] = {"absent": None, "present": None}
    parts: tuple[dict[str, None], ...] = (alone, {**alone, "slopes": None}, {})
    for norm, missing in itertools.product((1, 2), parts):
        blocks = {"NORM": norm, "MEAN": True, "OWN": 4, "OTHERS": 32, "CHUNK": 32}
        compile_kernel(pairs.pairs_kernel, 4, **blocks, **missing)
        done += 1
    for missing in ({}, {"parts": None, "slopes": None}):
        compile_kernel(pairs.gather_kernel, 4, GATHERED=512, **missing)
        done += 1
    print(f"{done} kernels compiled")


if __name__ == "__main__":
    main()
