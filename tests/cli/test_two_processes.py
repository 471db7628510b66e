"""`atomsep train --devices 2` in real processes, against one process with the whole batch."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tiny_runs import read_metrics

from atomsep.experiments import loop
from atomsep.experiments.gan.styleswin.faces import Faces
from atomsep.experiments.machine import Machine
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run
from atomsep.experiments.training import train

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

UNEVEN = "batch=83"
"""256 samples: three batches, which two processes share as 42 and 41, and a rest, as 4 and 3."""

OF_ONE_PROCESS = ("seconds", "position_share", "metrics")
"""What is not the same on a line: the second is that of the first process, the last rounds."""


PLAIN_MODEL = """
from torch import nn

def make(num_classes):
    convolution = nn.Conv2d(3, 8, 5, stride=2)
    return nn.Sequential(convolution, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(32, num_classes))
"""
"""Without batch norm, which normalises by the samples of its process, and without dropout."""

IMAGES = ("model=plain_model:make", "layer=0", "epochs=1", "batch=43", "image=16", "stages=4")
"""192 digits with crops and flips: four batches, shared as 22 and 21, and a rest, as 10 and 10."""


def two_processes(
    folder: Path,
    experiment: str,
    settings: tuple[str, ...],
    launcher: list[str],
    options: tuple[str, ...] = (),
) -> None:
    """Train with `--devices 2` in a subprocess, into `two` in the folder."""
    words = [word for setting in settings for word in ("--set", setting)]
    given = ["train", experiment, "--tiny", "--device", "cpu", "--devices", "2", "--out", "two"]
    command = [sys.executable, *launcher, "-m", "atomsep", *options, *given, *words]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Training") == 1, "one process speaks for all"


@pytest.mark.parametrize(
    ("name", "settings", "launcher"),
    [("synthetic", (UNEVEN,), []), ("synthetic", (UNEVEN,), TORCHRUN), ("pets", IMAGES, [])],
    ids=["atomsep", "torchrun", "images"],
)
def test_two_processes_train_the_model_that_one_trains(
    tmp_path: Path,
    name: str,
    settings: tuple[str, ...],
    launcher: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "plain_model.py").write_text(PLAIN_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = find_experiment(name)
    key = run_key(experiment, "atom", 0, settings, tiny=True)
    machine = Machine(device="cpu", tensorboard=False)
    expected = train(experiment, key, tmp_path / "one", machine)
    two_processes(tmp_path, name, settings, launcher)
    one, two = Run(key.folder(tmp_path / "one")), Run(key.folder(tmp_path / "two"))
    known, found = (torch.load(run.model, weights_only=True)["model"] for run in (one, two))
    for name, value in known.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    result = json.loads(two.result.read_text())
    assert result["metrics"] == pytest.approx(expected["metrics"], abs=0.005)
    lines = zip(read_metrics(one.folder), read_metrics(two.folder), strict=True)
    for of_one, of_two in lines:
        for name, value in of_one.items():
            if name not in OF_ONE_PROCESS:
                assert of_two[name] == pytest.approx(value, rel=1e-3), name
    assert result["strength_at_start"] == pytest.approx(expected["strength_at_start"], rel=1e-4)


def test_two_processes_train_faces(tmp_path: Path) -> None:
    """A GAN whose discriminator has steps of its own; one process has other noise."""
    few = ("train_samples=16", "samples=4", "r1_every=2", "evaluate_every=2")
    two_processes(tmp_path, "faces-gan", few, [])
    [result] = (tmp_path / "two").rglob("result.json")
    assert len(read_metrics(result.parent)) == 2
    for line in read_metrics(result.parent):
        losses = [line[name] for name in ("discriminator", "generator", "consistency", "method")]
        assert all(math.isfinite(loss) for loss in losses)
    assert (result.parent / "importance.png").exists()


ONE_SEED = """
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from atomsep.experiments import loop
from atomsep.experiments.gan.styleswin.faces import Faces
from atomsep.experiments.randomness import seed_step

step = Faces.step

def in_float64(task, batch, progress):
    torch.set_default_dtype(torch.float64)
    try:
        return step(task, batch, progress)
    finally:
        torch.set_default_dtype(torch.float32)

Faces.step = in_float64
loop.seed_step = lambda seed, purpose, epoch, step, *rank: seed_step(seed, purpose, epoch, step)

class Means(nn.Module):
    def forward(self, images):
        return adaptive_avg_pool2d(images.float().mean(1, keepdim=True), 2).flatten(1)
"""
"""All processes draw the same noise, of which each takes its part.

In float64, also what Fabric hands on: Adam's first steps are signs of gradients, even of tiny ones.
"""


def test_two_processes_with_one_noise_train_the_faces_that_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of eight, so that the groups of four of the discriminator's deviation are whole."""
    (tmp_path / "one_seed.py").write_text(ONE_SEED)
    monkeypatch.syspath_prepend(tmp_path)
    settings = (
        *("train_samples=24", "samples=8", "batch=8", "r1_every=2", "consistency=0"),
        *("precision=64-true", "features=one_seed:Means", "decay_from=0.5"),
    )
    experiment = find_experiment("faces-gan")
    key = run_key(experiment, "atom", 0, settings, tiny=True)
    with monkeypatch.context() as patch:
        for place, name in ((loop, "seed_step"), (Faces, "step")):
            patch.setattr(place, name, getattr(place, name))  # to be restored
        import_module("one_seed")
        train(experiment, key, tmp_path / "one", Machine(device="cpu", tensorboard=False))
    two_processes(tmp_path, "faces-gan", settings, [], ("--import", "one_seed"))
    one, two = (
        torch.load(Run(key.folder(tmp_path / name)).model, weights_only=True)
        for name in ("one", "two")
    )
    assert set(one) == {"generator", "discriminator", "ema"}
    for network, state in one.items():
        for name, value in state.items():
            torch.testing.assert_close(two[network][name], value, rtol=0, atol=1e-5, msg=name)
    lines = [read_metrics(key.folder(tmp_path / name)) for name in ("one", "two")]
    assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
    for of_one, of_two in zip(*lines, strict=True):
        if "method" in of_one:
            assert of_two["method"] == pytest.approx(of_one["method"], rel=1e-6)
