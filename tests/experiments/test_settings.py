"""Settings: from key=value to typed fields, with errors that help."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.settings import Settings, change, describe, override, setting


@dataclass(frozen=True)
class Example(Settings):
    decay: bool = setting(False, "whether the rate falls")
    name: str = setting("a", "name of something")
    share: float = setting(0.5, "share of something", low=0, high=1)
    colours: int = setting(1, "number of colours", choices=(1, 3))


def test_values_get_the_type_of_their_field() -> None:
    changed = change(
        Example(), ["epochs=3", "learning-rate=1", "decay=yes", "name=5", "weight=none"]
    )
    assert (changed.epochs, changed.learning_rate, changed.decay) == (3, 1.0, True)
    assert isinstance(changed.learning_rate, float)
    assert (changed.name, changed.weight) == ("5", None)


def test_options_of_the_method_keep_their_kind() -> None:
    changed = change(Example(), ["method.norm=1", "method.scale=sum", "method.softening=0.5"])
    assert changed.method == {"norm": 1, "scale": "sum", "softening": 0.5}
    nested = "[" * 100_000
    assert change(Example(), [f"method.scale={nested}"]).method == {"scale": nested}
    assert change(changed, ["method.norm=2"]).method["scale"] == "sum"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epoch=3", "there is no setting 'epoch'; did you mean 'epochs'?"),
        ("epochs", "'epochs' sets nothing; write key=value"),
        ("method=vq", "'method=vq' is not a setting; choose a method with --method"),
        ("epochs=three", "epochs must be a whole number, not 'three'"),
        ("epochs=0", "epochs must be at least 1, not 0"),
        ("learning_rate=fast", "learning_rate must be a number, not 'fast'"),
        ("learning_rate=nan", "learning_rate must be a finite number, not nan"),
        ("weight=inf", "weight must be a finite number, not inf"),
        ("share=inf", "share must be a finite number, not inf"),
        ("weight=-1", "weight must be at least 0, not -1"),
        ("batch=9999999999999999999999", "batch must be at most 2147483647, not 99999999999999"),
        ("batch=" + "9" * 400, "batch must be at most 2147483647, not 99999999999999"),
        ("share=1.5", "share must be at most 1, not 1.5"),
        ("colours=2", "there is no choice '2' for colours. Available: 1, 3"),
        ("decay=perhaps", "decay must be true or false, not 'perhaps'"),
        ("precision=32-tru", "no choice '32-tru' for precision; did you mean '32-true'?"),
    ],
)
def test_what_does_not_fit_is_said(assignment: str, message: str) -> None:
    with pytest.raises(ExperimentError) as error:
        change(Example(), [assignment])
    assert message in str(error.value)


def test_the_digest_tells_settings_apart() -> None:
    assert Example().digest() == Example().digest()
    digests = {
        change(Example(), [one]).digest() for one in ("epochs=2", "name=b", "method.a=1", "decay=1")
    }
    assert len(digests | {Example().digest()}) == 5


def test_every_experiment_has_settings_that_hold_in_both_forms() -> None:
    for experiment in EXPERIMENTS.values():
        tiny = override(experiment.settings, experiment.tiny)
        assert tiny.epochs <= experiment.settings.epochs, experiment.name
        assert experiment.methods[0] == "plain"
        assert "atom" in experiment.methods
        assert set(experiment.weights) <= set(experiment.methods), experiment.name
        assert all(meaning for _, _, meaning in describe(experiment.settings))


def test_a_run_has_its_weight_whatever_the_default_becomes() -> None:
    synthetic = EXPERIMENTS["synthetic"]
    assert run_key(synthetic, "atom", 0).settings.weight == synthetic.weights["atom"]
    assert run_key(synthetic, "atom", 0, ["weight=3"]).settings.weight == 3
    plain = run_key(synthetic, "plain", 0, ["weight=3"])
    assert plain.settings.weight == 0, "the plain method has none, and is one run for all weights"
    assert plain.settings.digest() == run_key(synthetic, "plain", 0).settings.digest()
    assert run_key(synthetic, "plain", 0, ["method.norm=1"]).settings.method == {}


def test_a_method_of_other_experiments_is_refused() -> None:
    with pytest.raises(ExperimentError, match="no method 'vq' for synthetic"):
        run_key(EXPERIMENTS["synthetic"], "vq", 0)
