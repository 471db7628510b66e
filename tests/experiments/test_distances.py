"""Distances that runs record, against the formula on a latent computed by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import run
from torch import Tensor, nn

from atomsep.experiments.distances import measure_distances, moments, read_distances
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.randomness import generator
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.synthetic.mixtures import draw
from atomsep.functional import atomic_distance, form_atoms
from atomsep.report.latent import trained_model, untrained_model


def by_hand(latent: Tensor) -> Any:
    matrix = atomic_distance(form_atoms(latent)).numpy()
    return quantiles([matrix[a, b] for a in range(len(matrix)) for b in range(a + 1, len(matrix))])


def quantiles(distances: Any) -> Any:
    return np.quantile(distances, np.linspace(0.001, 0.999, 500))


@pytest.mark.parametrize("method", ["plain", "atom"])
def test_a_run_keeps_the_distances_of_its_models(method: str, tmp_path: Path) -> None:
    result, on_disk = run(SYNTHETIC, method, tmp_path, seed=2)
    found = read_distances(on_disk.folder)
    assert found is not None
    assert list(found) == ["start", "half", "end"]
    settings = result["settings"]
    values = draw(settings["test_samples"], generator(2, "test samples")).values[:128]
    models = {
        "start": untrained_model(2, settings),
        "end": trained_model(on_disk.folder, settings),
    }
    for moment, model in models.items():
        with torch.no_grad():
            expected = by_hand(model.embed(values.unsqueeze(-1)))
        np.testing.assert_allclose(found[moment], expected, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(found["half"], found["end"])


def test_recording_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = run(SYNTHETIC, "atom", tmp_path / "with")
    monkeypatch.setattr("atomsep.experiments.loop.moments", lambda steps: {})
    second, on_disk = run(SYNTHETIC, "atom", tmp_path / "without")
    assert first["metrics"] == second["metrics"]
    assert read_distances(on_disk.folder) is None


class Padded(nn.Module):
    """Takes a padding mask as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.embed(input_ids)


def test_padding_does_not_count_and_batches_are_joined() -> None:
    model = Padded()
    ids = torch.randint(1, 10, (5, 6))
    lengths = torch.tensor([6, 3, 4, 6, 2])
    mask = (torch.arange(6) < lengths[:, None]).long()
    batches = [
        {"input_ids": ids[rows], "attention_mask": mask[rows]} for rows in (slice(3), slice(3, 5))
    ]
    settings = SimpleNamespace(layer="embed", layout="auto")
    found = measure_distances(model, settings, batches, lambda batch: model(**batch))
    with torch.no_grad():
        nuclei = torch.stack(
            [form_atoms(model.embed(ids[i, :n])[None]).nucleus[0] for i, n in enumerate(lengths)]
        )
    assert found is not None
    expected = quantiles(nn.functional.pdist(nuclei).numpy())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    assert not model.embed._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("layer", ["1", "nowhere"])
def test_a_layer_without_tokens_gives_none(layer: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Flatten())
    settings = SimpleNamespace(layer=layer, layout="auto")
    assert measure_distances(model, settings, [torch.rand(2, 5, 3)], model) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "distances.npz").write_bytes(b"PK nothing")
    with pytest.raises(ExperimentError, match="distances.npz does not hold distances"):
        read_distances(tmp_path)


def test_a_training_of_one_step_has_two_moments() -> None:
    assert moments(1) == {0: "start", 1: "end"}
