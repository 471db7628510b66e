"""The layer to start with.

The paper finds that the layer nearest to the data works: the first one in classifiers, the last
hidden one in generators. Its output must be signed, so it lies before an activation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from atomsep.hooks.layers import Layer


class Recommendation:
    """Recommends one of the layers that ran.

    Args:
        model: the model.
        started: names of its modules in the order in which they started.
        signed: for each layer with tokens, in the order in which they ended, whether it is signed.
        found: those of them that one can attach to.
    """

    def __init__(
        self,
        model: nn.Module,
        started: Sequence[str],
        signed: Mapping[str, bool],
        found: Mapping[str, Layer],
    ) -> None:
        self.modules = dict(model.named_modules())
        self.started, self.found = started, found
        self.order = list(signed)
        self.rectified = [place for place, name in enumerate(self.order) if not signed[name]]
        self.usable = [name for name in self.order if name in found and signed[name]]

    def __call__(self, generator: bool) -> tuple[str | None, str]:
        """The name of a layer, and why that one; None if no layer is signed.

        Args:
            generator: whether the model makes maps from vectors.
        """
        if not self.usable:
            return None, "every layer with tokens is rectified"
        return self._last_hidden() if generator else self._nearest_to_the_data()

    def _last_hidden(self) -> tuple[str, str]:
        before = self._before(max(self.rectified, default=0))
        if before:
            reason = "the last hidden layer before its activation, as this is a generator"
            return before[-1], reason
        image = self.found[self.usable[-1]].shape
        inner = [name for name in self.usable if self.found[name].shape != image]
        return (inner or self.usable)[-1], "the last hidden layer, as this is a generator"

    def _nearest_to_the_data(self) -> tuple[str, str]:
        block = self._first_block("")
        if block in self.usable:
            return block, "the first block, nearest to the data"
        inside = [name for name in self.usable if block and name.startswith(f"{block}.")]
        if inside:
            return inside[-1], "the last signed layer of the first block, nearest to the data"
        before = self._before(min(self.rectified, default=0))
        if before:
            return before[-1], "the layer before the first activation, nearest to the data"
        own = [name for name in self.usable if any(True for _ in self.modules[name].parameters())]
        return (own or self.usable)[0], "the first layer with tokens, nearest to the data"

    def _before(self, place: int) -> list[str]:
        return [name for name in self.usable if self.order.index(name) < place]

    def _first_block(self, within: str) -> str:
        """The first of a series of modules, and in it again; "" if there is none."""
        for name in self.started:
            if name in self.found and name.startswith(within) and self._is_block(name):
                return self._first_block(f"{name}.") or name
        return ""

    def _is_block(self, name: str) -> bool:
        module = self.modules[name]
        parent = self.modules[name.rpartition(".")[0]]
        if not isinstance(parent, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
            return False
        if isinstance(module, nn.Sequential) or next(module.children(), None) is None:
            return False
        # A Sequential of different modules is a whole and not a series of blocks.
        like = sum(type(other) is type(module) for other in parent.children())
        return like > 1 or not isinstance(parent, nn.Sequential)
