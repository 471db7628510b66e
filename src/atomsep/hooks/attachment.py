"""Atom modeling that is attached to layers of a model.

Hooks read what the layers return (`atomsep.hooks.tap`). The attachment turns that into the loss,
the importance and the statistics on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.core.loss import AtomLoss
from atomsep.hooks import copies
from atomsep.hooks.arguments import Conduct, check_watch, check_weight
from atomsep.hooks.losses import mean_of
from atomsep.hooks.maps import UNTRAINED, MapsWatch
from atomsep.hooks.marks import mark, unmark
from atomsep.hooks.names import KnownNames
from atomsep.hooks.numbers import Numbers, by_layer
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.switch import Switch
from atomsep.hooks.taking import check_loss, take_loss
from atomsep.hooks.tap import LayerTap
from atomsep.hooks.targets import unwrap
from atomsep.hooks.watch import tell_once


class Attachment(KnownNames):
    """Atom modeling on one or several layers of a model; created by `attach`.

    A context manager, which detaches when it exits. Loss, importance and statistics belong to the
    thread that ran the model. (A compiled model can be used by one thread at a time.)

    Attributes:
        criterion (AtomLoss): the loss with its settings and learned maps.
        model (nn.Module): the model it is attached to.
        conduct (tuple): `runs`, `missing` and `in_eval`.
    """

    model: nn.Module
    criterion: AtomLoss
    conduct: Conduct
    told: set[str]

    def __init__(
        self, model: nn.Module, criterion: AtomLoss, weight: float, conduct: Conduct
    ) -> None:
        self.model = unwrap(model)
        self.criterion = criterion
        self.weight = weight
        self.conduct = conduct
        self.watch_gradients = False
        self.told = set()
        self._maps = MapsWatch()
        self._switch = Switch()
        self._taps: list[LayerTap] = []
        copies.keep(self.model, self)
        self._adder: Any = None

    @property
    def active(self) -> bool:
        """False once detached."""
        return self._switch.attached

    @property
    def weight(self) -> float:
        """Factor of the loss, at least 0; can be changed at any step."""
        return self._weight

    @weight.setter
    def weight(self, value: float) -> None:
        self._weight = check_weight(value)

    @property
    def watch_gradients(self) -> bool:
        """Whether the next forward passes are watched for `stats`; can be changed at any step."""
        return self._watch_gradients

    @watch_gradients.setter
    def watch_gradients(self, value: bool) -> None:
        self._watch_gradients = check_watch(value)

    @property
    def layers(self) -> list[str]:
        """The names of its layers."""
        return [tap.name for tap in self._taps]

    def loss(self) -> Tensor:
        """The weighted loss of the last forward pass in training, to add to the task's loss.

        With several layers, it is the mean of their losses, on the device of the last one. If a
        layer ran more than once since the last call, its last run counts, or the mean of all runs
        with `runs="mean"`.

        Raises:
            RuntimeError: there was no forward pass in training since the last call (see `missing`
                and `in_eval` of `attach`), the attachment was detached, or the output was
                overwritten in place for the first time after earlier steps left it unchanged.
        """
        for tap in self._taps:
            check_loss(tap)  # before any is taken
        loss = mean_of([take_loss(tap, self.weight) for tap in self._taps])
        if not torch.compiler.is_compiling() and self._maps.untrained(self.model, self.criterion):
            self.tell("maps", UNTRAINED)
        return loss

    def tell(self, topic: str, message: str) -> None:
        """Warn of a topic, the first time only."""
        tell_once(self.told, topic, message)

    @property
    def importance(self) -> Any:
        """Token importance of the last forward pass, in training or evaluation.

        `(M, H, W)` for maps and `(M, L)` for sequences, float32, 0 on padding. With several
        layers, a dictionary by name.
        """
        return self._each(LayerTap.importance)

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics of the last forward pass, the one that `importance` belongs to.

        training is 1 if it was in training, so that it has a loss, and 0 otherwise. energy,
        neutrality and occupancy are unweighted and in the loss's scale. distance is the mean over
        pairs of nuclei and radius the mean over samples. protons, electrons and neutrons are the
        shares P/N, G/N and the rest. charge_square is the mean of q². position_share is the share
        of the charges' variance that the position alone explains: 1 if all samples have the same
        map, and about 0 if the position tells nothing; as an unbiased estimate, it may then be
        slightly negative. All are computed when read, which synchronises with the GPU. With several
        layers, a dictionary by name. In data-parallel training they are over the samples of all
        processes once `loss()` has exchanged them, except position_share and the shares of
        gradients, which are those of this process. Any process may read them alone;
        `gradient_shares()` gives those of all.

        With `watch_gradients`, and once the backward pass has run, gradient_share is the norm of
        the weighted loss's gradient at the layer's output over that of the gradient that arrives
        there from the rest of the model. gradient_share_charge and gradient_share_positions are
        the same in the charge's feature and in all others, unless learned maps read them. Compiled
        models do not have them. Where they are absent, `stats["gradient_share"]` raises a KeyError
        that says why, and `stats.get("gradient_share")` is None.
        """
        numbers: dict[str, Any] = self._each(LayerTap.stats)
        return numbers if len(self._taps) == 1 else Numbers(numbers, by_layer(numbers))

    def gradient_shares(self) -> dict[str, Any]:
        """The gradient shares of `stats`, over the samples of all processes.

        Both norms are those of one process on the concatenated batch, so they are equal on every
        process. They need an exchange: call it on every process, after the backward pass. Empty
        if the gradients were not watched. In one process they are those of `stats`.
        """
        found: dict[str, Any] = self._each(LayerTap.gradient_shares_of_all)
        return found

    def _each(self, read: Any) -> Any:
        if len(self._taps) == 1:
            return read(self._taps[0])
        return {tap.name: read(tap) for tap in self._taps}

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the learned maps, for the optimiser; none with the default maps."""
        return self.criterion.parameters()

    def state_dict(self) -> dict[str, Any]:
        """State of the learned maps."""
        return self.criterion.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the learned maps."""
        self.criterion.load_state_dict(state)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which the hooks do nothing and the model runs as if it were not attached.

        For code that cannot run with hooks. It applies to all threads and can be nested; what was
        kept before stays. Tracing and export leave the hooks out by themselves, except torch.export
        with strict=True in PyTorch 2.6.

        Example:
            >>> import atomsep
            >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
            >>> attachment = atomsep.attach(model, "0")
            >>> with attachment.paused():
            ...     program = torch.export.export(model, (torch.randn(4, 5, 3),))
        """
        self._switch.pauses.append(None)
        try:
            yield
        finally:
            self._switch.pauses.pop()

    def detach(self) -> None:
        """Remove all hooks from the model, and drop what is kept from the last forward pass."""
        self._switch.attached = False
        if self._adder is not None:
            self._adder.handle.remove()
        for tap in self._taps:
            tap.detach()
        for tap in self._taps:
            for module in (*tap.reader.hosts, tap.reader.layer):
                unmark(module)
        copies.drop(self.model, self)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "" if self.active else ", detached"
        lines = [
            f"Attachment(layers={self.layers}, weight={self.weight:g}{state}, {self.criterion})"
        ]
        for tap in self._taps:
            lines.append(f"  {tap.name}: {tap.reader.describe(tap.forwards.last.read_as)}")
        return "\n".join(lines)

    def _add(self, reader: LayerReader) -> None:
        tap = LayerTap(self, reader)
        self._taps.append(tap)
        copies.clear(reader.layer)
        reader.listen(tap)
        for module in (*reader.hosts, reader.layer):
            mark(module)

    def __getstate__(self) -> dict[str, Any]:
        """Hooks are copied without what they belong to (see `atomsep.hooks.copies`)."""
        return {**self.__dict__, "readers": [tap.reader for tap in self._taps]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        readers = state.pop("readers")
        self.__dict__.update(state)
        for tap, reader in zip(self._taps, readers, strict=True):
            tap.link(self, reader)
