"""The maps of finished runs are judged on their held-out images: curves by hand, known outlines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch import nn
from torchvision.transforms.v2.functional import gaussian_blur

import atomsep
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.faithfulness import Judged, judge
from atomsep.experiments.images.models import make_image_model
from atomsep.experiments.images.segmentations import read_outlines
from atomsep.experiments.machine import Machine
from atomsep.experiments.maps import calibrate
from atomsep.experiments.randomness import seeded
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.trained import TrainedRun
from atomsep.experiments.training import train
from atomsep.importance import rivals
from atomsep.importance.faithful import deletion_and_insertion
from atomsep.importance.images import to_pixels

SHORT = ("epochs=1", "batch=8", "image=32", "stages=1")


def write_pets(data: Path) -> Path:
    """Two breeds; the animal is a bright square left of the centre, with a border around it."""
    base = data / "oxford-iiit-pet"
    for name in ("images", "annotations/trimaps"):
        (base / name).mkdir(parents=True)
    rows: dict[str, list[str]] = {"trainval": [], "test": []}
    draw = np.random.default_rng(0)
    for label, breed in enumerate(("Abyssinian", "Bengal"), 1):
        for number in range(12):
            pixels = draw.integers(0, 60, (48, 64, 3), dtype=np.uint8)
            pixels[12:36, 12:36] += np.uint8(60 * label)
            trimap = np.full((48, 64), 2, np.uint8)
            trimap[10:38, 10:38], trimap[12:36, 12:36] = 3, 1
            Image.fromarray(pixels).save(base / "images" / f"{breed}_{number}.jpg")
            Image.fromarray(trimap).save(base / "annotations/trimaps" / f"{breed}_{number}.png")
            rows["test" if number >= 8 else "trainval"].append(f"{breed}_{number} {label} 1 1")
    for split, lines in rows.items():
        (base / "annotations" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return data


def finished(root: Path, method: str, *, data: Path | None = None, seed: int = 0) -> TrainedRun:
    pets = find_experiment("pets")
    key = run_key(pets, method, seed, SHORT, tiny=data is None)
    train(pets, key, root, Machine("cpu", data=data or Path("nowhere"), tensorboard=False))
    return atomsep.load_run(key.folder(root))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return finished(tmp_path_factory.mktemp("tiny"), "atom", seed=3)


@pytest.fixture(scope="module")
def judged(run: TrainedRun) -> Judged:
    return judge(run, Path("nowhere"), 6)


def test_curves_of_the_charge_by_hand(run: TrainedRun, judged: Judged) -> None:
    from sklearn.datasets import load_digits

    chosen = [192 + number * 64 // 6 for number in range(6)]  # spread over the 64 test digits
    digits = [(load_digits().images[number] * 15.9).astype("uint8") for number in chosen]
    predictions = run.predict([np.repeat(each[..., None], 3, 2) for each in digits])
    mean, deviation = (
        torch.tensor(numbers).view(3, 1, 1)
        for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    images = (torch.stack([each.seen for each in predictions]) / 255 - mean) / deviation
    labels = torch.tensor([[each.label] for each in predictions])
    charges = torch.stack([each.importance for each in predictions])
    model = make_image_model("resnet18", 10, stages=1).eval()  # without any hook
    model.load_state_dict(run.model.state_dict())

    def predict(changed: torch.Tensor) -> torch.Tensor:
        return model(changed).softmax(1).gather(1, labels)[:, 0]

    blank = gaussian_blur(images, [13, 13], [3.2, 3.2])
    for name, scores in (
        ("positive charge", charges),
        ("negative charge", -charges),
        ("absolute charge", charges.abs()),
    ):
        found = deletion_and_insertion(predict, images, blank, scores)
        assert torch.equal(found.shares, judged.shares)
        for kind in ("deletion", "insertion"):
            curve = getattr(found, kind)
            assert torch.allclose(judged.curves[kind][name], curve, atol=1e-5)
            trapezoids = (curve[:, 1:] + curve[:, :-1]) / 2 * found.shares.diff()
            assert torch.allclose(judged.values[kind][name], trapezoids.sum(1), atol=1e-5)


def test_every_map_is_measured_and_the_controls_differ(judged: Judged) -> None:
    assert judged.values.keys() == judged.curves.keys() == {"deletion", "insertion"}  # no outlines
    assert list(judged.values["deletion"]) == [
        *("positive charge", "negative charge", "absolute charge", "charge of an untrained model"),
        *("random order", "centre of the image", "gradient x input", "integrated gradients"),
        *("Grad-CAM, last layer", "Grad-CAM, same layer"),
    ]
    curves = torch.stack(list(judged.curves["deletion"].values()))
    assert curves.shape == (10, 6, 17)
    assert len(curves.flatten(1).unique(dim=0)) == 10
    # All begin with the image and end with the blurred one.
    assert torch.allclose(curves[:, :, 0], curves[:1, :, 0], atol=1e-6)
    assert torch.allclose(curves[:, :, -1], curves[:1, :, -1], atol=1e-6)


def test_the_untrained_model_is_the_one_that_the_run_started_from(
    run: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[nn.Module] = []
    monkeypatch.setattr(
        "atomsep.experiments.maps.calibrate", lambda model, images: seen.append(model.eval())
    )
    monkeypatch.setattr(rivals, "has_captum", lambda: False)
    judged = judge(run, Path("nowhere"), 2)
    assert not any("Grad" in name or "grad" in name for name in judged.values["deletion"])
    with seeded(3, "initial weights"):
        expected = make_image_model("resnet18", 10, stages=1).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in seen[0].state_dict().items())


def test_calibrated_norms_have_the_statistics_of_the_images() -> None:
    model = make_image_model("resnet18", 4, stages=1)
    images = 3 * torch.randn(16, 3, 32, 32) + 1
    expected = model.train()(images)
    calibrate(model, images)
    assert not model.training
    assert torch.allclose(model(images), expected, atol=0.02)
    assert not torch.allclose(
        make_image_model("resnet18", 4, stages=1).eval()(images), expected, atol=0.02
    )


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pets(tmp_path_factory.mktemp("data"))


def test_outlines_go_through_the_transform_of_the_images(pets: Path, run: TrainedRun) -> None:
    from atomsep.experiments.images.augmentation import Augmentation

    names = [str(pets / "oxford-iiit-pet" / "images" / f"Bengal_{n}.jpg") for n in (8, 9)]
    found = read_outlines(names, Augmentation("none", 32).prepare)
    assert found is not None
    inside, outside = found
    assert inside.shape == outside.shape == (2, 32, 32)
    # The shorter side of 48 becomes 37, and the centre is cut out: 2.5 rows and 8.7 columns less.
    scale = 37 / 48
    top, left = (37 - 32) / 2, (round(64 * scale) - 32) / 2
    edges = [round(12 * scale - top), round(36 * scale - top)]
    rows, columns = inside[0].any(1).nonzero(), inside[0].any(0).nonzero()
    assert abs(int(rows[0]) - edges[0]) <= 1
    assert abs(int(rows[-1]) + 1 - edges[1]) <= 1
    assert abs(int(columns[0]) - round(max(0, 12 * scale - left))) <= 1
    assert 0 < float((1 - inside - outside).mean()) < 0.2  # the border
    assert read_outlines([*names, "images/nothing.jpg"], lambda image: image) is None


def test_maps_are_compared_with_the_outlines(tmp_path: Path, pets: Path) -> None:
    run = finished(tmp_path, "plain", data=pets)
    assert run.attachment is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "has_captum", lambda: False)
        judged = judge(run, pets, 100)
    names = sorted((pets / "oxford-iiit-pet" / "images").glob("*.jpg"))
    held_out = [name for name in names if int(name.stem.split("_")[1]) >= 8]
    assert all(len(each) == 8 for maps in judged.values.values() for each in maps.values())
    outlines = read_outlines([str(name) for name in held_out], run.inputs.transform)  # type: ignore[attr-defined]
    assert outlines is not None
    with atomsep.attach(run.model, "layer1.1.bn2") as attachment:
        run.predict(held_out)  # in one batch
        shown = to_pixels(attachment.importance, (32, 32))
    order = [name.name for name in held_out]
    listed = (pets / "oxford-iiit-pet/annotations/test.txt").read_text().splitlines()
    for row, line in enumerate(listed):
        place = order.index(f"{line.split()[0]}.jpg")
        inside, outside = (each[place].bool() for each in outlines)
        known = (inside | outside).numpy()
        truth, values = inside.numpy()[known], shown[place][known]
        for name, scores in (
            ("positive charge", values),
            ("negative charge", -values),
            ("absolute charge", abs(values)),
            ("sign of the charge", np.sign(values)),
        ):
            expected = roc_auc_score(truth, scores)
            assert float(judged.values["auc"][name][row]) == pytest.approx(expected, abs=1e-5)
        # As many pixels as the animal has, first the positive ones, whichever these are.
        whole, positive = truth.sum(), values > 0
        taken = judged.values["iou"]["sign of the charge"][row]
        if positive.sum() <= whole:
            least = (truth & positive).sum()
            most = least + min(whole - positive.sum(), (truth & ~positive).sum())
        else:
            least = max(0, whole - (~truth & positive).sum())
            most = min(whole, (truth & positive).sum())
        low, high = (each / (2 * whole - each) for each in (least, most))
        assert low - 0.1 <= float(taken) <= high + 0.1  # whole tokens are taken
    assert judged.values["iou"].keys() == judged.values["auc"].keys()
    assert judged.values["iou"]["centre of the image"].mean() > 0.2
    assert not any(module._forward_hooks for module in run.model.modules())


def test_only_image_classifiers_are_judged() -> None:
    class Other:
        folder, experiment = Path("runs/x"), "synthetic"

    with pytest.raises(ExperimentError, match="synthetic, which does not classify images"):
        judge(Other(), Path("nowhere"), 4)  # type: ignore[arg-type]
