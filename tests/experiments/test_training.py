"""The loop: what it writes, how it continues, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import start
from tiny_runs import read_metrics
from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.progress import Listener, Meter
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import Run, RunKey
from atomsep.experiments.task import Context, Task
from atomsep.experiments.training import StoppedError, train

SYNTHETIC = find_experiment("synthetic")
SAMPLED = ("method.pairs=sampled", "method.tokens=3")
"""Makes atom modeling draw random numbers of its own, the hardest case for continuing."""


def tiny(method: str = "plain", seed: int = 0, *settings: str) -> RunKey:
    return run_key(SYNTHETIC, method, seed, settings, tiny=True)


def run(key: RunKey, root: Path, **machine: Any) -> dict[str, Any]:
    return train(SYNTHETIC, key, root, Machine(tensorboard=False, **machine))


def weights(key: RunKey, root: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(Run(key.folder(root)).model, weights_only=True)["model"]
    return state


def without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "seconds"}


class StopAt(Listener):
    """Ends the run by an exception when an epoch is evaluated, as a crash would."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def evaluated(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        if epoch == self.epoch:
            raise MemoryError


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
    names = {"gradient_share", "gradient_share_charge", "gradient_share_positions"}
    assert result["strength_at_start"].keys() == names
    assert all(share > 0 for share in result["strength_at_start"].values())
    assert result["tiny"] is True
    lines = read_metrics(folder)
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 4), (2, 8)]
    assert all(names < line.keys() for line in lines)
    assert lines[-1] == result["last_epoch"]
    assert result["broken_down"] is None
    assert not (folder / "checkpoint.pt").exists()
    assert set(weights(key, tmp_path)) == {"embed.weight", "embed.bias", "head.weight", "head.bias"}


def test_the_result_can_be_the_mean_over_the_last_epochs(tmp_path: Path) -> None:
    key = tiny("plain", 0, "epochs=4", "average_last=3")
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


@pytest.mark.parametrize("method", ["atom", "simclr"])
def test_a_crashed_run_continues_and_ends_bit_for_bit_as_an_unbroken_one(
    tmp_path: Path, method: str
) -> None:
    options = ("epochs=4", "evaluate_every=1", *(SAMPLED if method == "atom" else ()))
    key = tiny(method, 0, *options)
    unbroken = run(key, tmp_path / "unbroken")
    machine = Machine(tensorboard=False, checkpoint_seconds=0)
    for epoch in (1, 3):
        with pytest.raises(MemoryError):
            train(SYNTHETIC, key, tmp_path / "broken", machine, StopAt(epoch))
    broken = train(SYNTHETIC, key, tmp_path / "broken", machine)
    assert broken["metrics"] == unbroken["metrics"]
    lines = [read_metrics(key.folder(tmp_path / each)) for each in ("unbroken", "broken")]
    assert [without_times(x) for x in lines[0]] == [without_times(x) for x in lines[1]]
    for name, value in weights(key, tmp_path / "broken").items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[name]), name


@pytest.mark.parametrize(("name", "method"), [("pets", "simclr"), ("cola", "mixcse")])
def test_images_and_text_continue_bit_for_bit(tmp_path: Path, name: str, method: str) -> None:
    experiment = find_experiment(name)
    key = run_key(experiment, method, 0, ("evaluate_every=1",), tiny=True)
    machine = Machine(tensorboard=False, workers=1, checkpoint_seconds=0)
    unbroken = train(experiment, key, tmp_path / "unbroken", machine)
    with pytest.raises(MemoryError):
        train(experiment, key, tmp_path / "broken", machine, StopAt(1))
    broken = train(experiment, key, tmp_path / "broken", machine)
    assert broken["metrics"] == unbroken["metrics"]
    for part, value in weights(key, tmp_path / "broken").items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[part]), part


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    key = tiny()
    folder = key.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes(b"PK\x03\x04 half of one")
    with pytest.raises(
        ExperimentError, match="checkpoint.pt cannot be used .* remove it to start the run over"
    ):
        run(key, tmp_path)


def spoil_nothing(state: dict[str, Any]) -> None:
    """The checkpoint as it was written."""


def spoil_a_part(state: dict[str, Any]) -> None:
    del state["parts"]["optimiser"]


def spoil_a_shape(state: dict[str, Any]) -> None:
    state["parts"]["model"]["head.weight"] = torch.zeros(3)


def spoil_the_lines(state: dict[str, Any]) -> None:
    state["lines"] = []


def spoil_a_line(state: dict[str, Any]) -> None:
    state["lines"] = [line.replace('"step": 4', '"step": 3') for line in state["lines"]]


@pytest.mark.parametrize(
    "spoil",
    [
        *(spoil_nothing, spoil_a_part, spoil_a_shape, spoil_the_lines, spoil_a_line),
        *(lambda state: state.pop("meter"), lambda state: state.update(epoch="third")),
        *(lambda state: state.update(parts=[]), lambda state: state.clear()),
    ],
)
def test_a_checkpoint_that_lacks_something_is_named(tmp_path: Path, spoil: Any) -> None:
    key = tiny("plain", 0, "evaluate_every=1")
    machine = Machine(tensorboard=False, checkpoint_seconds=0)
    with pytest.raises(MemoryError):
        train(SYNTHETIC, key, tmp_path, machine, StopAt(2))
    on_disk = Run(key.folder(tmp_path))
    state = on_disk.load_checkpoint(torch.device("cpu"))
    assert state is not None
    spoil(state)
    torch.save(state, on_disk.checkpoint)
    if spoil is spoil_nothing:
        assert run(key, tmp_path)["metrics"]
        return
    with pytest.raises(ExperimentError, match=r"checkpoint.pt cannot be used \(\w+Error"):
        run(key, tmp_path)
    on_disk.checkpoint.unlink()
    assert run(key, tmp_path)["metrics"], "as the message says, it starts over"


def train_with_checkpoints(key: RunKey, root: Path) -> None:
    run(key, root, checkpoint_seconds=0.05)


def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path) -> None:
    """kill -9 of a real process, three times, somewhere."""
    key = tiny("atom", 0, "epochs=60", "train_samples=512", *SAMPLED)
    unbroken = run(key, tmp_path / "unbroken")
    root = tmp_path / "killed"
    folder = key.folder(root)
    for _ in range(3):
        before = len(read_metrics(folder))
        process = start(train_with_checkpoints, key, root)
        while len(read_metrics(folder)) <= before + 2 and process.is_alive():
            time.sleep(0.005)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    state = Run(folder).load_checkpoint(torch.device("cpu"))
    assert state is not None
    assert 0 < state["epoch"] < 60
    (folder / ".checkpoint.pt.1.part").write_text("half a checkpoint")
    result = run(key, root, checkpoint_seconds=1000)
    assert not list(folder.glob(".*.part"))
    assert result["metrics"] == unbroken["metrics"]
    assert without_times(result["last_epoch"]) == without_times(unbroken["last_epoch"])
    for name, value in weights(key, root).items():
        assert torch.equal(value, weights(key, tmp_path / "unbroken")[name]), name


def test_interrupted_it_stops_between_steps_with_a_checkpoint(tmp_path: Path) -> None:
    key = tiny("plain", 0, "epochs=2000")

    def interrupt() -> None:
        while not read_metrics(key.folder(tmp_path)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(StoppedError, match="stopped in epoch .* with a checkpoint"):
        run(key, tmp_path, checkpoint_seconds=1000)
    thread.join()
    state = Run(key.folder(tmp_path)).load_checkpoint(torch.device("cpu"))
    assert state is not None
    assert state["epoch"] > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
