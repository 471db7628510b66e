"""Whether a map is faithful: what a prediction does without the tokens, and what the truth says.

A map is one score per token, `(M, h, w)`; the larger the score, the more important the token is
said to be. Each token stands for the pixels of its block, as in `to_pixels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

STEPS = 16
"""Steps from no token to all of them."""


class Curves(NamedTuple):
    """What predictions do while tokens are removed or brought back, the highest scores first.

    Attributes:
        shares: share of the tokens that are removed, or brought back, `(S,)`, from 0 to 1.
        deletion: prediction without these tokens, `(M, S)`; it falls fast for a faithful map.
        insertion: prediction with these tokens alone, `(M, S)`; it rises fast for a faithful map.
    """

    shares: Tensor
    deletion: Tensor
    insertion: Tensor


def rank_tokens(scores: Tensor) -> Tensor:
    """The place of each token among those of its sample, 0 for the highest score.

    Equal scores are ordered at random, always in the same way: the order of the tokens in the image
    would prefer its top.

    Args:
        scores: `(M, ...)`.

    Returns:
        Integers of the same shape.

    Example:
        >>> rank_tokens(torch.tensor([[0.1, 0.9, -0.5]]))
        tensor([[1, 0, 2]])
    """
    flat = scores.flatten(1)
    shuffled = torch.randperm(flat.shape[1], generator=torch.Generator().manual_seed(0))
    shuffled = shuffled.to(flat.device)
    order = shuffled[flat[:, shuffled].argsort(dim=1, descending=True, stable=True)]
    return order.argsort(dim=1).view_as(scores)


@torch.no_grad()
def deletion_and_insertion(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    blank: Tensor,
    scores: Tensor,
    steps: int = STEPS,
) -> Curves:
    r"""Remove the tokens with the highest scores first, and bring them back in the same order.

    As in [RISE](https://arxiv.org/abs/1806.07421), with tokens in place of pixels, so that maps
    from layers of any resolution are compared at the same resolution.

    Args:
        predict: from images to what is predicted, `(M, C, H, W)` to `(M,)`: the probability of a
            class, say.
        images: `(M, C, H, W)`.
        blank: what a removed token shows, of a shape that fits: 0, or the images blurred.
        scores: `(M, h, w)`.
        steps: number of steps. At step s, `round(s * h * w / steps)` tokens are removed.

    Raises:
        ValueError: the scores are not maps of the images, or there are fewer tokens than steps.

    Example:
        >>> images = torch.tensor([[[[3.0, 1.0]]]])
        >>> found = deletion_and_insertion(
        ...     lambda x: x.sum((1, 2, 3)), images, torch.zeros(1), torch.tensor([[[0.2, -0.1]]]), 2
        ... )
        >>> found.deletion.tolist(), found.insertion.tolist()
        ([[4.0, 1.0, 0.0]], [[0.0, 3.0, 4.0]])
    """
    if scores.ndim != 3 or len(scores) != len(images):
        raise ValueError(
            f"the scores of {len(images)} images must have shape ({len(images)}, h, w), not "
            f"{tuple(scores.shape)}"
        )
    tokens = scores[0].numel()
    if not 1 <= steps <= tokens:
        raise ValueError(f"steps={steps} must be between 1 and the number of tokens, {tokens}")
    ranks = rank_tokens(scores)[:, None]
    counts = [round(step * tokens / steps) for step in range(steps + 1)]
    deletion, insertion = [], []
    for count in counts:
        mask = interpolate((ranks < count).float(), images.shape[-2:], mode="nearest-exact") > 0
        deletion.append(predict(torch.where(mask, blank, images)))
        insertion.append(predict(torch.where(mask, images, blank)))
    shares = torch.tensor(counts, device=images.device) / tokens
    return Curves(shares, torch.stack(deletion, 1), torch.stack(insertion, 1))


def area(shares: Tensor, curves: Tensor) -> Tensor:
    """The area under each curve by the trapezoid rule: `(S,)` and `(M, S)` to `(M,)`.

    Example:
        >>> area(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[4.0, 1.0, 0.0]]))
        tensor([1.5000])
    """
    return torch.trapezoid(curves, shares.to(curves), dim=1)


def block_sums(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """The sum over the pixels of each token: `(M, H, W)` to `(M, h, w)`.

    Example:
        >>> block_sums(torch.tensor([[[1.0, 2.0, 4.0]]]), (1, 2))
        tensor([[[1., 6.]]])
    """
    rows, columns = (
        ((torch.arange(pixel) + 0.5) * token / pixel).long()
        == torch.arange(token)[:, None]  # one row per token: which pixels are its own
        for pixel, token in zip(pixels.shape[-2:], grid, strict=True)
    )
    return rows.to(pixels) @ pixels @ columns.to(pixels).mT


def auc(scores: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """How well scores tell the pixels of an object from the others; 0.5 by chance.

    The chance that a pixel inside has a larger score than one outside, where equal scores count
    one half: the area under the ROC curve.

    Args:
        scores: `(M, h, w)`.
        inside: number of each token's pixels that show the object, `(M, h, w)`.
        outside: number of those that do not; border pixels may be in neither.

    Returns:
        `(M,)`, NaN for images that lack either kind.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.1, 0.1]]])
        >>> auc(scores, torch.tensor([[[4.0, 1.0, 0.0]]]), torch.tensor([[[0.0, 3.0, 4.0]]]))
        tensor([0.9000])
    """
    scores, inside, outside = (each.flatten(1) for each in (scores, inside, outside))
    scores = scores.contiguous()
    order = scores.sort(1)
    below = pad(outside.gather(1, order.indices).cumsum(1), (1, 0))
    first, last = (
        below.gather(1, torch.searchsorted(order.values, scores, right=right))
        for right in (False, True)
    )
    won = (inside * (first + last) / 2).sum(1)
    return won / (inside.sum(1) * outside.sum(1))


def iou(scores: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """Intersection over union of an object and the tokens with the highest scores.

    As many tokens are taken as cover the object's size, so that no map gains from a threshold that
    suits it.

    Args:
        scores: `(M, h, w)`.
        inside: number of each token's pixels that show the object, `(M, h, w)`.
        outside: number of those that do not.

    Returns:
        `(M,)`, NaN for images without the object.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.1, 0.0]]])
        >>> iou(scores, torch.tensor([[[4.0, 1.0, 0.0]]]), torch.tensor([[[0.0, 3.0, 4.0]]]))
        tensor([0.6250])
    """
    order = rank_tokens(scores).flatten(1).argsort(1)
    inside, outside = (each.flatten(1).gather(1, order) for each in (inside, outside))
    size, pixels = inside.sum(1, keepdim=True), inside + outside
    taken = (pixels.cumsum(1) - pixels < size).to(inside)
    return (inside * taken).sum(1) / (size[:, 0] + (outside * taken).sum(1))
