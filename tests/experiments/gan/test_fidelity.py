"""Fréchet distance, precision and recall, what they are called, and where features come from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan import classifier as small_classifier
from atomsep.experiments.gan import features as features_module
from atomsep.experiments.gan.experiments import GanSettings
from atomsep.experiments.gan.features import Features, find_features, inception
from atomsep.experiments.gan.fidelity import Fidelity, frechet, precision_recall, statistics
from atomsep.experiments.gan.pictures import Pictures, digits
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.task import Context, main_metric


class Means(nn.Module):
    """Six features of an image: means of its channels, left and right."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images.float(), (1, 2)).flatten(1)


def means() -> nn.Module:
    return Means()


def not_a_module() -> int:
    return 3


def picture_set(count: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    bright = torch.randint(0, 256, (count, 3, 1, 1), generator=rng)
    noise = torch.randint(0, 60, (count, 3, 8, 8), generator=rng)
    return (bright + noise * (seed + 1)).clamp(0, 255).to(torch.uint8)


def get(kind: str, **changed: Any) -> Features:
    weights, data = changed.pop("weights", ""), changed.pop("data", None)
    pictures = changed.pop("pictures", Pictures(torch.zeros(1, 1, 64, 64), None))
    settings = GanSettings(features=kind, features_weights=weights)
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    where = (Path("nowhere"), True) if data is None else (data, False)
    context = Context(settings, "plain", 0, fabric, where[0], tiny=where[1], **changed)
    return find_features(context, pictures)


def test_the_distance_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(500, 7)) @ rng.normal(size=(7, 7)) + 1
    second = rng.normal(size=(300, 7)) @ rng.normal(size=(7, 7))
    found = frechet(statistics(torch.tensor(first)), statistics(torch.tensor(second)))
    sigmas = [np.cov(x, rowvar=False) for x in (first, second)]
    # symmetric form: tr of the root of S1^1/2 S2 S1^1/2
    root = scipy.linalg.sqrtm(sigmas[0])
    cross = np.trace(scipy.linalg.sqrtm(root @ sigmas[1] @ root)).real
    shift = first.mean(0) - second.mean(0)
    expected = shift @ shift + np.trace(sigmas[0]) + np.trace(sigmas[1]) - 2 * cross
    assert found == pytest.approx(expected, rel=1e-10)


