"""The hook on one layer.

It hands the layer's output on through one autograd node, which also gives the per-sample
statistics (see `atomsep.core.node`). The loss is made from them later, outside the model.

What is handed on may be overwritten by its consumer (`relu(inplace=True)`, `out += identity`),
while the gradient needs the output as it was. So the first training forward hands on a copy, and a
look at its version counter afterwards tells whether anybody writes; only then copies are kept up.
Where the output can be made again (`atomsep.hooks.origin`), nothing is copied and its consumer may write.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from atomsep.core.layout import Axes, Layout
from atomsep.core.plain.pairs import mean_distance, mean_energy
from atomsep.core.statistics import Statistics
from atomsep.functional import neutrality, occupancy
from atomsep.hooks.axes import feature_widths, infer_axes, resolve_layout
from atomsep.hooks.masks import MaskSlot
from atomsep.hooks.origin import find_origin
from atomsep.hooks.targets import Key, pick_tensor, put_tensor
from atomsep.hooks.watch import Watch

if TYPE_CHECKING:
    from atomsep.hooks.attachment import Attachment


class LayerTap:
    """The hook on one layer, and what it holds of the last forward."""

    def __init__(
        self,
        attachment: Attachment,
        name: str,
        layer: nn.Module,
        layout: Axes | Literal["auto"],
        mask_slot: MaskSlot,
        select: Key,
        skip: int,
    ) -> None:
        self.attachment = attachment
        self.name = name
        self.mask_slot = mask_slot
        self.select = select
        self.skip = skip
        root = attachment.model
        self.axes = {
            dim: infer_axes(layer, root, dim) if layout == "auto" else layout for dim in (3, 4, 5)
        }
        self.widths = feature_widths(layer) if layout == "auto" else None
        self.layer_kind = type(layer).__name__
        self.watch = Watch(name)
        self.writes: bool | None = None
        self.resolved: tuple[torch.Size, Layout] | None = None
        self.forget()

    def forget(self) -> None:
        """Drop everything of the last forward."""
        self.mask_slot.value = None
        self.recall: tuple[Tensor | None, int] | None = None
        self.held: Tensor | None = None
        self.handed_on: tuple[weakref.ref[Tensor], int] | None = None
        self.statistics: Statistics | None = None
        self.numbers: Statistics | None = None
        self.charge: Tensor | None = None
        self.read_as: tuple[Layout, tuple[int, ...]] | None = None
        self.idle_reason = ""

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle starts without live tensors."""
        live = dict.fromkeys(
            ("recall", "held", "handed_on", "statistics", "numbers", "charge", "read_as")
        )
        return {**self.__dict__, **live, "idle_reason": ""}

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Read the layer's output; in training hand it on through the node."""
        attachment = self.attachment
        if not attachment.active:  # a compiled graph may still call a removed hook
            return None
        if getattr(module, "_is_replica", False):
            raise RuntimeError(
                f"layer {self.name!r} runs as a replica of nn.DataParallel, where latents of "
                f"other devices are out of reach; use DistributedDataParallel"
            )
        key, latent = pick_tensor(output, self.select, self.name)
        if latent.is_nested:  # the fast path of nn.TransformerEncoder, in eval mode alone
            self.charge, self.idle_reason = None, "gave a nested tensor"
            return None
        layout = self._layout(latent)
        training = torch.is_grad_enabled() and attachment.model.training
        if training and _in_backward():
            return put_tensor(output, key, self._recompute(latent, layout))
        mask = self._mask(layout, latent, training)
        criterion = attachment.criterion
        if not training:
            with torch.no_grad():
                self.charge = criterion.importance(layout.tokens(latent.detach()), mask)
            self.read_as = (layout, tuple(latent.shape))
            if not attachment.model.training:
                self.idle_reason = "ran with the model in eval mode"
            else:
                self.idle_reason = (
                    "ran without gradients, under torch.no_grad or inside reentrant activation "
                    "checkpointing (pass use_reentrant=False to torch.utils.checkpoint)"
                )
            return None
        self._settle(at_next_forward=True)
        self.recall = (mask, criterion.draws)
        # A compiled graph must not depend on the weight: it would be recompiled for each one.
        weight = 1.0 if torch.compiler.is_compiling() else attachment.weight
        measured = criterion.measure(
            *(latent, mask, layout),
            passing=self._passing(),
            weight=weight,
            find_origin=partial(find_origin, module, self, args, latent),
        )
        passed = measured.passed
        assert passed is not None
        self.statistics = measured.statistics
        self.numbers = measured.statistics.detach()
        self.charge = measured.charge
        self.read_as = (layout, tuple(latent.shape))
        self.idle_reason = ""
        if measured.keeps_source and not torch.compiler.is_compiling():
            self.held, self.handed_on = passed, (weakref.ref(passed), passed._version)
        return put_tensor(output, key, passed)

    def _layout(self, latent: Tensor) -> Layout:
        """The layout, as it was found for the last output if that had the same shape."""
        if torch.compiler.is_compiling():  # which must not look at what changes
            return self._resolve(latent)
        if self.resolved is None or self.resolved[0] != latent.shape:
            self.resolved = latent.shape, self._resolve(latent)
        return self.resolved[1]

    def _resolve(self, latent: Tensor) -> Layout:
        return resolve_layout(self.axes, self.skip, self.name, self.layer_kind, latent, self.widths)

    def _passing(self) -> str:
        return "alias" if self.writes is False and not torch.compiler.is_compiling() else "clone"

    def _recompute(self, latent: Tensor, layout: Layout) -> Tensor:
        """Do again for a checkpoint what the forward did; its loss is taken already.

        Only the latent is saved for the gradient with the default maps, whatever the mask. Maps
        and draws repeat those of the last forward.
        """
        criterion = self.attachment.criterion
        mask, draws = (None, criterion.draws) if self.recall is None else self.recall
        if mask is not None and mask.shape != layout.tokens(latent).shape[:2]:
            mask = None  # of another forward
        before, criterion.draws = criterion.draws, draws
        passed = criterion.measure(latent, mask, layout, passing=self._passing()).passed
        criterion.draws = before
        assert passed is not None
        return passed

    def _mask(self, layout: Layout, latent: Tensor, training: bool) -> Tensor | None:
        mask = self.mask_slot.value
        if mask is None:
            return None
        if not training and mask.dim() == 2 and latent.dim() == 3:
            # generation with a cache: the mask covers what came before too
            mask = mask[:, -layout.token_shape(latent)[1] :]
        try:
            return layout.flatten_mask(mask, latent)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"layer {self.name!r}: {error}; mask=False leaves masks out"
            ) from None

    def _settle(self, at_next_forward: bool = False) -> None:
        """Look whether the tensor handed on last was written to.

        That nobody writes is settled when the next forward begins: a consumer may come after
        the loss was taken. Until then it is held, and after that only looked at if still there.
        """
        if self.handed_on is None:
            return
        reference, version = self.handed_on
        tensor = reference()
        written = tensor is not None and tensor._version != version
        late = written and self.writes is False
        self.held = None
        if written or at_next_forward:
            self.handed_on = None
            self.writes = written or bool(self.writes)
        if late and not at_next_forward:
            self.statistics = None
            raise RuntimeError(
                f"the output of layer {self.name!r} was overwritten in place for the first time, "
                f"after earlier steps left it alone, so this step's latent is gone; "
                f"run the step again: from now on a copy is handed on"
            )

    def check_loss(self) -> None:
        """Refuse where there is no loss to take."""
        if not self.attachment.active:
            raise RuntimeError("the attachment was detached; attach again for a loss")
        self._settle()
        if self.statistics is None:
            raise RuntimeError(f"layer {self.name!r} {self._why_nothing()}")

    def take_loss(self, weight: float) -> Tensor:
        """The loss of the last training forward times a weight; once."""
        statistics, self.statistics = self.statistics, None
        assert statistics is not None
        if not statistics.table.requires_grad:
            self.watch.tell(
                "frozen",
                f"no gradient reaches layer {self.name!r}: everything before it is frozen, so its "
                f"atom loss trains nothing; attach after the first trained layer",
            )
        loss = self.attachment.criterion.from_statistics(statistics, weight)
        if not torch.compiler.is_compiling() and self.charge is not None:
            self.watch.look(loss, statistics, self.charge)
        return loss

    def _why_nothing(self) -> str:
        if not self.attachment.active:
            return "was detached, and with it went what was held of its last forward"
        if self.numbers is not None and not self.idle_reason:
            return (
                "has no new forward: loss() gives each forward's loss once; keep its value, or "
                "run the model again"
            )
        if self.idle_reason:
            return f"{self.idle_reason}: there is no loss of that"
        return (
            "has not run since it was attached. Run the model first; if it did run, the layer is "
            "not part of its forward, or the model was called compiled before attaching: attach "
            "before the first compiled call, or call torch.compiler.reset() after attaching"
        )

    def importance(self) -> Tensor:
        """Charges of the last forward, in the shape of the tokens."""
        if self.charge is None or self.read_as is None:
            raise RuntimeError(f"layer {self.name!r} {self._why_nothing()}")
        layout, shape = self.read_as
        return layout.unflatten(self.charge.detach(), shape).float()

    def stats(self) -> dict[str, float]:
        """The parts of the loss of the last training forward, as numbers."""
        numbers = self.numbers
        if numbers is None:
            raise RuntimeError(f"layer {self.name!r} {self._why_nothing()}")
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
        return values


def _in_backward() -> bool:
    """Whether a backward pass is running, as when a checkpoint is recomputed."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
