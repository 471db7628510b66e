"""Copies of parts of an attached model, and layers that are wrapped or replaced afterwards."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, hooks_of, mlp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import atomsep
from atomsep.hooks.targets import find_layers


class Model(nn.Module):
    """A small backbone below a large head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(3, 8), nn.ReLU())
        self.head = nn.Linear(8, 100_000)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.backbone(x).mean(1))


def saved(module: Any) -> bytes:
    file = io.BytesIO()
    torch.save(module, file)
    return file.getvalue()


def unsaved(module: Any) -> Any:
    return torch.load(io.BytesIO(saved(module)), weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": unsaved,
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


# Copies of a part


def test_a_saved_part_does_not_bring_the_model_along() -> None:
    model = Model()
    plain = len(saved(model.backbone))
    attachment = atomsep.attach(model, "backbone.0")
    model(batch())
    attachment.loss()
    assert len(saved(model.backbone)) < plain + 5_000
    assert len(saved(model)) > 3_000_000


@ways
def test_a_copied_part_runs_as_if_nothing_were_attached(way: Callable[[Any], Any]) -> None:
    model, x = Model(), batch()
    attachment = atomsep.attach(model, "backbone.0", weight=1.0, mask=False)
    model(x)
    part = way(model.backbone)
    assert atomsep.attachments(part) == []
    torch.testing.assert_close(part(2 * x), model.backbone.requires_grad_(True)(2 * x).detach())
    names = {str(part(x).grad_fn), str(part[0](x).grad_fn)}
    assert not any("Atoms" in name for name in names)
    with atomsep.attach(part, "0", weight=1.0) as own:  # and can be attached to
        assert hooks_of(part) == 3  # one on the layer, two that note the input
        part(x)
        model(x)
        torch.testing.assert_close(own.loss(), attachment.loss())


@ways
@pytest.mark.parametrize("outer", [False, True])
def test_a_copy_of_the_whole_model_is_attached(way: Callable[[Any], Any], outer: bool) -> None:
    """Alone, or inside a module that also refers to a part of it."""
    model, x = Model(), batch()
    attachment = atomsep.attach(model, "backbone.0", weight=1.0)
    again = atomsep.attach(model, "backbone.0", atomsep.AtomLoss(norm=1), weight=1.0)
    module: Any = model
    if outer:
        module = nn.Module()
        module.part, module.model = model.backbone, model
    twin = way(module)
    twin = twin.model if outer else twin
    copied = atomsep.attachments(twin)
    assert [each.model for each in copied] == [twin, twin]
    assert not {*copied} & {attachment, again}
    for one, other in zip(copied, (attachment, again), strict=True):
        twin(x)
        model(x)
        torch.testing.assert_close(one.loss(), other.loss())
        one.detach()
    assert "_atomsep_attachments" not in vars(twin)
    assert atomsep.attachments(model) == [attachment, again]


def test_a_copied_attachment_brings_its_model() -> None:
    attachment = atomsep.attach(mlp(), "0", weight=1.0)
    twin = copy.deepcopy(attachment)
    assert twin.model is not attachment.model
    twin.model(batch())
    assert twin.loss().requires_grad


# Layers that are wrapped or replaced


@pytest.mark.parametrize("steps", [0, 20])
def test_a_layer_that_lora_wraps_afterwards(steps: int) -> None:
    from peft import LoraConfig, get_peft_model

    model, x = Model(), batch()
    attachment = atomsep.attach(model, "backbone.0", weight=1.0)
    for _ in range(steps):
        model(x)
        attachment.loss()
    wrapped: Any = get_peft_model(model, LoraConfig(target_modules=["backbone.0"], r=2))
    wrapped.train()
    wrapped(x)
    for read in attachment.loss, lambda: attachment.importance, lambda: attachment.stats:
        with pytest.raises(RuntimeError, match="'backbone.0' was wrapped in peft's Linear after"):
            read()
    attachment.detach()
    layer = model.backbone[0]
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_()
    attachment = atomsep.attach(wrapped, "*backbone.0", weight=1.0, mask=False)
    wrapped(x)
    torch.testing.assert_close(attachment.loss(), atomsep.AtomLoss()(layer(x)))


def test_lora_on_other_layers_is_no_matter() -> None:
    from peft import LoraConfig, get_peft_model

    model, x = Model(), batch()
    expected = atomsep.AtomLoss()(model.backbone[0](x).detach())
    attachment = atomsep.attach(model, "backbone.0", weight=1.0)
    wrapped: Any = get_peft_model(model, LoraConfig(target_modules=["head"], r=2))
    model.backbone.requires_grad_(True)
    wrapped.train()
    wrapped(x)
    torch.testing.assert_close(attachment.loss(), expected)


def test_a_layer_that_is_replaced() -> None:
    model, x = Model(), batch()
    attachment = atomsep.attach(model, "backbone.0")
    model(x)
    attachment.loss()
    model.backbone[0] = nn.Linear(3, 8)
    model(x)
    with pytest.raises(RuntimeError, match="'backbone.0' was replaced by torch's Linear after it"):
        attachment.loss()
    converted = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    attachment = atomsep.attach(converted, "1")
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(converted)
    with pytest.raises(RuntimeError, match="replaced by torch's SyncBatchNorm"):
        attachment.loss()


@pytest.mark.parametrize("kind", ["compiled", "checkpointed"])
def test_wrappers_that_keep_the_output_as_it_is(kind: str) -> None:
    torch.compiler.reset()
    model, x = Model(), batch()
    attachment = atomsep.attach(model, "backbone.0", weight=1.0)
    expected = atomsep.AtomLoss()(nn.functional.linear(x, *model.backbone[0].parameters()))
    if kind == "compiled":
        model.backbone[0] = torch.compile(model.backbone[0], backend="eager")  # type: ignore[assignment]
    else:
        model.backbone = checkpoint_wrapper(model.backbone)  # type: ignore[assignment]
    for _ in range(2):
        (model(x).sum() + (loss := attachment.loss())).backward()
        torch.testing.assert_close(loss, expected)


# Names that a wrapper doubles


def wrap_compiled(layer: nn.Module) -> Any:
    return torch.compile(layer, backend="eager")


@pytest.mark.parametrize("wrap", [wrap_compiled, checkpoint_wrapper])
@pytest.mark.parametrize("target", ["backbone.0", "backbone.*0", "*0", ["backbone.0", "*.0"]])
def test_a_wrapped_layer_is_found_once(wrap: Any, target: Any) -> None:
    model = Model()
    inner = model.backbone[0]
    model.backbone[0] = wrap(inner)
    assert list(find_layers(model, target).values()) == [inner]


@pytest.mark.filterwarnings("ignore:FSDP", "ignore:.*NO_SHARD")
def test_a_sharded_layer_is_found_once(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Model()
        inner = model.backbone[0]
        try:
            cpu = torch.device("cpu")
            model.backbone[0] = FullyShardedDataParallel(inner, device_id=cpu)
        except (RuntimeError, ValueError) as error:
            pytest.skip(f"this version shards on GPUs alone: {error}")
        assert list(find_layers(model, "*0").values()) == [inner]
        assert list(find_layers(model, "backbone.0").values()) == [inner]
    finally:
        torch.distributed.destroy_process_group()
