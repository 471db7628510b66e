"""The hook on one layer.

It passes the layer's output through one autograd node, which also returns the per-sample
statistics (see `atomsep.core.node`). The loss is computed from them later, outside the model.

The consumer of the output may overwrite it (`relu(inplace=True)`, `out += identity`), while the
gradient needs it as it was. So the first training forward hands on a copy. The copy's version
counter then shows whether anybody writes to it; if nobody does, later forwards copy nothing. Where
the output can be recomputed (`atomsep.hooks.origin`), nothing is copied and its consumer may write.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.checks import transforms_active
from atomsep.core.layout import Layout
from atomsep.core.plain.pairs import mean_distance, mean_energy
from atomsep.functional import neutrality, occupancy
from atomsep.hooks.held import Forwards, Held, transform_depth
from atomsep.hooks.masks import refuse_replica
from atomsep.hooks.origin import find_origin
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.strength import Strength
from atomsep.hooks.targets import put_tensor
from atomsep.hooks.watch import Watch
from atomsep.hooks.witnesses import Undecided

if TYPE_CHECKING:
    from atomsep.hooks.attachment import Attachment

_IN_EVAL = "ran with the model in eval mode, which gives no loss and no stats"
_WITHOUT_GRADIENTS = (
    "ran without gradients, which gives no loss and no stats: under torch.no_grad, or inside "
    "reentrant activation checkpointing (pass use_reentrant=False to torch.utils.checkpoint)"
)
_NESTED = "returned a nested tensor in training, which gives no importance, loss or stats"
_TRANSFORMED = (
    "ran inside a torch.func transform or forward-mode AD, which gives no importance or stats; "
    "call loss() inside the transformed function"
)
_TAKEN = (
    "has no new forward: loss() returns the loss of each forward once. Keep its value, or run the "
    "model again"
)
_DETACHED = "was detached, which dropped what was held of its last forward"
_NEVER_RAN = (
    "has not run in this thread since it was attached. Run the model first; if it did run, the "
    "layer is not part of its forward"
)


class LayerTap:
    """The hook on one layer, and what it holds of the last forward."""

    def __init__(self, attachment: Attachment, reader: LayerReader) -> None:
        self.attachment = attachment
        self.reader = reader
        self.name = reader.name
        self.watch = Watch(self.name)
        self.writes: bool | None = None
        self.forwards = Forwards()

    def detach(self) -> None:
        """Remove the hooks and drop everything of the last forward."""
        self.reader.remove()
        self.forwards = Forwards()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Read the layer's output; in training pass it through the node."""
        attachment = self.attachment
        if not attachment._switch.on():
            return None
        refuse_replica(module)
        key, latent = self.reader.pick(output)
        if latent.is_nested:
            self._look_at_nested(latent)
            return None
        training = torch.is_grad_enabled() and attachment.model.training
        try:
            layout = self.reader.layout(latent)
        except Undecided as error:
            if training:
                raise
            held = self.forwards.write()
            held.charge, held.idle_reason = None, f"has no layout yet: {error}"
            return None
        if training and _in_backward():
            return put_tensor(output, key, self._recompute(latent, layout))
        mask = self.reader.mask(layout, latent)
        held = self.forwards.write()
        held.read_as = (layout, tuple(latent.shape))
        if not training:
            self._look(held, latent, layout, mask)
            return None
        return put_tensor(output, key, self._measure(held, module, args, latent, layout, mask))

    def _look_at_nested(self, nested: Tensor) -> None:
        """The same for what the fast path of nn.TransformerEncoder hands on, in eval mode."""
        held = self.forwards.write()
        if torch.is_grad_enabled() and self.attachment.model.training:
            held.charge, held.idle_reason = None, _NESTED
            return
        latent, mask = self.reader.unpack(nested)
        layout = self.reader.layout(latent)
        held.read_as = (layout, tuple(latent.shape))
        self._look(held, latent, layout, layout.flatten_mask(mask, latent))

    def _look(self, held: Held, latent: Tensor, layout: Layout, mask: Tensor | None) -> None:
        """Read the importance alone."""
        held.idle_reason = _WITHOUT_GRADIENTS if self.attachment.model.training else _IN_EVAL
        if transforms_active():
            held.charge, held.idle_reason = None, _TRANSFORMED
            return
        with torch.no_grad():
            tokens = layout.tokens(latent.detach())
            held.charge = self.attachment.criterion.importance(tokens, mask)

    def _measure(
        self,
        held: Held,
        module: nn.Module,
        args: Any,
        latent: Tensor,
        layout: Layout,
        mask: Tensor | None,
    ) -> Tensor:
        """Read statistics and importance; return what takes the output's place."""
        criterion = self.attachment.criterion
        compiling = torch.compiler.is_compiling()
        depth = transform_depth()
        self._settle(held, at_next_forward=True)
        if not compiling:
            held.recall = None if depth else (mask, criterion.draws)
        # A graph that depended on the weight would be recompiled whenever it changes.
        weight = 1.0 if compiling else self.attachment.weight
        held.strength = None
        if not compiling and not depth and self.attachment.watch_gradients:
            held.strength = Strength(layout, criterion.feature)
            source, passed = held.strength.split(latent, copy=self._passing() == "clone")
            measured = criterion.measure(source, mask, layout, weight=weight)
        else:
            measured = criterion.measure(
                *(latent, mask, layout),
                passing=self._passing(),
                weight=weight,
                find_origin=partial(find_origin, module, self, args, latent),
            )
            assert measured.passed is not None
            passed = measured.passed
        held.statistics, held.depth = measured.statistics, depth
        # What a transform wraps must not outlive it.
        held.charge = None if depth else measured.charge
        held.idle_reason = _TRANSFORMED if depth else ""
        if measured.keeps_source and not compiling and not depth:
            held.passed, held.handed_on = passed, (weakref.ref(passed), passed._version)
        return passed

    def _passing(self) -> str:
        watched = not torch.compiler.is_compiling() and not transforms_active()
        return "alias" if watched and self.writes is False else "clone"

    def _recompute(self, latent: Tensor, layout: Layout) -> Tensor:
        """Repeat for a checkpoint what the forward did; its loss is already taken.

        With the default maps only the latent is saved for the gradient, whatever the mask. Maps
        and draws repeat those of the last forward.
        """
        criterion = self.attachment.criterion
        mask, draws = self.forwards.recall() or (None, criterion.draws)
        if mask is not None and mask.shape != layout.tokens(latent).shape[:2]:
            mask = None  # it belongs to another forward
        before, criterion.draws = criterion.draws, draws
        passed = criterion.measure(latent, mask, layout, passing=self._passing()).passed
        criterion.draws = before
        assert passed is not None
        return passed

    def _settle(self, held: Held, at_next_forward: bool = False) -> None:
        """Find out whether the tensor handed on last was written to.

        That nobody writes is settled when the next forward begins, since a consumer may follow
        after the loss was taken; but not from a forward whose loss was never taken, which may have
        failed before it reached the consumer. The tensor is held until the loss is taken, and
        looked at after that only if it still exists.
        """
        if held.handed_on is None:
            return
        reference, version = held.handed_on
        tensor = reference()
        written = tensor is not None and tensor._version != version
        late = written and self.writes is False
        finished = held.statistics is None
        held.passed = None
        if written or at_next_forward:
            held.handed_on = None
        if written or (at_next_forward and finished):
            self.writes = written or bool(self.writes)
        if late and not at_next_forward:
            held.statistics = None
            raise RuntimeError(
                f"the output of layer {self.name!r} was overwritten in place for the first time "
                f"after earlier steps left it unchanged, so the latent of this step is lost. Run "
                f"the step again: from now on a copy is handed on"
            )

    def check_loss(self) -> None:
        """Raise if there is no loss to take."""
        held = self.forwards.read()
        if self.attachment.active:
            self._settle(held)
            if held.depth > transform_depth():
                held.statistics = None  # the transform that it belongs to has ended
        if held.statistics is None:
            raise RuntimeError(self._why_nothing(held))

    def take_loss(self, weight: float) -> Tensor:
        """The loss of the last training forward times a weight; once."""
        held = self.forwards.read()
        statistics, held.statistics = held.statistics, None
        assert statistics is not None
        held.taken = None if held.depth else statistics.detach()
        loss = self.attachment.criterion.from_statistics(statistics, weight)
        if transforms_active():
            return loss
        if not statistics.table.requires_grad:
            self.watch.tell(
                "frozen",
                f"no gradient reaches layer {self.name!r}: everything before it is frozen, so its "
                f"atom loss trains nothing; attach after the first trained layer",
            )
        if not torch.compiler.is_compiling() and held.charge is not None:
            self.watch.look(loss, statistics, held.charge)
        return loss

    def _why_nothing(self, held: Held) -> str:
        reason = held.idle_reason or (_NEVER_RAN if held.taken is None else _TAKEN)
        return f"layer {self.name!r} {reason if self.attachment.active else _DETACHED}"

    def importance(self) -> Tensor:
        """Charges of the last forward, in the shape of the tokens."""
        held = self.forwards.read()
        if held.charge is None or held.read_as is None:
            raise RuntimeError(self._why_nothing(held))
        layout, shape = held.read_as
        return layout.unflatten(held.charge.detach(), shape).float()

    def stats(self) -> dict[str, float]:
        """The parts of the loss of the last training forward, as numbers."""
        held = self.forwards.read()
        numbers = held.taken if held.statistics is None else held.statistics.detach()
        if held.depth or numbers is None:
            raise RuntimeError(self._why_nothing(held))
        terms = self.attachment.criterion.terms
        parts = {
            "energy": mean_energy(numbers, terms),
            "neutrality": neutrality(numbers, terms.scale).mean(),
            "occupancy": occupancy(numbers, terms.scale).mean(),
            "distance": mean_distance(numbers, terms),
            "radius": numbers.radius.mean(),
            "protons": (numbers.protons / numbers.count).mean(),
            "electrons": (numbers.electrons / numbers.count).mean(),
        }
        values = dict(zip(parts, torch.stack(list(parts.values())).tolist(), strict=True))
        values["neutrons"] = 1 - values["protons"] - values["electrons"]
        return {**values, **self.gradient_shares()}

    def gradient_shares(self) -> dict[str, float]:
        """The shares of the last backward pass, where they were watched."""
        strength = self.forwards.read().strength
        return {} if strength is None else strength.shares()


def _in_backward() -> bool:
    """Whether a backward pass is running, as when a checkpoint is recomputed."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
