"""Which of the masks around a layer is that of its tokens, and what it says about them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.checks import transforms_active
from atomsep.core.layout import Layout
from atomsep.hooks.mask_hosts import true_on_padding
from atomsep.hooks.masks import Calls, Mask

_LENGTHS = ("_get_feat_extract_output_lengths", "_get_subsampling_output_length")
"""How Hugging Face's audio models compute the length after their convolutions."""


class MaskFit:
    """Fits the masks of a call to a layer's tokens.

    Args:
        around: the modules around the layer, outermost first.
    """

    def __init__(self, around: Sequence[nn.Module]) -> None:
        modules = reversed(around)
        self.formulas = [(m, name) for m in modules for name in _LENGTHS if hasattr(m, name)]
        self.found: dict[tuple[int, int], tuple[nn.Module, str, dict[str, Any]] | None] = {}

    def __call__(self, calls: Calls, layout: Layout, latent: Tensor) -> Tensor | None:
        """The mask as `(M, N)`, true on real tokens; None if no mask belongs to the tokens.

        The innermost mask that fits counts. If none does, the end of one that covers cached tokens
        as well, one that the model itself can resize, or what its attention uses.

        Raises:
            ValueError: there is a mask, but none for these tokens.
            TypeError: it is not a mask.
        """
        for mask in calls.masks:
            if mask.sure and not mask.derived and fits(mask, layout, latent):
                return layout.flatten_mask(real_tokens(mask), latent)
        masks = [mask for mask in calls.masks if mask.sure]
        given = [mask for mask in masks if not mask.derived]
        samples, *sizes = layout.token_shape(latent)
        tokens = math.prod(sizes)
        for mask in given:
            if mask.value.dim() != 2 or len(mask.value) != samples:
                continue
            if mask.cached and mask.value.shape[1] > tokens:
                last = real_tokens(mask)[:, -tokens:]
                return layout.flatten_mask(last, latent)
            resized = self._resized(mask, tokens)
            if resized is not None:
                return layout.flatten_mask(resized, latent)
        for mask in masks if given or not calls.own else ():
            value = mask.value
            if mask.derived and value.shape[:1] + value.shape[-1:] == (samples, tokens):
                seen = real_tokens(mask).reshape(samples, -1, tokens).any(1)
                return layout.flatten_mask(seen, latent)
        if given:
            raise ValueError(_misfit(given[0], layout, latent))
        return None

    def _resized(self, mask: Mask, tokens: int) -> Tensor | None:
        """A mask of the model's input for what its convolutions turn it into."""
        length = mask.value.shape[1]
        if (length, tokens) not in self.found:
            self.found[length, tokens] = self._find_formula(length, tokens)
        found = self.found[length, tokens]
        if found is None:
            return None
        module, name, options = found
        lengths: Tensor = getattr(module, name)(real_tokens(mask).sum(1), **options)
        return torch.arange(tokens, device=lengths.device) < lengths.unsqueeze(1)

    def _find_formula(
        self, length: int, tokens: int
    ) -> tuple[nn.Module, str, dict[str, Any]] | None:
        """The method of a module that turns a length into so many tokens, and how to call it."""
        for module, name in self.formulas:
            method = getattr(module, name)
            adapts = "add_adapter" in inspect.signature(method).parameters
            # With and without what follows the convolutions.
            for options in [{"add_adapter": False}, {}] if adapts else [{}]:
                found = method(torch.tensor([length]), **options)
                if isinstance(found, Tensor) and found.numel() == 1 and int(found) == tokens:
                    return module, name, options
        return None


def fits(mask: Mask, layout: Layout, latent: Tensor) -> bool:
    """Whether a mask has the shape of a layer's tokens.

    Raises:
        TypeError: it is not a tensor.
    """
    if not isinstance(mask.value, Tensor):
        raise TypeError(f"the mask is a {type(mask.value).__name__}, but must be a tensor")
    shape, expected = mask.value.shape, layout.token_shape(latent)
    if shape == expected:
        return True
    samples, tokens = expected[0], math.prod(expected[1:])
    return shape in ((samples, tokens), (samples, tokens - layout.skip))


def fits_length_first(masks: Sequence[Mask], shape: Sequence[int]) -> bool:
    """Whether a mask `(M, L)` shows that an output of this shape is `(L, M, C)`."""
    if len(shape) != 3 or shape[0] == shape[1]:
        return False
    shapes = [tuple(mask.value.shape) for mask in masks if mask.sure and not mask.derived]
    return (shape[1], shape[0]) in shapes and (shape[0], shape[1]) not in shapes


def real_tokens(mask: Mask) -> Tensor:
    """A mask as booleans, true on real tokens.

    Floating-point masks hold 1 on real tokens and 0 on padding, or, by PyTorch's convention for
    `key_padding_mask`, 0 and -inf. On the CPU, other numbers are an error. On a GPU the check would
    make every step wait, so they leave no real token, which makes the loss NaN.

    Raises:
        TypeError: the numbers are not those of a mask.
    """
    value, inverted = mask.value, true_on_padding(mask.argument)
    if value.dtype == torch.bool:
        return ~value if inverted else value
    if not value.is_floating_point():
        return value == 0 if inverted else value != 0
    if mask.derived:
        return value > -1  # what the attention adds: 0, or a large negative number on padding
    real, padding = (value == 0, value < -1000) if inverted else (value == 1, value == 0)
    valid = (real | padding).all()
    if torch.compiler.is_compiling() or value.device.type != "cpu" or transforms_active():
        return real & valid
    if not valid:
        allowed = "0 and -inf (on padding)" if inverted else "0 and 1 (on real tokens)"
        raise TypeError(
            f"the {mask.argument} is {value.dtype} and holds other numbers than {allowed}; pass a "
            f"boolean mask"
        )
    return real


def unpack(nested: Tensor, masks: Sequence[Mask]) -> tuple[Tensor, Tensor]:
    """A nested tensor with padding, `(M, L, C)`, and its mask, `(M, L)`.

    L is the length of the mask that the tensor was packed with, where it is known.
    """
    lengths = torch.tensor([len(sample) for sample in nested.unbind()], device=nested.device)
    samples, longest = len(lengths), int(lengths.max())
    packed = [m.value.shape for m in masks if m.sure and m.value.dim() == 2]
    longest = max([longest, *(shape[1] for shape in packed if shape[0] == samples)])
    padded = nested.to_padded_tensor(0.0, (samples, longest, nested.size(-1)))
    return padded, torch.arange(longest, device=nested.device) < lengths[:, None]


def _misfit(mask: Mask, layout: Layout, latent: Tensor) -> str:
    shape, output = tuple(mask.value.shape), tuple(latent.shape)
    message = (
        f"the {mask.argument} has shape {shape}, but the tokens of the layer, whose output is "
        f"{output}, have {layout.token_shape(latent)}"
    )
    if layout.axes != "length_first" and fits_length_first([mask], output):
        return f'{message}. It fits layout="length_first", for (L, M, C)'
    return (
        f"{message}. Pass mask=, a function (args, kwargs) -> mask of the model's arguments that "
        f"gives the mask of these tokens"
    )
