"""A finished run can be used: it predicts and generates exactly what its metrics were made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import atomsep
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.experiments import AVERAGED, GANS
from atomsep.experiments.images.experiments import IMAGES
from atomsep.experiments.images.inputs import as_image
from atomsep.experiments.images.models import make_image_model
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.randomness import seed_step
from atomsep.experiments.registry import EXPERIMENTS, find_experiment, run_key
from atomsep.experiments.runs import RunKey
from atomsep.experiments.task import Context, main_metric
from atomsep.experiments.text.experiments import TEXTS
from atomsep.experiments.training import train

SHORT = {
    "synthetic": ("epochs=1",),
    **dict.fromkeys((each.name for each in IMAGES), ("epochs=1",)),
    **dict.fromkeys((each.name for each in TEXTS), ("epochs=1",)),
    **dict.fromkeys((each.name for each in GANS), ("epochs=1", "train_samples=64", "samples=33")),
}


def train_one(name: str, method: str, root: Path, *changes: str) -> tuple[RunKey, Path]:
    experiment = find_experiment(name)
    key = run_key(experiment, method, 0, (*SHORT[name], *changes), tiny=True)
    train(experiment, key, root, Machine(device="cpu", tensorboard=False))
    return key, key.folder(root)


def task_of(key: RunKey) -> Any:
    """The task as the run had it at its start, with its data."""
    fabric = make_fabric(Machine(device="cpu"), key.settings.precision)
    seed_step(key.seed, "initial weights")
    context = Context(key.settings, key.method, key.seed, fabric, Path("nowhere"), tiny=True)
    return find_experiment(key.experiment).build(context)


def held_out(key: RunKey) -> tuple[list[Any], Tensor, Any]:
    """The test samples before any transform, their labels, and the experiment's metrics."""
    task = task_of(key)
    labels = torch.as_tensor(task.shown.labels)
    return [task.shown.load(number) for number in range(len(labels))], labels, task.metrics()


CLASSIFIERS = [
    ("synthetic", "atom", ()),
    ("synthetic", "plain", ("precision=64-true",)),
    *((each.name, "atom", ()) for each in IMAGES),
    *((each.name, "atom", ()) for each in TEXTS),
    ("pets", "simclr", ("precision=bf16-mixed", "image=40")),
    ("cola", "atom", ("charge=learned", "max_length=6")),
]


@pytest.mark.parametrize(("name", "method", "changes"), CLASSIFIERS)
def test_predictions_reproduce_every_test_metric(
    tmp_path: Path, name: str, method: str, changes: tuple[str, ...]
) -> None:
    key, folder = train_one(name, method, tmp_path, *changes)
    run = atomsep.load_run(folder)
    samples, labels, metrics = held_out(key)
    predictions = run.predict(samples)
    assert not run.model.training
    logits = torch.stack([each.probabilities for each in predictions]).log()
    for metric, expected in run.result["metrics"].items():
        metrics[metric].update(logits, labels)
        found = round(float(metrics[metric].compute()), 7)
        main = metric == main_metric(find_experiment(name), run.result["metrics"])
        assert found == expected if main else found == pytest.approx(expected, abs=2e-6), metric
    assert {each.name for each in predictions} <= set(run.classes)
    assert all((each.importance is None) == (method != "atom") for each in predictions)
    assert run.curves[-1]["metrics"] == run.result["metrics"]


@pytest.mark.parametrize(
    ("name", "method"), [*((each.name, "atom") for each in GANS), ("mnist-gan", "vq")]
)
def test_samples_reproduce_every_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    monkeypatch.setattr("atomsep.experiments.gan.build.READER_STEPS", 10)  # it need not read well
    options = ("method.codes=32",) if method == "vq" else ()
    key, folder = train_one(name, method, tmp_path, *options)
    run = atomsep.load_run(folder)
    judge = task_of(key).judge
    for start, averaged in (("", False), (AVERAGED, True)):
        generated = run.sample(key.settings.samples, averaged=averaged)
        for metric, value in judge.compare(generated.images).items():
            assert round(value, 7) == run.result["metrics"][start + metric], start + metric
    drawn, trained = run.sample(4), run.model.training
    run.model.eval()
    assert torch.equal(run.sample(4).images, drawn.images), "a sample belongs to training mode"
    assert trained
    assert not any(module.training for module in run.model.modules()), "it is left as it was"
    other = run.sample(4, seed=1)
    assert other.images.shape == (4, *generated.images.shape[1:])
    assert not torch.equal(other.images, run.sample(4).images)
    shape = None if other.importance is None else tuple(other.importance.shape)
    assert shape == ((4, 32, 32) if method == "atom" else None)
    with pytest.raises(ExperimentError, match=f"{name} is not a classifier"):
        run.predict(["a.png"])


def test_every_experiment_is_covered() -> None:
    assert EXPERIMENTS.keys() == SHORT.keys()
    assert all(experiment.load is not None for experiment in EXPERIMENTS.values())


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunKey, Path]:
    return train_one("pets", "atom", tmp_path_factory.mktemp("images"))


