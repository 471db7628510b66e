"""What an experiment gives to the training loop, and what it gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.loading import Shard
from atomsep.experiments.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Context:
    """Everything that an experiment builds its task from.

    Attributes:
        settings: of the run.
        method: name of the method; see `atomsep.methods`.
        seed: of the run.
        fabric: device, precision, processes.
        data: folder of the data sets.
        download: fetch data that is not there.
        tiny: the form on embedded data, which runs in seconds.
        validation: hold out a part of the training samples and evaluate on it, not on the test
            samples.
        workers: processes that load data.
        folder: of the run, for files of the task's own.
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

    @property
    def shard(self) -> Shard:
        """This process among all."""
        return Shard(self.fabric.global_rank, self.fabric.world_size)


class Task(ABC):
    """A model in training. The loop calls `step` for every batch, and `evaluate` at the end.

    Nothing random may be kept between steps: the loop seeds the global generators before each.

    Attributes:
        steps: batches an epoch.
        unreadable: samples that were left out because they could not be loaded, by name.
        beside: the part of the loss that the method's is added to; "": all of them.
    """

    steps: int
    beside: str = ""

    def __init__(self) -> None:
        self.unreadable: set[str] = set()

    @abstractmethod
    def batches(self, epoch: int, start: int) -> Iterable[Any]:
        """The batches of an epoch from the one with number `start` on."""

    @abstractmethod
    def step(self, batch: Any, progress: float) -> Mapping[str, Tensor]:
        """Train on one batch; returns the parts of the loss, detached and weighted.

        The task's own parts come first; the method's is called "method".

        Args:
            batch: from `batches`.
            progress: share of the training that is done, from 0 to 1, for schedules.
        """

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics on the samples held out."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """What must be saved to go on: models, optimisers, the method, by name."""

    def finish(self) -> list[Path]:
        """Write what the task shows at the end (pictures); returns the files."""
        return []


@dataclass(frozen=True)
class Experiment:
    """A row of the paper, or a user's own, by name.

    Attributes:
        name: on the command line.
        title: in tables.
        summary: one line for `atomsep list`.
        settings: with the experiment's defaults.
        tiny: what the tiny form sets otherwise.
        build: makes the task.
        methods: names of those that make sense here; "plain" first.
        metric: the one that tables show and searches go by.
        higher_is_better: which way it is good.
        percent: whether tables show the metric times 100.
        plain: what the method "plain" is called here.
        weights: of the methods' losses, for the settings as they are.
        learning_rates: that a search tries.
        weight_grid: that a search tries, by method; "" for all others.
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
    weight_grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def main_metric(experiment: Experiment, metrics: Mapping[str, float]) -> str:
    """The metric of a result that tables show and searches go by.

    That is the experiment's own, but for a Fréchet distance over features other than Inception's,
    which is no FID and has a name of its own.

    Raises:
        ExperimentError: the result has neither.
    """
    if experiment.metric in metrics:
        return experiment.metric
    others = [name for name in metrics if name.startswith("frechet_")]
    if experiment.metric != "fid" or len(others) != 1:
        raise ExperimentError(
            f"a result of {experiment.name} has no {experiment.metric}, but "
            f"{', '.join(metrics) or 'no metric at all'}; remove it, and the run is made again"
        )
    return others[0]
