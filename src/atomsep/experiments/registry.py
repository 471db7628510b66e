"""All experiments, by name."""

from __future__ import annotations

from collections.abc import Sequence

from atomsep.experiments.errors import ExperimentError, unknown
from atomsep.experiments.gan.experiments import GANS
from atomsep.experiments.images.experiments import IMAGES
from atomsep.experiments.runs import NAME, RunKey
from atomsep.experiments.settings import change, override
from atomsep.experiments.synthetic.experiment import SYNTHETIC
from atomsep.experiments.task import Experiment
from atomsep.experiments.text.experiments import TEXTS
from atomsep.methods import METHODS

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (SYNTHETIC, *GANS, *IMAGES, *TEXTS)
}
"""Experiments by name; `register_experiment` adds to them."""

DEFAULT_WEIGHT = 0.1
"""Weight of a method for which an experiment gives none."""

LAST_SEED = 2**63 - 1
"""The largest seed; random generators take no larger one."""


def register_experiment(experiment: Experiment) -> None:
    """Add an experiment of your own, for the command line, sweeps and tables.

    Call it in a module of yours, and name the module before the command:

        atomsep --import my_experiments list
        atomsep --import my_experiments train my-task

    The module is looked for in the current folder and where Python finds installed ones.

    Raises:
        ExperimentError: the name is taken or cannot be a folder's name, or a method is unknown.

    Example:
        >>> from dataclasses import replace
        >>> mine = replace(find_experiment("synthetic"), name="my-mixtures", title="My mixtures")
        >>> register_experiment(mine)
        >>> find_experiment("my-mixtures").title
        'My mixtures'
        >>> del EXPERIMENTS["my-mixtures"]
    """
    name = experiment.name
    if not NAME.fullmatch(name):
        raise ExperimentError(
            f"an experiment cannot be named {name!r}; use letters, digits, '.', '_' and '-'"
        )
    if EXPERIMENTS.get(name, experiment) is not experiment:
        raise ExperimentError(f"there already is an experiment {name!r}; choose another name")
    for method in (*experiment.methods, *experiment.weights):
        if method not in METHODS:
            raise unknown("method", method, METHODS, f"for {name}")
    EXPERIMENTS[name] = experiment


def find_experiment(name: str) -> Experiment:
    """An experiment by its name.

    Raises:
        ExperimentError: there is none of that name; the message has the closest.

    Example:
        >>> find_experiment("synthetic").metric
        'accuracy'
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def check(experiment: Experiment, key: RunKey) -> None:
    """See whether a run can start, as far as its settings tell at once.

    Raises:
        ExperimentError: it cannot.
    """
    if experiment.check is not None and not key.tiny:
        experiment.check(key.settings)


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
        experiment: a row of the paper, or one of your own.
        method: one of the experiment's methods.
        seed: determines data order, initial weights and all other random numbers.
        assignments: settings to change, as `key=value`.
        tiny: the form on embedded data.
        validation: evaluate on held-out training samples, not on the test samples.

    Raises:
        ExperimentError: the method, a setting or an option is unknown, or a value does not fit.

    Example:
        >>> run_key(find_experiment("synthetic"), "atom", 0, ["epochs=3"]).settings.weight
        12.5
    """
    if method not in experiment.methods:
        raise unknown("method", method, experiment.methods, f"for {experiment.name}")
    if not 0 <= seed <= LAST_SEED:
        raise ExperimentError(f"a seed must be between 0 and {LAST_SEED}, not {seed}")
    settings = override(experiment.settings, experiment.tiny if tiny else {})
    settings = change(settings, assignments)
    if method == "plain":  # has neither, and is one run whatever the others are given
        settings = override(settings, {"weight": 0.0, "method": {}})
    elif settings.weight is None:
        weight = experiment.weights.get(method, DEFAULT_WEIGHT)
        settings = override(settings, {"weight": weight})
    options = METHODS[method].options
    for name in settings.method:
        if name not in options:
            raise ExperimentError(
                f"method {method!r} has no option {name!r}; it takes "
                f"{', '.join(options) or 'no options'}"
            )
    return RunKey(experiment.name, method, seed, settings, tiny, validation)
