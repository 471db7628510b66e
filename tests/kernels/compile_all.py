"""Compile every kernel for a GPU that need not be there: `python compile_all.py`.

The interpreter takes programs that the compiler refuses, so the tests run this file on its own.
"""

from __future__ import annotations

import itertools
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from atomsep.kernels import backward, looks, pairs

POINTERS = {
    "source": "*bf16", "scores": "*bf16", "mask": "*i1", "copy": "*bf16", "charge": "*bf16",
    "arriving": "*bf16", "written": "*bf16", "grad_scores": "*bf16", "arrivals": "*i32",
    **dict.fromkeys(("count", "scratch", "table", "mean_direction", "grad_table"), "*fp32"),
    **dict.fromkeys(("losses", "slopes", "grad", "scale", "lightness"), "*fp32"), "order": "*i16",
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


def main() -> None:
    none = dict.fromkeys(("scores", "mask", "copy", "arriving", "scale", "grad_scores"))
    strides = [f"{a}_{b}" for a in ("written", "arriving") for b in ("sample", "token", "feature")]
    alike = dict.fromkeys(strides)
    done = 0
    for rows, whole, given in itertools.product((True, False), (True, False), (True, False)):
        optional = {} if given else none
        tile = {"ROWS": rows, "ALIGN": 8, "TOKENS": 4 if rows else 32, "STAGES": 2}
        tile |= {"FEATURE": 0, "FULL": given}
        width = 64 if whole else 32
        shape = {**tile, "FEATURES": width, "KEPT": 8}
        norm = 2 if given else 1
        if whole:
            first = {k: v for k, v in shape.items() if k != "KEPT"}
            both = {**first, "NORM": norm}
            missing = {k: v for k, v in optional.items() if k in ("scores", "mask", "copy")}
            lists = {} if rows else {"lightness": None}
            compile_kernel(looks.nucleus_kernel, 1, **first, **missing, **lists)
            compile_kernel(looks.atoms_kernel, 1, **both, **missing)
        second = {**shape, "NORM": norm, "WHOLE": whole, "STEPS": 8}
        skip = {k: v for k, v in optional.items() if k in ("scores", "mask")}
        lists = {} if rows and whole else {"lightness": None, "order": None}
        compile_kernel(looks.radius_kernel, 1, **second, **skip, **lists)
        missing = {k: v for k, v in optional.items() if k != "copy"}
        compile_kernel(backward.backward_kernel, 1, **second, **missing, **({} if given else alike))
        done += 2 + 2 * whole
    parts = ({"grad": None}, {"grad": None, "slopes": None}, {"losses": None})
    for norm, missing in itertools.product((1, 2), parts):
        blocks = {"NORM": norm, "MEAN": True, "OWN": 4, "OTHERS": 32, "CHUNK": 32, "STAGES": 1}
        compile_kernel(pairs.pairs_kernel, 4, **blocks, **missing)
        done += 1
    print(f"{done} kernels compiled")


if __name__ == "__main__":
    main()
