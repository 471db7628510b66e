"""A convolution whose gradient can be differentiated again at the usual speed.

PyTorch computes the gradient of a convolution's input gradient by the weights as a convolution with
a kernel as large as the image, which takes several times as long as all the rest of the step.
It is an ordinary gradient by the weights of another convolution (Karras et al., 2020, do the same).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight


class FirstPass:
    """Whether the gradient that is computed is the first one, by the images alone."""

    active = True


class Layer(Protocol):
    """A convolution without bias, of one group and dilation 1."""

    stride: Any
    padding: Any

    @property
    def weight(self) -> Tensor:
        """`(outputs, inputs, height, width)`."""


def convolve(layer: Layer, images: Tensor, first: FirstPass) -> Tensor:
    """What `layer(images)` returns.

    Args:
        layer: the convolution.
        images: `(M, C, H, W)`.
        first: while it is active, no gradient by the weights is computed.
    """
    weight, kind = layer.weight, images.device.type
    if torch.is_autocast_enabled(kind):
        images, weight = (x.to(torch.get_autocast_dtype(kind)) for x in (images, weight))
    with torch.autocast(kind, enabled=False):
        output: Tensor = _Convolution.apply(images, weight, (layer.stride, layer.padding), first)
    return output


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, how: Any, first: FirstPass) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.how, ctx.first = how, first
        return nn.functional.conv2d(images, weight, None, *how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        images, weight = ctx.saved_tensors
        by_images = by_weight = None
        if ctx.needs_input_grad[0]:
            by_images = _ByImages.apply(grad, weight, images.shape, ctx.how)
        if ctx.needs_input_grad[1] and not ctx.first.active:
            by_weight = _by_weight(grad, images, weight, ctx.how)
        return by_images, by_weight, None, None


class _ByImages(torch.autograd.Function):
    """The gradient of a convolution by its images."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, shape: torch.Size, how: Any) -> Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.how = how
        by_images: Tensor = conv2d_input(shape, weight, grad, *how)
        return by_images

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Any:
        grad, weight = ctx.saved_tensors
        by_grad = nn.functional.conv2d(arriving, weight, None, *ctx.how)
        return by_grad, _by_weight(grad, arriving, weight, ctx.how), None, None


def _by_weight(grad: Tensor, images: Tensor, weight: Tensor, how: Any) -> Tensor:
    by_weight: Tensor = conv2d_weight(images, weight.shape, grad, *how)
    return by_weight
