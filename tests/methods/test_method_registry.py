"""The table of methods: what it says about the classes, and methods of one's own in it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atomsep.methods
from atomsep.cli.main import main
from atomsep.experiments.registry import EXPERIMENTS
from atomsep.experiments.runs import find_results
from atomsep.experiments.synthetic.mixtures import FEATURES
from atomsep.methods import METHODS, Method, make_method, register
from atomsep.methods.registry import OfferedMethods
from atomsep.report.tables import build_tables

BUILT_IN = dict(METHODS)
entries = pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "plain"])


@pytest.fixture
def own() -> Iterator[None]:
    """What a test registers is gone afterwards."""
    yield
    METHODS.clear()
    METHODS.update(BUILT_IN)


def make(name: str, **options: Any) -> Any:
    return make_method(name, **({"features": 3} | options))


# The methods of the package


def test_names_and_titles() -> None:
    assert {name: entry.title for name, entry in METHODS.items()} == {
        "plain": "Plain",
        "hinge-1": "Hinge (1-norm)",
        "hinge-2": "Hinge (2-norm)",
        "rank-h": "Rank-H",
        "simclr": "SimCLR",
        "simcse": "SimCSE",
        "mixcse": "MixCSE",
        "sscl": "SSCL",
        "vq": "VQ",
        "koleo": "KoLeo",
        "vicreg": "VICReg",
        "mode-seeking": "Mode seeking",
        "atom": "Atom Modeling",
        "atom-no-neutrality": "Atom Modeling w/o constraint 1",
        "atom-no-occupancy": "Atom Modeling w/o constraint 2",
        "atom-no-constraints": "Atom Modeling w/o constraint",
        "atom-no-energy": "Atom Modeling w/o energy",
    }
    assert all(entry.summary and "\n" not in entry.summary for entry in METHODS.values())


def test_the_table_is_read_without_torch() -> None:
    lines = (
        "import sys",
        "from atomsep.methods import METHODS",
        "from atomsep.methods.registry import OfferedMethods",
        "assert METHODS['vq'].options and list(OfferedMethods('gan'))",
        "print('torch' in sys.modules)",
        "METHODS['vq'].factory",
        "print('torch' in sys.modules)",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@entries
def test_an_entry_says_what_its_class_says(name: str) -> None:
    entry, method = METHODS[name], make(name)
    parameters = list(inspect.signature(type(method)).parameters)
    assert set(entry.fixed) <= set(parameters)
    assert list(entry.options) == [
        key for key in parameters if key not in {"features", "seed", *entry.fixed}
    ]
    assert entry.needs_labels == method.needs_labels
    assert entry.second_view == method.second_view


def test_every_method_of_the_package_is_in_the_table() -> None:
    folder = Path(atomsep.methods.__file__).parent
    modules = [import_module(f"atomsep.methods.{path.stem}") for path in folder.glob("*.py")]
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value is not Method
    }
    assert found == {type(make(name)) for name in BUILT_IN if name != "plain"}
    assert all(getattr(atomsep.methods, kind.__name__) is kind for kind in found)
    with pytest.raises(AttributeError, match="has no attribute 'SimCRL'"):
        atomsep.methods.SimCRL  # noqa: B018


def test_plain_makes_no_method() -> None:
    assert make("plain") is None
    assert METHODS["plain"].factory is None


def test_a_name_stands_for_its_setting() -> None:
    assert make("hinge-1").norm == 1
    assert make("hinge-2").norm == 2
    assert make("vq", features=7).codes.shape == (512, 7)


@pytest.mark.parametrize("name", ["simclr", "simcse", "mixcse", "sscl"])
def test_options_reach_the_method(name: str) -> None:
    assert make(name, temperature=0.125).temperature == 0.125
    with pytest.raises(ValueError, match="temperature must be above 0, not 0"):
        make(name, temperature=0)


def test_unknown_names_and_options() -> None:
    with pytest.raises(ValueError, match="no method 'simcrl'; did you mean 'simclr'?"):
        make("simcrl")
    with pytest.raises(ValueError, match="no method 'zzz'; the methods are plain, hinge-1, .*atom"):
        make("zzz")
    with pytest.raises(ValueError, match="'mixcse' has no option 'tau'; it takes temperature, mix"):
        make("mixcse", tau=1)
    with pytest.raises(ValueError, match="'hinge-1' has no option 'norm'; it takes no options"):
        make("hinge-1", norm=2)
    with pytest.raises(ValueError, match="'plain' has no option 'norm'; it takes no options"):
        make("plain", norm=2)
    with pytest.raises(ValueError, match="'atom-no-neutrality' has no option 'neutrality'"):
        make("atom-no-neutrality", neutrality=1.0)
    with pytest.raises(ValueError, match="features must be at least 1, not 0"):
        make("plain", features=0)


# Methods of one's own


class Spread(Method):
    """Spreads samples along every feature."""

    def __init__(self, features: int, power: float = 1.0, sign: float = -1.0) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(features))
        self.power, self.sign = power, sign

    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        return self.sign * (latent.mean(1) * self.scale).std(0).pow(self.power).mean()


class Classes(Spread):
    needs_labels = True


class Views(Spread):
    second_view = "dropout"


class Bare(Method):
    def loss(
        self, latent: Tensor, labels: Tensor | None, mask: Tensor | None, second: Tensor | None
    ) -> Tensor:
        return latent.mean()


@pytest.mark.usefixtures("own")
def test_a_registered_method_is_made_by_its_name() -> None:
    register("spread", Spread, "spreads samples", title="Spread", sign=-2.0)
    register("bare", Bare, "the mean")
    assert METHODS["spread"].options == ("power",)
    assert METHODS["spread"].title == "Spread"
    assert METHODS["bare"].options == ()
    assert METHODS["bare"].title == "bare"
    method = make("spread", features=5, power=2.0)
    assert (method.power, method.sign, method.scale.shape) == (2.0, -2.0, (5,))


@pytest.mark.usefixtures("own")
def test_experiments_offer_registered_methods_that_they_can_serve() -> None:
    everywhere = {name for name, each in EXPERIMENTS.items() if "atom" in each.methods}
    assert everywhere == EXPERIMENTS.keys()
    register("anywhere", Spread, "needs nothing")
    register("classes", Classes, "needs labels")
    register("views", Views, "needs dropout")
    register("some", Spread, "only where it is meant for", families=["images"])
    offering = {
        name: {key for key, each in EXPERIMENTS.items() if name in each.methods}
        for name in ("anywhere", "classes", "views", "some")
    }
    gans = {"mnist-gan", "cifar10-gan", "own-gan", "stacked-mnist-gan", "faces-gan"}
    assert offering == {
        "anywhere": everywhere,
        "classes": everywhere - gans,
        "views": {"cola", "poem", "own-text"},
        "some": {"pets", "flowers", "imagenet", "own-images"},
    }
    assert list(OfferedMethods("mine"))[-1] == "anywhere"


@pytest.mark.usefixtures("own")
def test_what_cannot_be_registered() -> None:
    with pytest.raises(TypeError, match=r"subclass of atomsep.methods.Method, not <class 'int'>"):
        register("number", int, "a number")  # type: ignore[arg-type]
    for name in ("", "Spread", "a/b", "a,b", "-a", "a--b", "a b"):
        with pytest.raises(ValueError, match="lowercase letters, digits and hyphens"):
            register(name, Spread, "spreads samples")
    with pytest.raises(ValueError, match="there is a method 'atom' already; choose another name"):
        register("atom", Spread, "spreads samples")
    register("spread", Spread, "spreads samples")
    with pytest.raises(ValueError, match="there is a method 'spread' already"):
        register("spread", Bare, "another one")
    register("spread", Spread, "the same class, as when a notebook's cell is run again")
    assert METHODS["spread"].summary.startswith("the same class")


@pytest.mark.usefixtures("own")
def test_a_registered_method_is_trained_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register("spread", Spread, "spreads samples", title="Spread", label="spread\nout")

    def atomsep_(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        assert stopped.value.code == 0
        return capsys.readouterr().out

    assert "spreads samples" in atomsep_("list")
    assert "spreads samples" in atomsep_("list", "synthetic")
    where = ("--tiny", "--out", str(tmp_path), "--device", "cpu")
    for method in ("plain", "spread"):
        atomsep_("train", "synthetic", "--method", method, *where)
    by_method = {result["method"]: result for result in find_results(tmp_path)}
    assert by_method["spread"]["settings"]["weight"] == 0.1
    assert by_method["spread"]["last_epoch"]["method"] < 0
    [table] = build_tables(list(by_method.values()))
    assert [row[0].text for row in table.sections[0].rows] == ["Cross-Entropy", "Spread"]
    trained = next(tmp_path.rglob("spread-*/**/model.pt"))
    scale = torch.load(trained, weights_only=True)["method"]["scale"]
    assert scale.shape == (FEATURES,)
    assert (scale > 1).all(), "the optimiser trains the method's own parameters"