def test_gaussians_of_one_covariance_differ_by_their_means() -> None:
    features = torch.randn(100, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    shift = torch.tensor([1.0, 2.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    assert frechet(statistics(features), statistics(features + shift)) == pytest.approx(9, abs=1e-9)


@pytest.mark.parametrize(("count", "width"), [(400, 9), (2500, 3), (30, 60)])
def test_both_are_torch_fidelitys(count: int, width: int) -> None:
    """The same numbers, over more and fewer features than samples, and over several blocks."""
    from torch_fidelity import metric_fid, metric_prc

    rng = torch.Generator().manual_seed(count)
    real = torch.randn(count, width, generator=rng) @ torch.randn(width, width, generator=rng)
    generated = 0.7 * real[torch.randperm(count, generator=rng)] + 1
    theirs = [metric_fid.fid_features_to_statistics(x.double()) for x in (generated, real)]
    distance = metric_fid.fid_statistics_to_metric(*theirs, verbose=False)
    found = frechet(statistics(real), statistics(generated))
    assert found == pytest.approx(distance[metric_fid.KEY_METRIC_FID], rel=1e-5)
    shares = metric_prc.prc_features_to_metric(
        generated.double(), real.double(), prc_neighborhood=3, save_cpu_ram=False, verbose=False
    )
    ours = precision_recall(generated, real)
    assert width > count or 0 < ours["recall"] < 1
    assert ours == pytest.approx({name: shares[name] for name in ours}, abs=1e-6)


def test_gaussians_without_full_rank() -> None:
    """On two lines at an angle: tr (S1 S2)^1/2 = |cos| s1 s2, where a matrix root has no value."""
    first = torch.linspace(-1, 1, 50, dtype=torch.float64).unsqueeze(1)
    lines = torch.tensor([[3.0, 0.0, 0.0], [1.0, 2.0, 0.0]], dtype=torch.float64)
    both = [statistics(first * line) for line in lines]
    variance = float(first.var())
    expected = variance * (9 + 5 - 2 * 3 * 1)  # |a|² + |b|² - 2 |a·b|
    assert frechet(*both) == pytest.approx(expected, rel=1e-7)
    assert frechet(both[1], both[0]) == pytest.approx(expected, rel=1e-7)
    assert frechet(both[0], both[0]) == pytest.approx(0, abs=1e-6)


def test_precision_and_recall_know_what_is_generated() -> None:
    """Samples from one of two modes are all plausible, and miss half of what is real."""
    rng = torch.Generator().manual_seed(0)
    modes = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    real = torch.randn(400, 2, generator=rng) + modes.repeat(200, 1)
    generated = torch.randn(400, 2, generator=rng) * 0.8
    found = precision_recall(generated, real)
    assert found["precision"] > 0.9
    assert found["recall"] == pytest.approx(0.5, abs=0.1)


def test_all_is_as_torch_fidelitys_own_command_has_it() -> None:
    """With a registered extractor and data sets, `calculate_metrics` gives the same."""
    import torch_fidelity

    class Extractor(torch_fidelity.FeatureExtractorBase):  # type: ignore[misc]
        def __init__(self, name: str, features_list: list[str], **kwargs: Any) -> None:
            super().__init__(name, features_list)
            self.means = Means()

        @staticmethod
        def get_provided_features_list() -> tuple[str, ...]:
            return ("means",)

        @staticmethod
        def get_default_feature_layer_for_metric(metric: str) -> str:
            return "means"

        @staticmethod
        def can_be_compiled() -> bool:
            return False

        @staticmethod
        def get_dummy_input_for_compile() -> Tensor:
            return torch.zeros(1, 3, 8, 8)

        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            return (self.means(images),)

    class Images(Dataset[Tensor]):
        def __init__(self, images: Tensor) -> None:
            self.images = images

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> Tensor:
            return self.images[index]

    torch_fidelity.register_feature_extractor("means", Extractor)
    generated, real = picture_set(120, 0), picture_set(120, 1)
    expected = torch_fidelity.calculate_metrics(
        input1=Images(generated),
        input2=Images(real),
        feature_extractor="means",
        cuda=False,
        fid=True,
        prc=True,
        save_cpu_ram=True,
        cache=False,
        verbose=False,
    )
    found = Fidelity(get(f"{__name__}:means"), real).compare(generated)
    assert found["frechet_means"] == pytest.approx(expected["frechet_inception_distance"], rel=1e-4)
    assert found["precision"] == pytest.approx(expected["precision"], abs=1e-6)
    assert found["recall"] == pytest.approx(expected["recall"], abs=1e-6)


def test_all_real_images_count_and_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features = get(f"{__name__}:means")
    generated, real = picture_set(40, 0), picture_set(600, 1)
    fidelity = Fidelity(features, real)
    found = fidelity.compare(generated)
    expected = frechet(statistics(features.of(real)), statistics(features.of(generated)))
    assert found["frechet_means"] == expected
    monkeypatch.setattr(fidelity, "real", None)
    assert fidelity.compare(generated) == found


def test_only_inception_gives_an_fid() -> None:
    mnist = find_experiment("mnist-gan")
    assert Features("inception", nn.Identity()).metric == "fid"
    assert Features("classifier", nn.Identity()).metric == "frechet_classifier"
    assert get(f"{__name__}:means").metric == "frechet_means"
    assert main_metric(mnist, {"fid": 1.0, "recall": 0.0}) == "fid"
    assert main_metric(mnist, {"recall": 0.0, "frechet_means": 1.0}) == "frechet_means"
    with pytest.raises(ExperimentError, match="has no fid, but recall"):
        main_metric(mnist, {"recall": 0.0})
    with pytest.raises(ExperimentError, match="has no accuracy"):
        main_metric(find_experiment("synthetic"), {"frechet_means": 1.0})


@pytest.fixture(scope="module")
def inception_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state of the right names and shapes with random values."""
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    class Blank(FeatureExtractorInceptionV3):  # type: ignore[misc]
        def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
            """Nothing to load."""

    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    torch.save({}, path)
    torch.manual_seed(0)
    blank = Blank("inception-v3-compat", ["2048"], feature_extractor_weights_path=str(path))
    state = blank.state_dict()
    assert len(state) == 566
    torch.save(state, path)
    return path


def test_inception_from_a_file(inception_weights: Path) -> None:
    features = get("inception", weights=str(inception_weights))
    images = picture_set(4, 0)
    found = features.of(images)
    assert features.metric == "fid"
    assert found.shape == (4, 2048)
    assert found.isfinite().all()
    # Grey images count as coloured ones of equal channels.
    grey = images[:2, :1]
    assert torch.equal(features.of(grey), features.of(grey.repeat(1, 3, 1, 1)))


def test_inception_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(ExperimentError, match="--download.*features_weights=PATH"):
        inception("", download=False)
    with pytest.raises(ExperimentError, match="there is no file"):
        inception(str(tmp_path / "none.pth"), download=True)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ExperimentError, match="does not hold Inception's weights"):
        inception(str(tmp_path / "other.pth"), download=False)
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ExperimentError, match="does not hold Inception's weights"):
        inception(str(tmp_path / "text.pth"), download=False)


def test_inception_is_fetched_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inception_weights: Path
) -> None:
    from torch_fidelity import feature_extractor_inceptionv3 as theirs

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    asked: list[str] = []

    def fetch(url: str, **kwargs: Any) -> Any:
        asked.append(url)
        return torch.load(inception_weights, weights_only=True)

    monkeypatch.setattr(theirs, "load_state_dict_from_url", fetch)
    inception("", download=True)
    assert len(asked) == 1
    assert asked[0].endswith(features_module.INCEPTION_FILE)

    def refuse(url: str, **kwargs: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(theirs, "load_state_dict_from_url", refuse)
    with pytest.raises(ExperimentError, match="cannot be fetched .no route to host"):
        inception("", download=True)


def test_only_inception_needs_torch_fidelity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("metric_fid", "metric_prc", "feature_extractor_inceptionv3"):
        monkeypatch.setitem(sys.modules, f"torch_fidelity.{name}", None)
    with pytest.raises(ExperimentError, match="an FID needs torch-fidelity.*pip install"):
        get("inception")
    assert Fidelity(get(f"{__name__}:means"), picture_set(10, 0)).compare(picture_set(10, 1))


def test_features_that_cannot_be(tmp_path: Path) -> None:
    for kind, message in (
        ("clasifier", "features must be inception, classifier or"),
        (f"{__name__}:not_a_module", "must return a torch.nn.Module, not int"),
        ("no_such_package:function", "cannot be imported"),
        ("classifier", "needs labels: each image in"),
    ):
        with pytest.raises(ExperimentError, match=message):
            get(kind)
    with pytest.raises(ExperimentError, match=r"must be a tensor \(5, F\), not \(5, 3, 8, 8\)"):
        Features("odd", nn.Identity()).of(picture_set(5, 0))
    with pytest.raises(ExperimentError, match="more than 3 real images, not 2"):
        Fidelity(get(f"{__name__}:means"), picture_set(2, 0))


def test_features_that_are_not_finite_are_refused() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.float().flatten(1).log()

    black = torch.zeros(5, 3, 2, 2, dtype=torch.uint8)
    with pytest.raises(ExperimentError, match="not finite"):
        Fidelity(Features("broken", Broken()), black).compare(black)


def test_the_classifier_learns_repeats_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = digits(1).take(torch.arange(512))
    assert pictures.labels is not None
    state = torch.random.get_rng_state()
    first = get("classifier", pictures=pictures, data=tmp_path)
    assert torch.equal(state, torch.random.get_rng_state())
    again = get("classifier", pictures=pictures)
    assert torch.equal(first.of(pictures.images), again.of(pictures.images))
    module = again.module
    right = module.head(again.of(pictures.images)).argmax(1) == pictures.labels
    assert right.float().mean() > 0.9

    def forbidden(*args: Any) -> None:
        raise AssertionError("it is on disk")

    monkeypatch.setattr(small_classifier, "_train", forbidden)
    kept = get("classifier", pictures=pictures, data=tmp_path)
    assert torch.equal(kept.of(pictures.images), again.of(pictures.images))
    [file] = (tmp_path / "features").glob("*.pt")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ExperimentError, match="is damaged; remove it"):
        get("classifier", pictures=pictures, data=tmp_path)


def test_a_classifier_that_cannot_be_kept_beside_the_data_is_kept_for_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where the folder should be stands for one that cannot be written, for root too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "features").touch()
    get("classifier", pictures=digits(1).take(torch.arange(64)), data=tmp_path)
    assert len(list((tmp_path / "home" / "atomsep" / "features").glob("*.pt"))) == 1
