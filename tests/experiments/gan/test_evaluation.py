"""When a GAN is evaluated, what of, and that nothing changes by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gans import bare, crashing_at, run, saved_models, steps_kept, task_of, trained
from tiny_runs import read_metrics
from torch import Tensor

from atomsep.experiments.gan.adversarial import Gan
from atomsep.experiments.gan.average import Average
from atomsep.experiments.gan.dcgan import Generator
from atomsep.experiments.gan.experiments import DcganSettings
from atomsep.experiments.randomness import seed_step


def equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    assert first.keys() == second.keys()
    for part, state in first.items():
        for name, value in state.items():
            assert torch.equal(value, second[part][name]), (part, name)


@pytest.mark.parametrize("method", ["atom", "vq"])
def test_evaluating_changes_nothing(method: str, tmp_path: Path) -> None:
    """Not a weight, not a batch norm's running statistics, not a loss."""
    lines, models = [], []
    for every in (0, 2):
        key = bare(method, 0, f"evaluate_every={every}", "samples=8", "train_samples=64")
        run(key, tmp_path)
        lines.append(read_metrics(key.folder(tmp_path)))
        models.append(saved_models(key, tmp_path))
    assert [line["step"] for line in lines[0]] == [2, 4]
    assert lines[0][-1]["generator"] == lines[1][-1]["generator"]
    counts = models[0]["generator"]["main.1.num_batches_tracked"]
    assert counts == 4, "the running statistics are those of the steps"
    equal(*models)


def test_steps_are_counted_back_from_the_end(tmp_path: Path) -> None:
    key = bare("plain", 0, "train_samples=160", "evaluate_every=4", "average_last=2", "samples=8")
    result = run(key, tmp_path)
    lines = read_metrics(key.folder(tmp_path))
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 2), (1, 5), (2, 6), (2, 10)]
    evaluated = {line["step"]: line["metrics"] for line in lines if "metrics" in line}
    assert list(evaluated) == [2, 6, 10]
    for name, value in result["metrics"].items():
        assert value == pytest.approx((evaluated[6][name] + evaluated[10][name]) / 2, abs=1e-6)
    settings = DcganSettings(epochs=3, evaluate_every=7)
    assert settings.evaluation_points(7) == [7, 14, 21]
    assert settings.evaluation_points(1) == [3], "fewer steps than lie between evaluations"


def test_the_losses_of_a_line_are_means_since_the_one_before(tmp_path: Path) -> None:
    key = bare("plain", 0, "train_samples=160", "evaluate_every=3", "samples=8", "epochs=1")
    run(key, tmp_path)
    task = task_of(key)
    losses: list[float] = []
    for step, batch in enumerate(task.batches(0, 0)):
        seed_step(0, "step", 0, step)
        losses.append(float(task.step(batch, 0.0)["discriminator"]))
    first, second = read_metrics(key.folder(tmp_path))
    assert first["discriminator"] == pytest.approx(sum(losses[:2]) / 2, rel=1e-6)
    assert second["discriminator"] == pytest.approx(sum(losses[2:]) / 3, rel=1e-6)


