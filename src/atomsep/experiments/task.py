"""What an experiment gives to the training loop, and what it gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.progress import Listener
from atomsep.experiments.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric
    from torch import Tensor

    from atomsep.experiments.atoms_file import Atoms
    from atomsep.experiments.latent import MethodOnLayer
    from atomsep.experiments.loading import Shard
    from atomsep.experiments.trained import Saved, TrainedRun


@dataclass(frozen=True)
class Context:
    """Everything that an experiment builds its task from.

    Attributes:
        settings: settings of the run.
        method: name of the method; see `atomsep.methods`.
        seed: seed of the run.
        fabric: device, precision, processes.
        data: folder of the data sets.
        download: whether to fetch missing data.
        tiny: the form on embedded data, which runs in seconds.
        validation: hold out a part of the training samples and evaluate on it, not on the test
            samples.
        workers: number of processes that load data.
        folder: folder of the run, for the task's own files.
        data_on: where the data is kept during training; see `Machine`.
        listener: receives the progress of the preparation.
    """

    settings: Any
    method: str
    seed: int
    fabric: Fabric
    data: Path
    download: bool = False
    tiny: bool = False
    validation: bool = False
    workers: int = 0
    folder: Path | None = None
    data_on: str = "auto"
    listener: Listener = field(default_factory=Listener)

    @property
    def shard(self) -> Shard:
        """This process among all."""
        from atomsep.experiments.loading import Shard

        return Shard(self.fabric.global_rank, self.fabric.world_size)


class Task(ABC):
    """A model in training. The loop calls `step` for every batch, and `evaluate` now and then.

    A task must not keep random state between steps: the loop seeds the global generators before
    each. Evaluating must not change how the training goes on.

    Attributes:
        steps: batches per epoch.
        unreadable: names of samples that were left out because they could not be loaded.
        on_layer: the method on its layer, if the task has one.
    """

    steps: int
    on_layer: MethodOnLayer | None = None

    def __init__(self) -> None:
        self.unreadable: set[str] = set()

    @abstractmethod
    def batches(self, epoch: int, start: int) -> Iterable[Any]:
        """The batches of an epoch, starting with batch number `start`."""

    @abstractmethod
    def step(self, batch: Any, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch; returns the parts of the loss, detached and weighted.

        The task's own parts come first; the method's is called "method".

        Args:
            batch: a batch of `batches`.
            progress: share of the training that is done, from 0 to 1, for schedules.
        """

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics on the held-out samples."""

    def evaluate_once(self) -> dict[str, float]:
        """Further metrics, which are computed once, at the end of the training."""
        return {}

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """What a checkpoint must hold: models, optimisers and the method, by name."""

    def distances(self) -> Tensor | None:
        """Quantiles of the atomic distances of some samples, always the same; see `distances.py`.

        None if the method's layer has no tokens.
        """
        return None

    def broken_down(self, lines: Sequence[Mapping[str, Any]]) -> str | None:
        """A sentence if the training has broken down, from the run's lines of metrics; or None."""
        return None

    def describe(self) -> dict[str, Any]:
        """What `config.json` must hold so that the trained model can be used without its data.

        JSON values; "classes" are the names of the classes.
        """
        return {}

    def atoms(self, most: int) -> Atoms | None:
        """At most so many held-out or generated samples with their charges, always the same.

        None if the method does not measure importance.
        """
        return None

    def finish(self) -> list[Path]:
        """Write what the task leaves at the end (pictures, tokenizers); returns the files."""
        return []


@dataclass(frozen=True)
class Experiment:
    """A row of the paper, or a user's own, by name.

    A declaration should import nothing heavy, so that the command line can list it at once; see
    `deferred`.

    Attributes:
        name: its name on the command line.
        title: its name in tables.
        summary: one line for `atomsep list`.
        settings: the settings with the experiment's defaults.
        tiny: other defaults for the tiny form.
        build: makes the task.
        methods: names of the methods that make sense here; "plain" first.
        metric: the metric that tables show and searches maximise or minimise.
        higher_is_better: whether a larger metric is better.
        percent: whether tables show the metric times 100.
        plain: what tables call the method "plain" here.
        weights: weights of the methods' losses, for the default settings.
        large_share: whether these weights are known to outweigh the task at the layer, and to help.
        check: raises an ExperimentError for settings that cannot work, before anything slow is
            imported; the tiny form is not checked. None if there is nothing to check.
        learning_rates: learning rates that a search tries.
        weight_decays: weight decays that a search tries; the settings must have a `weight_decay`.
        weight_grid: weights that a search tries, by method; "" for all others.
        load: makes the trained model of a finished run; None if `load_run` cannot.
    """

    name: str
    title: str
    summary: str
    settings: Settings
    tiny: Mapping[str, Any]
    build: Callable[[Context], Task]
    methods: Sequence[str]
    metric: str
    higher_is_better: bool = True
    percent: bool = True
    plain: str = "Cross-Entropy"
    weights: Mapping[str, float] = field(default_factory=dict)
    learning_rates: tuple[float, ...] = ()
    weight_decays: tuple[float, ...] = ()
    weight_grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    load: Callable[[Saved], TrainedRun] | None = None
    large_share: bool = False
    check: Callable[[Any], None] | None = None


def deferred(where: str) -> Callable[[Any], Any]:
    """The function that `package.module:function` names, imported only when it is called.

    Example:
        >>> build = deferred("my_package.my_module:build")  # nothing is imported
    """
    module, _, function = where.partition(":")

    def call(argument: Any) -> Any:
        return getattr(import_module(module), function)(argument)

    return call


def main_metric(experiment: Experiment, metrics: Mapping[str, float]) -> str:
    """The metric of a result that tables show and searches go by.

    It is the experiment's own. A Fréchet distance over features other than Inception's is not an
    FID, has its own name, and takes the FID's place.

    Raises:
        ExperimentError: the result has neither.
    """
    if experiment.metric in metrics:
        return experiment.metric
    others = [name for name in metrics if name.startswith("frechet_")]
    if experiment.metric != "fid" or len(others) != 1:
        raise ExperimentError(
            f"a result of {experiment.name} has no {experiment.metric}, but "
            f"{', '.join(metrics) or 'no metric at all'}; remove it to train the run again"
        )
    return others[0]
