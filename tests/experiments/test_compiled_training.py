"""The large experiments train compiled as they do uncompiled."""

from __future__ import annotations

from functools import partialmethod
from pathlib import Path

import pytest
import torch

from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context, Task

FACES = ("width=8", "z=8", "train_samples=12", "samples=4", "batch=4", "learning_rate=1e-3")


def make_task(name: str, folder: Path, *changes: str) -> Task:
    experiment = find_experiment(name)
    settings = run_key(experiment, "atom", 0, changes, tiny=True).settings
    fabric = make_fabric(Machine(device="cpu"), settings.precision)
    seed_step(0, "initial weights")
    return experiment.build(Context(settings, "atom", 0, fabric, folder, tiny=True))


def losses(task: Task, steps: int) -> list[dict[str, float]]:
    found = []
    for step, batch in zip(range(steps), task.batches(0, 0), strict=False):
        seed_step(0, "step", 0, step)
        parts = task.step(batch, step / 100)
        found.append({name: float(value) for name, value in parts.items()})
    return found


# Dynamo looks at all attributes of a tensor that another model computed.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("faces-gan", (*FACES, "features=tiny_gans:Means")),
        ("imagenet", ()),
    ],
    ids=["faces", "imagenet"],
)
def test_a_compiled_task_has_the_losses_of_an_uncompiled_one(
    name: str, changes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generator alone, as the faces have R1, and the first stage of ImageNet's ResNet."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "gan")
    expected = losses(make_task(name, tmp_path, *changes), 3)
    compiled: list[torch.nn.Module] = []
    compile_ = torch.nn.Module.compile

    def noted(module: torch.nn.Module, *, backend: str) -> None:
        compiled.append(module)
        compile_(module, backend=backend)

    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(noted, backend="aot_eager"))
    torch._dynamo.reset()
    found = losses(make_task(name, tmp_path, *changes, "compile=true"), 3)
    assert len(compiled) == 1
    assert len(found) == 3
    for ours, plain in zip(found, expected, strict=True):
        assert ours.keys() == plain.keys()
        assert "method" in ours
        assert ours == pytest.approx(plain, rel=1e-3)