@pytest.mark.parametrize("crash", [1, 2, 3, 6, 7])
def test_killed_between_or_after_evaluations_it_ends_the_same(
    crash: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of four steps, evaluated after 2, 5 and 8; a crash in any step."""
    key = bare("plain", 0, "train_samples=128", "evaluate_every=3", "samples=8", "batch=32")
    unbroken = run(key, tmp_path / "unbroken")
    with crashing_at(crash, monkeypatch), pytest.raises(MemoryError):
        run(key, tmp_path / "broken", checkpoint_seconds=0)
    assert steps_kept(key, tmp_path / "broken", per_epoch=4) == crash
    broken = run(key, tmp_path / "broken", checkpoint_seconds=0)
    assert broken["metrics"] == unbroken["metrics"]
    equal(*(saved_models(key, tmp_path / name) for name in ("unbroken", "broken")))
    both = [read_metrics(key.folder(tmp_path / name)) for name in ("unbroken", "broken")]
    assert [line["step"] for line in both[0]] == [2, 4, 5, 8]
    assert [{**line, "seconds": 0} for line in both[0]] == [
        {**line, "seconds": 0} for line in both[1]
    ]


def test_the_average_is_that_of_the_formula() -> None:
    """From the first weights, with the share 1 - d of the newest, which is more at first."""
    task = task_of(bare("plain", 0, "ema=0.2"))
    assert task.average is not None
    expected = {name: value.double() for name, value in task.inner.named_parameters()}
    for step, batch in zip(range(4), task.batches(0, 0), strict=False):
        seed_step(task.seed, "step", 0, step)
        task.step(batch, step / (task.settings.epochs * task.steps))
        stays = (0.1, 2 / 11, 0.2, 0.2)[step]
        for name, value in task.inner.named_parameters():
            expected[name] = stays * expected[name] + (1 - stays) * value.detach().double()
    moved = 0.0
    for name, value in task.average.weights.named_parameters():
        torch.testing.assert_close(value.double(), expected[name], rtol=0, atol=1e-6)
        lag = value - task.inner.get_parameter(name).detach()
        moved = max(moved, float(lag.abs().max()))
    assert moved > 1e-5, "the average lags behind"
    for name, buffer in task.average.weights.named_buffers():
        assert torch.equal(buffer, task.inner.get_buffer(name)), name


def test_without_memory_the_average_is_the_model() -> None:
    model = torch.nn.BatchNorm1d(2)
    average = Average(model, decay=0.0)
    model(torch.randn(5, 2))
    torch.nn.init.normal_(model.weight)
    average.after(0)
    average.update()
    for name, value in average.weights.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name])
    assert not any(value.requires_grad for value in average.weights.parameters())


def test_both_copies_are_evaluated_on_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(bare("plain", 0, "ema=0.5", "samples=40"))
    trained(task, 2)
    seen: list[Tensor] = []
    monkeypatch.setattr(task.judge, "compare", lambda images: seen.append(images) or {"m": 1.0})
    assert task.evaluate() == {"m": 1.0, "ema_m": 1.0}
    assert task.average is not None
    alone = task_of(bare("plain", 0, "ema=0"))
    alone.inner.load_state_dict(task.average.weights.state_dict())
    monkeypatch.setattr(alone.judge, "compare", lambda images: seen.append(images) or {})
    alone.settings = task.settings
    alone.evaluate()
    generator, average, expected = seen
    assert torch.equal(average, expected)
    assert not torch.equal(generator, average)


def test_no_average_no_metrics_of_it(tmp_path: Path) -> None:
    key = bare("plain", 0, "ema=0", "train_samples=64", "samples=8")
    result = run(key, tmp_path)
    assert not any(name.startswith("ema") for name in result["metrics"])
    assert "ema" not in saved_models(key, tmp_path)


def test_the_saved_average_is_a_generator(tmp_path: Path) -> None:
    key = bare("vq", 0, "train_samples=64", "samples=8", "method.codes=8")
    run(key, tmp_path)
    Generator(1, key.settings.width).load_state_dict(saved_models(key, tmp_path)["ema"])


def test_the_average_passes_codes_on_too() -> None:
    """The hooks of a method that replaces the layer's output act on both copies."""
    task = task_of(bare("vq", 0, "ema=0.5", "method.codes=8"))
    trained(task, 1)
    assert task.average is not None
    seen: list[Tensor] = []
    task.inner.main[11].register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    task.sample(torch.randn(4, 100, 1, 1), task.average.weights.state_dict())
    tokens = seen[0].flatten(2).transpose(1, 2).flatten(0, 1)
    codes = task.on_layer.method.codes.detach()  # type: ignore[union-attr]
    assert (tokens.unsqueeze(1) == codes).all(2).any(1).all()


def test_a_step_is_one_call_on_the_device() -> None:
    task = task_of(bare("plain"))
    [batch, *_] = task.batches(0, 0)
    parts = task.compute(batch)
    assert isinstance(task, Gan)
    assert all(part.shape == () and not part.requires_grad for part in parts.values())