def test_importance_is_that_of_a_hook_written_by_hand(of_images: tuple[RunKey, Path]) -> None:
    _, folder = of_images
    run = atomsep.load_run(folder)
    pixels = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    model = make_image_model("resnet18", 10, stages=1)
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True)["model"])
    seen = {}
    model.layer1[1].bn2.register_forward_hook(  # type: ignore[index, union-attr]
        lambda module, inputs, output: seen.update(scores=output[:, 0].clone())  # before the ReLU
    )
    mean, deviation = torch.tensor(((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))).view(2, 3, 1, 1)
    predictions = run.predict(list(pixels))
    images = torch.stack([each.seen for each in predictions])
    with torch.no_grad():
        logits = model.eval()((images / 255 - mean) / deviation)
    for row, prediction in enumerate(predictions):
        assert torch.allclose(prediction.importance, (seen["scores"][row] / 2).tanh(), atol=1e-5)
        assert torch.allclose(prediction.probabilities, logits[row].softmax(0), atol=1e-5)
        assert prediction.probability == pytest.approx(float(prediction.probabilities.max()))


def test_an_image_may_come_in_any_form(of_images: tuple[RunKey, Path], tmp_path: Path) -> None:
    from PIL import Image

    run = atomsep.load_run(of_images[1])
    pixels = np.random.default_rng(0).integers(256, size=(50, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    forms: list[Any] = [
        *(tmp_path / "image.png", str(tmp_path / "image.png"), Image.fromarray(pixels)),
        *(pixels, pixels / 255, tensor, tensor / 255),
    ]
    first, *others = run.predict(forms)
    assert first.seen.shape == (3, 32, 32)
    for other in others:
        assert torch.equal(other.seen, first.seen)
    assert torch.equal(run.predict(pixels[None])[0].seen, first.seen)
    assert torch.equal(run.predict(tensor[None])[0].seen, first.seen)
    assert run.predict([]) == []


@pytest.mark.parametrize(
    ("sample", "error", "words"),
    [
        (
            "nowhere.png",
            ExperimentError,
            r"nowhere.png cannot .* image \(No such file or directory\)$",
        ),
        (3, TypeError, "an image must be a path, a Pillow image, an array or a tensor, not int"),
        (np.zeros((2, 3, 4, 5)), ValueError, r"must have shape .* not \(2, 3, 4, 5\)"),
        (torch.full((3, 4, 4), 1.5), ValueError, "not float32 from 1.5 to 1.5; the run normalises"),
    ],
)
def test_what_is_not_an_image_is_named(sample: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        as_image(sample)


def test_a_single_array_is_not_taken_for_several(of_images: tuple[RunKey, Path]) -> None:
    run = atomsep.load_run(of_images[1])
    with pytest.raises(ValueError, match=r"write predict\(\[image\]\)"):
        run.predict(torch.zeros(3, 40, 40))


def test_a_sentence_has_the_charges_of_its_own_tokens(tmp_path: Path) -> None:
    """Whatever it is padded with; pieces, words and places are the tokenizer's."""
    _, folder = train_one("cola", "atom", tmp_path)
    run = atomsep.load_run(folder)
    texts = ["the cat sleeps under a tree", "a cat", "the <unknown> cat"]
    together, alone = run.predict(texts), [run.predict([text])[0] for text in texts]
    for text, one, other in zip(texts, together, alone, strict=True):
        assert one.importance.shape == (len(one.seen.tokens),)
        assert torch.allclose(one.importance, other.importance, atol=1e-6)
        assert (one.importance != 0).all()
        places = [(token.start, token.end) for token in one.seen.tokens if token.word >= 0]
        assert "".join(text[start:end] for start, end in places) == text.replace(" ", "")
        assert [token.piece for token in one.seen.tokens if token.word < 0] == ["[CLS]", "[SEP]"]
    with pytest.raises(TypeError, match="a sentence must be a text, not int"):
        run.predict([3])


def test_the_global_random_state_is_left_alone(of_images: tuple[RunKey, Path]) -> None:
    before = torch.random.get_rng_state()
    atomsep.load_run(of_images[1]).predict([torch.zeros(3, 40, 40)])
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_folder_without_a_finished_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="holds no finished run: it has no result.json"):
        atomsep.load_run(tmp_path)


@pytest.mark.parametrize(("name", "lost"), [("pets", "classes"), ("cola", "encoder")])
def test_a_run_of_an_older_version_is_named(tmp_path: Path, name: str, lost: str) -> None:
    _, folder = train_one(name, "plain", tmp_path)
    if lost == "encoder":
        (folder / "encoder").rename(tmp_path / "elsewhere")
    else:
        result = json.loads((folder / "result.json").read_text())
        del result[lost]
        (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(ExperimentError, match=f"{lost}.* older version of atomsep wrote it"):
        atomsep.load_run(folder)


def test_weights_of_another_model_are_named(
    of_images: tuple[RunKey, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = of_images
    for name in ("result.json", "model.pt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    result = json.loads((tmp_path / "result.json").read_text())
    result["settings"]["stages"] = 2
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(ExperimentError, match="does not fit the model that its settings describe"):
        atomsep.load_run(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"PK half")
    with pytest.raises(ExperimentError, match=r"model.pt cannot be read .* train the run again"):
        atomsep.load_run(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "pets", replace(EXPERIMENTS["pets"], load=None))
    with pytest.raises(ExperimentError, match="register it with load="):
        atomsep.load_run(folder)
