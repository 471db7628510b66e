"""The samples with their charges that a finished run keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import run

import atomsep
from atomsep.experiments.atoms_file import LIMIT, Atoms, Token, read_atoms, spread, write_atoms
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.registry import find_experiment


def charges(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float16)


def test_sentences_come_back_as_they_were(tmp_path: Path) -> None:
    tokens = [[Token("[CLS]", -1, 0, 0), Token("naïve", 0, 0, 5)], [Token('"\\', 0, 0, 2)]]
    labels, lengths = np.array([1, 0]), np.array([2, 1])
    atoms = Atoms(
        charges(2, 2), labels, 1 - labels, None, ["naïve", '"\\ <b>'], tokens, lengths, None
    )
    write_atoms(tmp_path, atoms)
    found = read_atoms(tmp_path)
    assert found is not None
    assert found.sentences == atoms.sentences
    assert found.tokens == tokens
    for name in ("charges", "labels", "predictions", "lengths"):
        assert np.array_equal(getattr(found, name), getattr(atoms, name)), name
    assert found.images is None
    assert found.values is None
    assert found.charges.dtype == np.float16


@pytest.mark.parametrize("side", [32, 224, 400])
def test_a_file_holds_as_many_samples_as_fit(tmp_path: Path, side: int) -> None:
    """Noise cannot be compressed, which is the worst case."""
    images = np.random.default_rng(0).integers(256, size=(64, 3, side, side), dtype=np.uint8)
    labels = np.arange(64)
    path = write_atoms(tmp_path, Atoms(charges(64, 8, 8), labels, labels, images))
    assert path is not None
    assert path.stat().st_size <= LIMIT
    found = read_atoms(tmp_path)
    assert found is not None
    room = LIMIT // (3 * side * side + 128)
    assert 0.9 * min(64, room) - 1 <= len(found) <= 64
    for number, label in enumerate(found.labels):
        assert np.array_equal(found.images[number], images[label])
        assert np.array_equal(found.charges[number], charges(64, 8, 8)[label])


def test_a_sample_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(1, 3, 900, 900), dtype=np.uint8)
    assert write_atoms(tmp_path, Atoms(charges(1, 8, 8), images=images)) is None
    assert read_atoms(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_samples_are_spread_over_all() -> None:
    assert spread(1000, 4) == [0, 250, 500, 750]
    assert spread(3, 64) == [0, 1, 2]
    assert spread(0, 64) == []


@pytest.mark.parametrize("text", [b"", b"PK half of a file", b"\x93NUMPY"])
def test_a_damaged_file_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "atoms.npz").write_bytes(text)
    with pytest.raises(ExperimentError, match=r"atoms.npz does not hold samples .* train the run"):
        read_atoms(tmp_path)


@pytest.mark.parametrize("name", ["synthetic", "flowers", "poem", "mnist-gan"])
def test_a_run_keeps_what_its_model_says(tmp_path: Path, name: str) -> None:
    short = ("epochs=1", "train_samples=64", "samples=8") if name == "mnist-gan" else ("epochs=1",)
    result, on_disk = run(find_experiment(name), "atom", tmp_path, *short)
    atoms = read_atoms(on_disk.folder)
    assert atoms is not None
    assert len(atoms) == 64
    assert "atoms.npz" in result["files"]
    trained = atomsep.load_run(on_disk.folder)
    if name == "mnist-gan":
        assert atoms.images.shape == (64, 1, 64, 64)
        assert atoms.charges.shape == (64, 32, 32)
        assert atoms.labels is None
        return
    # Given back as they were seen; the centre of an image of the right size is the image.
    samples = {"synthetic": atoms.values, "flowers": None, "poem": atoms.sentences}[name]
    if samples is None:
        trained.inputs.transform = lambda image: image
        samples = list(torch.from_numpy(atoms.images))
    predictions = trained.predict(samples)
    assert [each.label for each in predictions] == atoms.predictions.tolist()
    for row, prediction in zip(atoms.charges, predictions, strict=True):
        count = len(prediction.importance)
        assert np.allclose(row[:count], prediction.importance, atol=1e-3)
        assert not row[count:].any(), "padding has no charge"
    assert result["classes"] == trained.classes
    assert max(atoms.labels) < len(trained.classes)


def test_methods_without_importance_keep_none(tmp_path: Path) -> None:
    for method in ("plain", "simclr"):
        result, on_disk = run(find_experiment("synthetic"), method, tmp_path)
        assert read_atoms(on_disk.folder) is None
        assert result["files"] == []
