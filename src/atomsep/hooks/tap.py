"""The hook on one layer.

It passes the layer's output through one autograd node, which also returns the per-sample
statistics (see `atomsep.core.node`). The loss is computed from them later, outside the model.

The consumer of the output may overwrite it (`relu(inplace=True)`, `out += identity`), while the
gradient needs it as it was. So the first training forward hands on a copy. The copy's version
counter then shows whether anybody writes to it; if nobody does, later forwards copy nothing. Where
the output can be recomputed (`atomsep.hooks.origin`), nothing is copied and its consumer may write.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atomsep.checks import transforms_active
from atomsep.core.layout import Layout
from atomsep.hooks import reasons
from atomsep.hooks.earlier import LEFT_OVER, others
from atomsep.hooks.handed_on import HandedOn
from atomsep.hooks.held import Forwards, Held, transform_depth
from atomsep.hooks.marks import why_outdated
from atomsep.hooks.masks import refuse_replica
from atomsep.hooks.numbers import Numbers, absent_shares
from atomsep.hooks.origin import find_origin
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.replaced import why_replaced
from atomsep.hooks.runs import PATIENCE, PILED, UNUSED, keep_earlier, note_left_out, piled
from atomsep.hooks.stats import read_stats
from atomsep.hooks.strength import Strength, shares_of_all
from atomsep.hooks.switch import Hook
from atomsep.hooks.targets import put_tensor
from atomsep.hooks.watch import Watch
from atomsep.hooks.witnesses import Undecided

if TYPE_CHECKING:
    from atomsep.hooks.attachment import Attachment


class LayerTap(Hook):
    """The hook on one layer, and what it holds of the last forward."""

    marks = True

    def __init__(self, attachment: Attachment, reader: LayerReader) -> None:
        self.name = reader.name
        self.watch = Watch(self.name)
        self.writes: bool | None = None
        self.forwards = Forwards()
        self.link(attachment, reader)

    def link(self, attachment: Attachment, reader: LayerReader) -> None:
        """Say which attachment it belongs to; until then it does nothing."""
        self.attachment, self.reader, self.linked = attachment, reader, True

    def __getstate__(self) -> dict[str, Any]:
        """Copies wait for their attachment to link them: see `atomsep.hooks.copies`."""
        state = {**self.__dict__, "linked": False}
        del state["attachment"], state["reader"]
        return state

    def detach(self) -> None:
        """Remove the hooks and drop everything of the last forward."""
        self.reader.remove()
        self.forwards = Forwards()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Read the layer's output; in training pass it through the node."""
        if not self.linked:
            return None
        on = self.attachment._switch.on()
        training = torch.is_grad_enabled() and self.attachment.model.training
        repeat = self.forwards.regions.repeat(training=on and training)
        if repeat is not None:
            return self._recompute(args, output) if repeat else None
        if not on:
            return None
        refuse_replica(module)
        key, latent = self.reader.pick(output)
        if latent.is_nested:
            self._look_at_nested(latent)
            return None
        try:
            layout = self.reader.layout(latent, args)
        except Undecided as error:
            if training:
                raise
            held = self.forwards.write()
            held.charge, held.training = None, False
            held.idle_reason = f"has no layout yet: {error}"
            return None
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
            held.charge, held.training, held.idle_reason = None, False, reasons.NESTED
            return
        latent, mask = self.reader.unpack(nested)
        layout = self.reader.layout(latent)
        held.read_as = (layout, tuple(latent.shape))
        self._look(held, latent, layout, layout.flatten_mask(mask, latent))

    def _look(self, held: Held, latent: Tensor, layout: Layout, mask: Tensor | None) -> None:
        """Read importance and statistics; there is no loss."""
        in_training = self.attachment.model.training
        held.idle_reason = reasons.WITHOUT_GRADIENTS if in_training else reasons.IN_EVAL
        held.charge, held.seen, held.training = None, None, False
        if transforms_active():
            held.idle_reason = reasons.TRANSFORMED
            return
        held.charge, held.seen = self.attachment.criterion.look(latent, mask, layout)

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
        self._keep_run(held, depth)
        self.settle(held, at_next_forward=True)
        passing = self._passing()
        copied = passing == "clone"
        # A graph that depended on the weight would be recompiled whenever it changes.
        weight = 1.0 if compiling else self.attachment.weight
        held.strength, held.compiled = None, compiling
        if not compiling and not depth and self.attachment.watch_gradients:
            held.strength = Strength(layout, criterion.feature)
            source, passed = held.strength.split(latent, copied)
            measured = criterion.measure(source, mask, layout, weight=weight)
        else:
            measured = criterion.measure(
                *(latent, mask, layout),
                passing=passing,
                weight=weight,
                find_origin=partial(find_origin, module, self, args, latent),
            )
            assert measured.passed is not None
            passed = measured.passed
        held.statistics, held.depth, held.training = measured.statistics, depth, True
        # What a transform wraps must not outlive it.
        held.charge = None if depth else measured.charge
        held.idle_reason = reasons.TRANSFORMED if depth else ""
        held.handed_on = None
        if not compiling and not depth:
            self.forwards.regions.note()
            self._watch_passed(held, passed, copied, measured.keeps_source)
        return passed

    def _watch_passed(self, held: Held, passed: Tensor, copied: bool, keeps_source: bool) -> None:
        """Notice what becomes of the tensor handed on."""
        held.handed_on = HandedOn(passed, copied, looked_at=keeps_source)
        if keeps_source:
            held.watched = (*held.watched, held.handed_on)
        if self.attachment.conduct.runs == "mean":
            held.handed_on.watch_backward(passed)

    def _keep_run(self, held: Held, depth: int) -> None:
        """Decide what becomes of a training run whose loss was not taken before the next."""
        runs = self.attachment.conduct.runs
        if runs == "mean":
            keep_earlier(held, depth)
        if torch.compiler.is_compiling():  # reading what changes would recompile
            return
        if runs is None and held.statistics is not None:
            note_left_out(held)
        if piled(held) and "unused" not in self.attachment.told:
            many = PILED.format(len(held.earlier))
            self.attachment.tell("piled", f"layer {self.name!r} {many}")
        held.forwards += 1
        if held.forwards == PATIENCE and not held.losses and self.attachment.weight:
            also = f". {LEFT_OVER}" if others(self.attachment, self.reader) else ""
            self.attachment.tell("unused", f"layer {self.name!r} {UNUSED}{also}")

    def _passing(self) -> str:
        watched = not torch.compiler.is_compiling() and not transforms_active()
        return "alias" if watched and self.writes is False else "clone"

    def _recompute(self, args: Any, output: Any) -> Any:
        """Repeat for a checkpoint what the forward handed on; its loss is already taken."""
        key, latent = self.reader.pick(output)
        if latent.is_nested:
            return None
        layout = self.reader.layout(latent, args)
        passed = self.attachment.criterion.repeat(latent, layout, self._passing())
        return put_tensor(output, key, passed)

    def settle(self, held: Held, at_next_forward: bool = False) -> None:
        """Find out whether a tensor that was handed on was written to.

        That nobody writes is settled when the next forward begins, since a consumer may follow
        after the loss was taken; but not from a forward whose loss was never taken, which may have
        failed before it reached the consumer. The tensors are held until the loss is taken, and
        looked at after that only if they still exist.
        """
        if not held.watched:
            return
        written = any(each.written() for each in held.watched)
        lost = any(each.lost() for each in held.watched)
        finished = held.statistics is None
        if written or (at_next_forward and finished):
            self.writes = written or bool(self.writes)
        if at_next_forward:  # runs that are still to count are looked at again
            rest = [run.handed_on for run in held.earlier if run.handed_on is not None]
            held.watched = tuple([each for each in rest if each.tensor is not None])
            return
        for each in held.watched:
            each.release()
        if written:
            held.watched = ()
        if lost:
            held.statistics, held.earlier = None, ()
            raise RuntimeError(
                f"the output of layer {self.name!r} was overwritten in place for the first time "
                f"after earlier steps left it unchanged, so the latent of this step is lost. Run "
                f"the step again: from now on, a copy is passed on"
            )

    def why_nothing(self, held: Held) -> str:
        """A sentence about what the last forward did not give."""
        taken = reasons.TAKEN if self.attachment._adder is None else reasons.ADDED
        reason = held.idle_reason or (reasons.NEVER_RAN if held.taken is None else taken)
        return f"layer {self.name!r} {reason if self.attachment.active else reasons.DETACHED}"

    def check_place(self) -> None:
        """Raise if another module has taken the layer's place, or another forward its own."""
        if self.attachment.active and not torch.compiler.is_compiling():
            why = why_replaced(self.attachment.model, self.name, self.reader.layer)
            for module in (self.reader.layer, *self.reader.hosts):
                why = why or why_outdated(module)
            if why:
                raise RuntimeError(f"layer {self.name!r} {why}")

    def importance(self) -> Tensor:
        """Charges of the last forward, in the shape of the tokens."""
        self.check_place()
        held = self.forwards.read()
        if held.charge is None or held.read_as is None:
            raise RuntimeError(self.why_nothing(held))
        layout, shape = held.read_as
        return layout.unflatten(held.charge.detach(), shape).float()

    def stats(self) -> dict[str, float]:
        """What the last forward was like, as numbers."""
        self.check_place()
        held = self.forwards.read()
        numbers = held.last_numbers()
        if numbers is None or held.charge is None:
            unmeasured = held.charge is not None and not held.training
            why = f"layer {self.name!r} {reasons.UNMEASURED}"
            raise RuntimeError(why if unmeasured else self.why_nothing(held))
        values = read_stats(numbers, held.charge, self.attachment.criterion.terms)
        values["training"] = float(held.training)
        shares = self.gradient_shares() if held.training else {}
        absent = absent_shares(
            held.strength,
            training=held.training,
            compiled=held.compiled,
            transformed=held.depth > 0,
        )
        return Numbers({**values, **shares}, absent)

    def gradient_shares(self, total: Any = None) -> dict[str, float]:
        """The shares of the last backward pass, where they were watched; see `Strength.shares`."""
        strength = self.forwards.read().strength
        return {} if strength is None else strength.shares(total)

    def gradient_shares_of_all(self) -> dict[str, float]:
        """The same over the samples of all processes, once they have exchanged a loss."""
        criterion = self.attachment.criterion
        if not (criterion.ranks.several and criterion.ranks.links):
            return self.gradient_shares()
        strength = self.forwards.read().strength
        return shares_of_all(strength, criterion.ranks, criterion.feature is None)
