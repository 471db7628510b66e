"""The loop: what it writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mixture_runs import SAMPLED, SYNTHETIC, StopAt, run, tiny, weights, without_times
from tiny_runs import SHARES, read_metrics
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.progress import Meter
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run
from atomsep.experiments.task import Context, Task
from atomsep.experiments.training import train


def test_the_result_file_tells_the_whole_story(tmp_path: Path) -> None:
    key = tiny("atom", 3)
    result = run(key, tmp_path)
    folder = key.folder(tmp_path)
    assert result == json.loads((folder / "result.json").read_text())
    assert result["settings"]["weight"] == 12.5
    assert (result["experiment"], result["method"], result["seed"]) == ("synthetic", "atom", 3)
    assert result["versions"]["torch"] == torch.__version__.split("+")[0]
    assert result["machine"]["threads"] >= 1
    assert result["commit"] is None or len(result["commit"].rstrip("+")) == 40
    assert result["strength_at_start"].keys() == SHARES
    assert all(share > 0 for share in result["strength_at_start"].values())
    assert result["tiny"] is True
    first, *lines = read_metrics(folder, start=True)
    assert without_times(first) == {"epoch": 1, "step": 1, **result["strength_at_start"]}
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 4), (2, 8)]
    assert all(line.keys() > SHARES for line in lines)
    assert lines[-1] == result["last_epoch"]
    assert result["broken_down"] is None
    assert not (folder / "checkpoint.pt").exists()
    assert set(weights(key, tmp_path)) == {"embed.weight", "embed.bias", "head.weight", "head.bias"}


def test_a_first_step_that_is_an_end_has_one_line(tmp_path: Path) -> None:
    key = tiny("atom", 0, "epochs=2", "batch=256")
    result = run(key, tmp_path)
    first, last = read_metrics(key.folder(tmp_path), start=True)
    assert (first["step"], last["step"]) == (1, 2)
    assert {name: first[name] for name in SHARES} == result["strength_at_start"]
    assert "metrics" in first


def test_the_result_can_be_the_mean_over_the_last_epochs(tmp_path: Path) -> None:
    key = tiny("plain", 0, "epochs=4", "average_last=3", "evaluate_every=0")
    result = run(key, tmp_path)
    lines = read_metrics(key.folder(tmp_path))
    assert ["metrics" in line for line in lines] == [False, True, True, True]
    accuracies = [line["metrics"]["accuracy"] for line in lines[1:]]
    assert len(set(accuracies)) > 1
    assert result["metrics"]["accuracy"] == pytest.approx(sum(accuracies) / 3, abs=1e-6)


def test_epochs_are_evaluated_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    key = tiny("plain", 0, "epochs=5", "evaluate_every=2")
    result = run(key, tmp_path)
    lines = read_metrics(key.folder(tmp_path))
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20]
    assert [line["epoch"] for line in lines if "metrics" in line] == [2, 4, 5]
    assert result["metrics"] == lines[-1]["metrics"]


def test_the_accuracy_is_that_of_the_saved_model(tmp_path: Path) -> None:
    from atomsep.experiments.randomness import generator
    from atomsep.experiments.synthetic.mixtures import MixtureClassifier, draw

    key = tiny("plain", 5)
    result = run(key, tmp_path)
    model = MixtureClassifier()
    model.load_state_dict(weights(key, tmp_path))
    samples = draw(500, generator(5, "test samples"))
    right = (model(samples.values).argmax(1) == samples.labels).double().mean()
    assert result["metrics"]["accuracy"] == pytest.approx(float(right), abs=1e-6)


def test_a_run_is_an_ordinary_loop(tmp_path: Path) -> None:
    """The same training written out with plain PyTorch gives the same weights to the last bit."""
    from atomsep.experiments.loading import epoch_batches
    from atomsep.experiments.randomness import derive, generator
    from atomsep.experiments.synthetic.mixtures import MixtureClassifier, draw

    key = tiny("plain", 2)
    run(key, tmp_path)
    torch.manual_seed(derive(2, "initial weights"))
    model = MixtureClassifier()
    samples = draw(256, generator(2, "training samples"))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    for epoch in range(2):
        for indices in epoch_batches(256, 64, 2, epoch):
            logits = model(samples.values[indices])
            loss = torch.nn.functional.cross_entropy(logits, samples.labels[indices])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for name, value in weights(key, tmp_path).items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_one_seed_repeats_and_two_differ(tmp_path: Path) -> None:
    first = run(tiny("atom", 0), tmp_path / "a")
    again = run(tiny("atom", 0), tmp_path / "b")
    other = run(tiny("atom", 1), tmp_path / "a")
    assert first["metrics"] == again["metrics"]
    assert without_times(first["last_epoch"]) == without_times(again["last_epoch"])
    assert first["last_epoch"]["cross-entropy"] != other["last_epoch"]["cross-entropy"]


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("synthetic", SYNTHETIC.methods[1:]),
        ("pets", ("rank-h", "simclr", "atom")),  # batch norm
        ("cola", ("simcse", "mixcse", "atom")),  # dropout
        ("mnist-gan", ("sscl", "atom")),
    ],
)
def test_methods_differ_by_their_loss_alone(
    tmp_path: Path, name: str, methods: tuple[str, ...]
) -> None:
    """With weight 0 every method is the plain one, whatever it draws or runs for itself."""
    experiment = find_experiment(name)
    states, metrics = {}, {}
    for method in ("plain", *methods):
        options = SAMPLED if method.startswith("atom") else ()
        key = run_key(experiment, method, 0, ("weight=0", *options), tiny=True)
        metrics[method] = train(experiment, key, tmp_path, Machine(tensorboard=False))["metrics"]
        states[method] = torch.load(Run(key.folder(tmp_path)).model, weights_only=True)
    for method in methods:
        assert metrics[method] == metrics["plain"], method
        for part, state in states["plain"].items():
            for tensor, value in state.items():
                assert torch.equal(value, states[method][part][tensor]), (method, tensor)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_train_and_evaluate(tmp_path: Path, precision: str) -> None:
    key = tiny("atom", 0, f"precision={precision}")
    result = run(key, tmp_path)
    assert 0.5 < result["metrics"]["accuracy"] <= 1
    dtypes = {value.dtype for value in weights(key, tmp_path).values()}
    assert dtypes == {torch.float64 if precision == "64-true" else torch.float32}


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    key = tiny()
    first = run(key, tmp_path)
    path = key.folder(tmp_path) / "model.pt"
    before = path.stat().st_mtime_ns
    assert run(key, tmp_path) == first
    assert path.stat().st_mtime_ns == before


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    run(tiny("atom"), tmp_path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_tensorboard_gets_every_line_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    key = tiny("atom", 0, "epochs=3", "evaluate_every=1")
    machine = Machine(checkpoint_seconds=0)
    with pytest.raises(MemoryError):
        train(SYNTHETIC, key, tmp_path, machine, StopAt(2))
    train(SYNTHETIC, key, tmp_path, machine)
    events = EventAccumulator(str(key.folder(tmp_path) / "tensorboard"))
    events.Reload()
    for name in ("cross-entropy", "method", "accuracy"):
        assert [event.step for event in events.Scalars(name)] == [4, 8, 12]
    for name in SHARES:
        assert [event.step for event in events.Scalars(name)] == [1, 4, 8, 12]


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="not a number in epoch 1; lower the learning rate"):
        run(tiny("plain", 0, "learning_rate=1e38"), tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU cannot miss one")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ExperimentError, match="torch sees no GPU"):
        make_fabric(Machine(device="cuda"), "32-true")


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(ExperimentError, match="must be auto, cpu, cuda or mps, not 'gpu0'"):
        make_fabric(Machine(device="gpu0"), "32-true")


def test_a_batch_without_two_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="a batch of 1 gives each process fewer than two"):
        run(tiny("plain", 0, "batch=1"), tmp_path)


class ShortTask(Task):
    """Promises more batches than it gives."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.steps = 3

    def batches(self, epoch: int, start: int) -> list[int]:
        return [1, 2]

    def step(self, batch: Any, progress: float) -> dict[str, Tensor]:
        return {"task": torch.zeros(())}

    def evaluate(self) -> dict[str, float]:
        return {}

    def parts(self) -> dict[str, Any]:
        return {}


def test_an_epoch_with_too_few_batches_is_an_error(tmp_path: Path) -> None:
    experiment = replace(SYNTHETIC, build=ShortTask)
    with pytest.raises(ExperimentError, match="had 2 batches, not 3 as announced"):
        train(experiment, tiny(), tmp_path, Machine(tensorboard=False))


def test_means_keep_no_tensor_that_the_next_step_overwrites() -> None:
    """As a CUDA graph does, whatever the precision."""
    meter, loss = Meter(), torch.tensor(1.0, dtype=torch.float64)
    meter.add({"loss": loss})
    loss.fill_(3.0)
    meter.add({"loss": loss})
    assert meter.means() == {"loss": 2.0}
