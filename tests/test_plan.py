"""What the documentation says of the full runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from atomsep.experiments.gan.experiments import FacesSettings
from atomsep.experiments.gan.pictures import Pictures
from atomsep.experiments.gan.styleswin.build import make_networks
from atomsep.experiments.gan.styleswin.faces import Faces
from atomsep.experiments.loading import epoch_batches
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.task import Context
from benchmarks import plan

PAGE = (Path(__file__).parent.parent / "docs" / "experiments.md").read_text()


def test_steps_and_evaluations_are_those_of_the_settings() -> None:
    settings = FacesSettings()
    per_pass = len(epoch_batches(plan.FACES, settings.batch, seed=0, epoch=0))
    steps = settings.epochs * per_pass
    points = settings.evaluation_points(per_pass)
    words = " ".join(PAGE.split())
    said = f"{settings.epochs} passes of {per_pass} steps are {steps:,} steps of {settings.batch}"
    assert said in words
    every, first = settings.evaluate_every, points[0]
    said = f"there are {len(points)}, every {every:,} steps and counted back from the end, so the"
    assert f"{said} first is in step {first}" in words
    assert f"{settings.samples:,} samples twice" in words
    assert settings.ema > 0, "the average generates them the second time"
    assert plan.steps_of(plan.FACES, settings.batch) == per_pass


@pytest.mark.parametrize("consistency", [0.0, 10.0])
def test_operations_are_those_of_the_training_step(consistency: float) -> None:
    """Counted without computing anything, and in a step of the training."""
    settings = replace(
        FacesSettings(), size=16, width=16, z=8, batch=4, epochs=1, consistency=consistency
    )
    with FakeTensorMode():
        found = plan.count_styleswin(settings)
    images = Pictures(torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8), None)
    judge: Any = None
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    task = Faces(
        Context(settings, "plain", 0, fabric, Path()), *make_networks(settings), images, judge
    )
    [batch] = task.batches(0, 0)
    counts = []
    for penalised in (False, True):
        with FlopCounterMode(display=False) as counter:
            task.compute(batch, penalised)
        counts.append(counter.get_total_flops() / 4e9)
    assert found.step == pytest.approx(counts[0], rel=0.01)
    assert found.step + found.penalty == pytest.approx(counts[1], rel=0.01)
    assert found.step > 3 * found.generator + 7 * found.discriminator


@pytest.mark.slow
def test_the_documentation_shows_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan.main()
    printed = capsys.readouterr().out
    assert "".join(f"    {line}\n" for line in printed.splitlines()) in PAGE
