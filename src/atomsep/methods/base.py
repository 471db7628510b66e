"""The interface that atom modeling and its baselines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from atomsep.checks import check_latent, count_tokens
from atomsep.core.layout import Axes
from atomsep.functional import widen
from atomsep.hooks.arguments import check_weight
from atomsep.hooks.mask_hosts import MaskSource
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.targets import Key, Target, find_layers
from atomsep.methods.binding import Binding, LatentBinding
from atomsep.methods.registry import SecondView


class Method(nn.Module, ABC):
    """A loss on the latent of one layer, added to the task's loss with a weight.

    A subclass implements `loss`; `forward` checks the arguments and disables autocast. Some methods
    have parameters (the codes of VQ, learned maps of atom modeling): give `method.parameters()` to
    the optimiser and move the method to the model's device. Everything that a resumed run needs is
    part of `method.state_dict()`.

    Attributes:
        needs_labels: whether `labels` must be given.
        second_view: how the second view of the samples is made; None for methods of one view.

    Example:
        >>> class Length(Method):
        ...     def loss(self, latent, labels, mask, second):
        ...         return concatenate(latent, mask).norm(dim=1).mean()
        >>> Length()(torch.tensor([[[3.0], [4.0]]]))
        tensor(5.)
    """

    needs_labels: ClassVar[bool] = False
    second_view: ClassVar[SecondView | None] = None

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may replay the loss; a method that draws on the host says no."""
        return True

    def forward(
        self,
        latent: Tensor,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        second: Tensor | None = None,
    ) -> Tensor:
        """The loss of one batch: unweighted, a scalar, in float32 or float64.

        Args:
            latent: the layer's tokens, `(M, N, h)`.
            labels: the classes, `(M,)`. Methods that do not need them ignore them.
            mask: True on real tokens, `(M, N)`. Padding has no influence and gets no gradient.
            second: the tokens of the samples' second view, `(M, N, h)`, under the same mask.

        Raises:
            TypeError: the latent is not floating point, or the mask is not boolean.
            ValueError: a shape does not fit, a sample has no real token, or labels or the
                second view are missing.
        """
        check_latent(latent, 0, nn.Identity())  # no feature is set apart
        count_tokens(latent, mask)
        name = type(self).__name__
        if self.needs_labels and labels is None:
            raise ValueError(f"{name} compares classes: pass labels=, one per sample")
        if labels is not None and labels.shape != latent.shape[:1]:
            raise ValueError(
                f"there must be one label per sample, shape ({len(latent)},), "
                f"but the labels have shape {tuple(labels.shape)}"
            )
        if self.second_view is not None and second is None:
            raise ValueError(
                f"{name} compares two views of each sample: pass second=, the latent of the "
                f"second one, made by {self.second_view}"
            )
        if second is not None and second.shape != latent.shape:
            raise ValueError(
                f"both views must have the same shape, but the first has {tuple(latent.shape)} and "
                f"the second {tuple(second.shape)}"
            )
        with torch.autocast(latent.device.type, enabled=False):
            return self.loss(latent, labels, mask, second)

    @abstractmethod
    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        """The method's formula. The arguments are checked, and those that it needs are given."""

    def pass_on(self, latent: Tensor) -> Tensor:
        """What the rest of the model sees in place of the layer's tokens, `(M, N, h)`.

        By default the latent itself; VQ passes the nearest codes on.
        """
        return latent

    def bind(
        self,
        model: nn.Module,
        layer: Target,
        *,
        weight: float = 0.1,
        layout: Axes | Literal["auto"] = "auto",
        mask: MaskSource = None,
        select: Key = None,
    ) -> Binding:
        """Put the method on a layer of a model.

        Args:
            model: the model to train. Its training mode decides whether there is a loss.
            layer: a dotted name, a glob over dotted names, or a module of the model.
            weight: factor of the loss.
            layout: see [`attach`][atomsep.attach], like `mask` and `select`.
            mask: where the padding mask comes from.
            select: index or key of the tensor, where the layer returns a tuple or a mapping.

        Returns:
            The binding, which gives the weighted loss of each training forward.

        Raises:
            ValueError: the name matches no layer, or several and the method acts on one; or the
                weight is negative or not finite.
            TypeError: the weight is not a number.

        Example:
            >>> from atomsep.methods import SSCL
            >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
            >>> binding = SSCL().bind(model, "0", weight=0.1)
            >>> logits = model(torch.randn(4, 5, 3))
            >>> (logits.logsumexp(1).mean() + binding.loss()).backward()
            >>> binding.detach()
        """
        weight = check_weight(weight)
        layers = find_layers(model, layer)
        if len(layers) > 1:
            raise ValueError(
                f"{layer!r} matches several layers ({', '.join(layers)}), but "
                f"{type(self).__name__} acts on one; name that one"
            )
        [found] = layers.items()
        return LatentBinding(self, LayerReader(model, *found, layout, mask, select), weight)


def concatenate(latent: Tensor, mask: Tensor | None = None) -> Tensor:
    """The paper's h_i: all tokens of a sample as one vector, `(M, N · h)`, padding as zeros.

    Half precision becomes float32: it cannot add up thousands of features.

    Example:
        >>> latent = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> concatenate(latent, torch.tensor([[True, False]]))
        tensor([[1., 2., 0., 0.]])
    """
    wide = widen(latent)
    if mask is not None:
        wide = wide.masked_fill(~mask.unsqueeze(-1), 0)
    return wide.flatten(1)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Cosine similarities between all rows of two matrices, `(M, K)`.

    A row of zeros has similarity 0 to everything, with a bounded gradient.

    Example:
        >>> cosine(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000],
                [0.0000]])
    """
    return unit(first) @ unit(second).T


def mean_token(latent: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over the real tokens of each sample, `(M, h)`; half precision becomes float32.

    Example:
        >>> latent = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
        >>> mean_token(latent, torch.tensor([[True, True], [False, True]]))
        tensor([[2., 3.],
                [7., 8.]])
    """
    wide = widen(latent)
    if mask is None:
        return wide.mean(1)
    wide = wide.masked_fill(~mask.unsqueeze(-1), 0)
    return wide.sum(1) / mask.sum(1, keepdim=True)


def unit(rows: Tensor) -> Tensor:
    """Rows scaled to unit length; a row of zeros stays.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    # The usual floor on the length would make the gradient at zero about 1e12.
    return rows / length.where(length > 0, 1)


def checked_temperature(temperature: float) -> float:
    """A temperature, which must be finite and above 0."""
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be above 0, not {temperature!r}")
    return temperature


def checked_weight(name: str, weight: float) -> float:
    """A weight of a term, which must be finite and at least 0."""
    if not 0 <= weight < float("inf"):
        raise ValueError(f"{name} must be a weight of at least 0, not {weight!r}")
    return weight
