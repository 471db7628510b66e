"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Sequence

from atomsep.experiments.errors import unknown
from atomsep.experiments.gan.experiments import GANS
from atomsep.experiments.images.experiments import IMAGES
from atomsep.experiments.runs import RunKey
from atomsep.experiments.settings import change, override
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.task import Experiment
from atomsep.experiments.text.experiments import TEXTS

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (SYNTHETIC, *GANS, *IMAGES, *TEXTS)
}


def find_experiment(name: str) -> Experiment:
    """An experiment by its name.

    Raises:
        ExperimentError: there is none of that name; the message has the nearest.

    Example:
        >>> find_experiment("synthetic").metric
        'accuracy'
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


DEFAULT_WEIGHT = 0.1
"""Of a method that an experiment has no weight for."""


def run_key(
    experiment: Experiment,
    method: str,
    seed: int,
    assignments: Sequence[str] = (),
    *,
    tiny: bool = False,
    validation: bool = False,
) -> RunKey:
    """A run of an experiment, with all its settings.

    Args:
        experiment: the row of the paper.
        method: one of the experiment's methods.
        seed: of the run.
        assignments: settings to change, as `key=value`.
        tiny: the form on embedded data.
        validation: evaluate on held-out training samples, not on the test samples.

    Raises:
        ExperimentError: the method or a setting is unknown, or a value does not fit.

    Example:
        >>> run_key(find_experiment("synthetic"), "atom", 0, ["epochs=3"]).settings.weight
        12.5
    """
    if method not in experiment.methods:
        raise unknown("method", method, experiment.methods, f"for {experiment.name}")
    settings = override(experiment.settings, experiment.tiny if tiny else {})
    settings = change(settings, assignments)
    if method == "plain":  # has neither, and is one run whatever the others are given
        settings = override(settings, {"weight": 0.0, "method": {}})
    elif settings.weight is None:
        weight = experiment.weights.get(method, DEFAULT_WEIGHT)
        settings = override(settings, {"weight": weight})
    return RunKey(experiment.name, method, seed, settings, tiny, validation)
