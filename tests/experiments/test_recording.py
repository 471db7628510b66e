"""What a run records on the way: metrics, parts of the loss, shares of particles, maps."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mixture_runs import SYNTHETIC, run, tiny, weights
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import read_metrics

from atomsep import functional
from atomsep.experiments.atoms_file import Atoms
from atomsep.experiments.board import SQUARE, tensorboard
from atomsep.experiments.machine import Machine
from atomsep.experiments.randomness import generator, seeded
from atomsep.experiments.registry import EXPERIMENTS, find_experiment, run_key
from atomsep.experiments.runs import Run
from atomsep.experiments.settings import Settings, override
from atomsep.experiments.synthetic.mixtures import MixtureClassifier, draw
from atomsep.experiments.training import train
from atomsep.importance.colours import diverging


def test_every_epoch_has_its_metrics_and_particles(tmp_path: Path) -> None:
    key = tiny("atom", 0, "epochs=3")
    result = run(key, tmp_path)
    lines = read_metrics(key.folder(tmp_path))
    assert all("metrics" in line for line in lines)
    for line in lines:
        shares = [line[name] for name in ("protons", "neutrons", "electrons")]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert min(shares) >= 0
    assert len({line["energy"] for line in lines}) == 3
    assert result["metrics"] == lines[-1]["metrics"], "the last epoch counts, not the best"


def test_statistics_are_those_of_the_last_batch_by_hand(tmp_path: Path) -> None:
    key = tiny("atom", 4, "epochs=1", "batch=256")  # one step, so from the initial weights
    run(key, tmp_path)
    [line] = read_metrics(key.folder(tmp_path))
    with seeded(4, "initial weights"):
        model = MixtureClassifier()
    values = draw(256, generator(4, "training samples")).values
    atoms = functional.form_atoms(model.embed(values.unsqueeze(-1)).detach())
    assert line["protons"] == pytest.approx(float((atoms.protons / 5).mean()), abs=1e-5)
    assert line["electrons"] == pytest.approx(float((atoms.electrons / 5).mean()), abs=1e-5)
    assert line["neutrality"] == pytest.approx(float(functional.neutrality(atoms).mean()), abs=1e-5)
    assert line["occupancy"] == pytest.approx(float(functional.occupancy(atoms).mean()), abs=1e-5)
    pairs = functional.pair_energy(atoms)
    off = ~torch.eye(256, dtype=torch.bool)
    assert line["energy"] == pytest.approx(float(pairs[off].mean()), rel=1e-4)


def test_methods_without_atoms_have_none_of_it(tmp_path: Path) -> None:
    for method in ("plain", "simclr"):
        key = tiny(method)
        run(key, tmp_path)
        assert all("protons" not in line for line in read_metrics(key.folder(tmp_path)))


@pytest.mark.parametrize("name", ["synthetic", "pets", "cola"])
def test_recording_changes_nothing_in_training(tmp_path: Path, name: str) -> None:
    """With evaluations and maps after every epoch, or with neither: the same weights and result."""
    experiment = find_experiment(name)
    found = []
    for every, machine in (
        (0, Machine(device="cpu", tensorboard=False)),
        (1, Machine(device="cpu", tensorboard=True)),
    ):
        key = run_key(experiment, "atom", 0, ["epochs=2", f"evaluate_every={every}"], tiny=True)
        root = tmp_path / str(every)
        result = train(experiment, key, root, machine)
        lines = read_metrics(key.folder(root))
        assert ["metrics" in line for line in lines] == [bool(every), True]
        found.append((result["metrics"], lines[-1]["method"], weights(key, root)))
    (metrics, loss, state), (others, other_loss, other_state) = found
    assert metrics == others
    assert loss == other_loss
    for part, value in state.items():
        assert torch.equal(value, other_state[part]), part


def board(folder: Path) -> Any:
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    return events


def test_tensorboard_has_every_number_and_the_maps(tmp_path: Path) -> None:
    kinds = {
        "pets": "images",
        "mnist-gan": "images",
        "cola": "tensors",
        "synthetic": "histograms",
    }
    for name, kind in kinds.items():
        experiment = find_experiment(name)
        often = ["evaluate_every=8"] if name == "mnist-gan" else []  # of its 16 steps
        key = run_key(experiment, "atom", 0, ["epochs=2", *often], tiny=True)
        train(experiment, key, tmp_path, Machine(device="cpu"))
        events = board(Run(key.folder(tmp_path)).folder / "tensorboard")
        *_, last = read_metrics(key.folder(tmp_path))
        numbers = {**last, **last["metrics"]}
        shown = set(events.Tags()["scalars"])
        assert shown == numbers.keys() - {"epoch", "step", "seconds", "metrics"}
        for scalar in shown:
            assert events.Scalars(scalar)[-1].value == pytest.approx(numbers[scalar], rel=1e-6)
        assert events.Tags()["histograms"] == ["charges"]
        if kind == "images":
            steps = [last["step"] // 2, last["step"]]
            assert [event.step for event in events.Images("importance")] == steps
        elif kind == "tensors":
            [*_, text] = events.Tensors("importance/text_summary")
            assert "[CLS] " in text.tensor_proto.string_val[0].decode()


def digest_of_older_versions(settings: Settings) -> str:
    """Runs of classifiers were evaluated once, unless something else was asked for."""
    values = asdict(settings)
    if "steps" not in type(settings).__dataclass_fields__["evaluate_every"].metadata["help"]:
        values["evaluate_every"] = 0
    return blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=4).hexdigest()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_folders_of_older_runs_are_still_found(name: str) -> None:
    settings = run_key(EXPERIMENTS[name], "atom", 0).settings
    assert settings.digest() == digest_of_older_versions(settings)


def test_only_where_it_decides_the_result_are_evaluations_part_of_the_digest() -> None:
    mixtures, gan = SYNTHETIC.settings, EXPERIMENTS["mnist-gan"].settings
    assert override(mixtures, {"evaluate_every": 3}).digest() == mixtures.digest()
    assert override(gan, {"evaluate_every": 3}).digest() != gan.digest()


def test_tensorboard_shows_tokens_without_a_place_in_the_image(tmp_path: Path) -> None:
    charges = np.array([[-1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]])
    images = np.zeros((1, 3, 13, 22), np.uint8)
    with tensorboard(tmp_path, 0) as writer:
        writer.add_atoms(Atoms(charges, images=images), 1)
    [event] = board(tmp_path).Images("importance")
    with Image.open(io.BytesIO(event.encoded_image_string)) as picture:
        assert picture.size == (7 * SQUARE, SQUARE)
        colours = [picture.getpixel((SQUARE * token + 1, 3)) for token in range(3)]
    assert colours == [tuple(each) for each in diverging(charges[0, :3]).tolist()]
