"""Types of the arguments, and checks that reject invalid ones with a readable message."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

ScoreMap = int | Callable[[Tensor], Tensor]
"""Where the raw score comes from: a feature index, or a callable `(M, N, h) -> (M, N)`."""

PositionMap = Callable[[Tensor], Tensor] | None
"""Where the position comes from: a callable `(M, N, h) -> (M, N, h')`, or None for all features
except the score."""

Norm = Literal[1, 2]
"""The norm of all distances: 1 or 2."""

Scale = Literal["mean", "sum"]
"""Whether sums over tokens are divided by the token count ("mean") or not ("sum")."""


def transforms_active() -> bool:
    """Whether a transform of `torch.func` or forward-mode AD is under way."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def in_backward() -> bool:
    """Whether a backward pass is running: a forward inside it is a checkpoint's recomputation."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def count_tokens(latent: Tensor, mask: Tensor | None) -> Tensor:
    """Number of real tokens per sample, `(M,)`, in float32, or float64 for a float64 latent.

    On the CPU, a sample without a real token is an error. On a GPU the check would make every
    step wait, so a count of 0 makes the loss NaN instead, and `attach` warns about that.
    """
    samples, tokens, _ = latent.shape
    return count_real(samples, tokens, mask, latent)


def count_real(samples: int, tokens: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """The same for a tensor in any layout that holds `samples` times `tokens` tokens."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    if mask is None:
        if torch.compiler.is_compiling() or type(like) not in (Tensor, torch.nn.Parameter):
            return torch.full((samples,), tokens, dtype=dtype, device=like.device)
        return _full_counts(samples, tokens, dtype, like.device)
    check_mask(mask, (samples, tokens))
    count = mask.sum(1, dtype=dtype)
    if torch.compiler.is_compiling() or mask.device.type != "cpu" or transforms_active():
        return count
    if bool((count == 0).any()):
        empty = (count == 0).nonzero().flatten().tolist()
        raise ValueError(
            f"the mask leaves no token in sample {', '.join(map(str, empty[:5]))}; "
            f"drop such samples from the batch"
        )
    return count


_counts: dict[tuple[object, ...], Tensor] = {}


def _full_counts(samples: int, tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A constant vector, cached because filling one takes a kernel launch.

    There is one entry per stream, so that the fill always precedes the use. Entries are never
    evicted, since a captured graph may read them. Vectors filled during a capture are not cached:
    their memory belongs to the graph.
    """
    stream = 0
    if device.type == "cuda":
        stream = torch._C._cuda_getCurrentRawStream(device.index)
    key = samples, tokens, dtype, device, stream
    count = _counts.get(key)
    if count is None:
        count = torch.full((samples,), tokens, dtype=dtype, device=device)
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if len(_counts) < 1024 and not capturing and not count.is_inference():
            _counts[key] = count
    return count


def check_latent(latent: Tensor, charge: ScoreMap, position: PositionMap) -> None:
    """Reject a latent that cannot be read as atoms."""
    if latent.dim() != 3:
        _check_kind(latent)
        advice = {
            2: "one vector per sample has no tokens: take a latent from before pooling",
            4: "pass latent.flatten(2).transpose(1, 2) for (M, C, H, W), or latent.flatten(1, 2) "
            "for (M, H, W, C)",
        }.get(latent.dim(), "reshape it to one row of features per token")
        raise ValueError(
            f"the latent must be (M, N, h), but has shape {tuple(latent.shape)}; {advice}"
        )
    samples, tokens, features = latent.shape
    check_tokens(latent, samples, tokens, features, charge, position)


def _check_kind(source: Tensor) -> None:
    if not source.is_floating_point():
        raise TypeError(
            f"the latent must be floating point, but is {source.dtype}; "
            f"attach to a layer that returns real features"
        )


def check_tokens(
    source: Tensor,
    samples: int,
    tokens: int,
    features: int,
    charge: ScoreMap,
    position: PositionMap,
) -> None:
    """The same for a tensor in any layout, given its sizes."""
    _check_kind(source)
    if samples == 0 or tokens == 0:
        raise ValueError(
            f"the latent has no {'samples' if samples == 0 else 'tokens'}: shape "
            f"{(samples, tokens, features)}; skip empty batches"
        )
    if isinstance(charge, int):
        if not -features <= charge < features:
            raise ValueError(
                f"charge={charge} is out of range for a latent with {features} features"
            )
        if position is None and features < 2:
            raise ValueError(
                "the latent has only one feature, and the charge uses it: nothing is left for the "
                "position; pass your own maps as charge= and position="
            )


def as_boolean(mask: Tensor | None) -> Tensor | None:
    """A mask of 0 and 1 as booleans, true on real tokens.

    On the CPU, other floating-point numbers are an error. On a GPU the check would make every step
    wait, so they leave no real token, which makes the loss NaN.

    Raises:
        TypeError: the numbers are not those of a mask.

    Example:
        >>> as_boolean(torch.tensor([1.0, 0.0]))
        tensor([ True, False])
    """
    if mask is None or mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        return mask != 0
    real = mask == 1
    valid = (real | (mask == 0)).all()
    if torch.compiler.is_compiling() or mask.device.type != "cpu" or transforms_active():
        return real & valid
    if not valid:
        raise TypeError(
            f"the mask is {mask.dtype} and holds other numbers than 0 and 1 (on real tokens); pass "
            f"a boolean mask, for one with large negative numbers on padding: mask > -1"
        )
    return real


def check_mask(mask: Tensor, shape: tuple[int, ...] | torch.Size) -> None:
    """Reject a mask that is not boolean or does not have the shape of the tokens."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"the mask must be boolean, True on real tokens, but is {mask.dtype}; for one that "
            f"holds 1 on real tokens and 0 on padding, pass mask == 1"
        )
    if mask.shape != shape:
        raise ValueError(
            f"the mask has shape {tuple(mask.shape)}, but the tokens have {tuple(shape)}"
        )


def whole(name: str, value: Any, kind: str) -> int:
    """A whole number, NumPy's included, as one of Python.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be {kind}, not {value!r}")
    return operator.index(value)


def check_maps(charge: Any, position: Any) -> ScoreMap:
    """The charge, as a number of Python if it is a feature.

    Raises:
        TypeError: charge or position is nothing that could be read.

    Example:
        >>> check_maps(True, None)
        Traceback (most recent call last):
        TypeError: charge must be a feature index (an int) or a callable, not True
    """
    if not (position is None or callable(position)):
        raise TypeError(f"position must be None or a callable, not {position!r}")
    if callable(charge):
        return charge  # type: ignore[no-any-return]
    return whole("charge", charge, "a feature index (an int) or a callable")


def check_norm(norm: int) -> None:
    """Reject norms other than 1 and 2."""
    if norm not in (1, 2):
        raise ValueError(f"norm must be 1 or 2, not {norm!r}")


def check_scale(scale: str) -> None:
    """Reject scales other than "mean" and "sum"."""
    if scale not in ("mean", "sum"):
        raise ValueError(f'scale must be "mean" or "sum", not {scale!r}')


def check_softening(softening: float) -> None:
    """Reject negative and infinite lengths."""
    if not 0 <= softening < float("inf"):
        raise ValueError(f"softening must be a finite length of at least 0, not {softening!r}")
