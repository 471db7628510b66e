"""Finished runs to work with: the trained model with its method, ready to use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atomsep.experiments.entry_points import import_extensions
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.latent import bind, read_importance
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.predicting import Inputs, Prediction, predict
from atomsep.experiments.registry import find_experiment
from atomsep.experiments.runs import Run
from atomsep.experiments.settings import override
from atomsep.hooks.attachment import Attachment

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from atomsep.experiments.task import Experiment
    from atomsep.methods import Binding


Progress = Callable[[int, int], None]
"""Takes the number of samples that are done, and that of all."""


@dataclass(frozen=True)
class Saved:
    """What a finished run has left on disk.

    Attributes:
        folder: its folder.
        experiment: its experiment.
        settings: its settings, of the experiment's type.
        result: the contents of `result.json`.
        states: state dictionaries of the models and of the method, by name.
        fabric: device and precision.
    """

    folder: Path
    experiment: Experiment
    settings: Any
    result: Mapping[str, Any]
    states: Mapping[str, Mapping[str, Any]]
    fabric: Fabric

    def need(self, name: str) -> Any:
        """An entry of the result that older versions did not write.

        Raises:
            ExperimentError: it is missing.
        """
        if name not in self.result:
            raise self.too_old(f"result.json has no {name!r}")
        return self.result[name]

    def too_old(self, reason: str) -> ExperimentError:
        """The error for a run that does not hold all that its model needs."""
        return ExperimentError(
            f"{self.folder} does not hold what its model needs besides the weights ({reason}): an "
            f"older version of atomsep wrote it. Train the run again in another folder (--out)"
        )

    def weights_into(self, model: nn.Module, name: str) -> nn.Module:
        """A model with trained weights, in the run's precision and on its device.

        Raises:
            ExperimentError: the weights do not fit.
        """
        model = self.fabric.strategy.precision.convert_module(model).to(self.fabric.device)
        try:
            model.load_state_dict(self.states[name])
        except (KeyError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ExperimentError(
                f"{self.folder / 'model.pt'} does not fit the model that its settings describe "
                f"({reason}); if the model comes from a function of yours, it may have changed"
            ) from error
        return model

    def bound(self, model: nn.Module, settings: Any = None, features: int = 0) -> Binding | None:
        """The run's method on the model's layer, as in training; None for the plain method.

        Args:
            model: the model.
            settings: with other options of the method than `self.settings`.
            features: the layer's number of features, where the layer itself does not tell.
        """
        name: str = self.result["method"]
        if name == "plain":
            return None
        seed = self.result["seed"]
        method, binding = bind(name, model, settings or self.settings, seed, features)
        if method.state_dict():
            self.weights_into(method, "method")
        method.to(self.fabric.device)
        return binding


class TrainedRun:
    """A finished run; see [`load_run`][atomsep.load_run].

    Args:
        saved: what is on disk.
        model: the trained model.
        binding: the run's method on it.

    Attributes:
        folder: the run's folder.
        experiment: name of the experiment.
        method: name of the method.
        seed: its seed.
        settings: its settings.
        result: all of `result.json`; `result["metrics"]` are the metrics.
        model: the trained model.
        attachment: atom modeling on it; None for methods that do not measure importance.
    """

    def __init__(self, saved: Saved, model: nn.Module, binding: Binding | None) -> None:
        self.folder, self.settings, self.fabric = saved.folder, saved.settings, saved.fabric
        self.result = dict(saved.result)
        self.experiment: str = self.result["experiment"]
        self.method: str = self.result["method"]
        self.seed: int = self.result["seed"]
        self.model, self.binding = model, binding
        self.attachment: Attachment | None = getattr(binding, "attachment", None)

    @property
    def curves(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`: losses, statistics and metrics over the course of the run.

        The line of the first step, if there is one, has only the shares of the method's gradient.

        The metrics are those of the test samples. Do not choose a model by them.
        """
        text = Run(self.folder).metrics.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def predict(
        self, samples: Sequence[Any], *, progress: Progress | None = None
    ) -> list[Prediction]:
        """Predictions for samples; only classifiers have them.

        Raises:
            ExperimentError: the run is not of a classifier.
        """
        raise ExperimentError(f"{self.experiment} is not a classifier; call sample")

    def sample(self, count: int, *, seed: int | None = None, averaged: bool = False) -> Any:
        """Generated images; only GANs have them.

        Raises:
            ExperimentError: the run is not of a GAN.
        """
        raise ExperimentError(f"{self.experiment} generates no images; call predict")

    def __repr__(self) -> str:
        name, where = type(self).__name__, str(self.folder)
        return f"{name}({self.experiment!r}, method={self.method!r}, seed={self.seed}, {where!r})"


class TrainedClassifier(TrainedRun):
    """A finished run of a classifier.

    Attributes:
        classes: names of the classes.
        inputs: brings samples into the model; has the transform or the tokenizer.
    """

    def __init__(
        self, saved: Saved, model: nn.Module, binding: Binding | None, inputs: Inputs
    ) -> None:
        super().__init__(saved, model.eval(), binding)
        self.inputs = inputs
        self.classes: list[str] = saved.need("classes")

    def predict(
        self, samples: Sequence[Any], *, progress: Progress | None = None
    ) -> list[Prediction]:
        """Predictions with class names, probabilities and token importance, in the given order.

        Args:
            samples: images: paths, Pillow images, arrays `(H, W, 3)` or tensors `(3, H, W)`, as
                bytes or in [0, 1]; sentences: texts; mixtures: five numbers each.
            progress: called after every batch with the number of samples done and of all.

        Raises:
            ExperimentError: an image cannot be read.
            TypeError: a sample is of another kind.
            ValueError: a sample has another shape.
        """
        return predict(
            self.inputs,
            samples,
            fabric=self.fabric,
            model=self.model,
            importance=partial(read_importance, self.binding),
            classes=self.classes,
            batch=self.settings.batch,
            progress=progress,
        )


def load_run(folder: str | Path, *, device: str = "cpu") -> TrainedRun:
    """A finished run of `atomsep train` or `sweep`, ready to use: its model, method and results.

    It needs the run's folder alone, not the data. Modules that the run names are imported: those of
    `--import`, and those of your own models. Load only runs that you trust.

    Args:
        folder: the run's folder, which holds `result.json`.
        device: "cpu", "cuda", "mps" or "auto".

    Returns:
        A classifier in eval mode, with `predict`, or a GAN in training mode, with `sample`: a
        GAN's images are normalised by the statistics of their batch, as they are evaluated. Both
        have `model`, `attachment`, `settings`, `result` and `curves`.

    Raises:
        ExperimentError: the folder does not hold a finished run, or not all that it needs.

    Example:
        >>> import tempfile
        >>> from atomsep.experiments.registry import find_experiment, run_key
        >>> from atomsep.experiments.training import train
        >>> mixtures = find_experiment("synthetic")
        >>> key = run_key(mixtures, "atom", 0, tiny=True)
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     result = train(mixtures, key, Path(runs), Machine("cpu", tensorboard=False))
        ...     run = load_run(key.folder(Path(runs)))
        >>> [prediction] = run.predict([[1.0, 0.9, 1.2, -1.0, 0.8]])
        >>> prediction.name, prediction.importance.shape
        ('A', torch.Size([5]))
    """
    folder = Path(folder)
    run = Run(folder)
    result = run.read_result()
    if result is None:
        raise ExperimentError(
            f"{folder} holds no finished run: it has no result.json. Name a folder such as "
            f"runs/flowers/atom-1a2b3c4d/seed-0, and train the run to its end first"
        )
    import_extensions(result.get("imports", ()))
    experiment = find_experiment(result["experiment"])
    if experiment.load is None:
        raise ExperimentError(
            f"the experiment {experiment.name!r} does not say how its trained model is made; "
            f"register it with load="
        )
    settings = override(experiment.settings, result["settings"])
    machine = Machine(device=device, tensorboard=False)
    fabric = make_fabric(machine, settings.precision)
    try:
        states = torch.load(run.model, map_location=fabric.device, weights_only=True)
    except Exception as error:  # a damaged file can break its reader anywhere
        reason = str(error).strip().splitlines()[0]
        raise ExperimentError(
            f"{run.model} cannot be read ({reason}); train the run again in another folder"
        ) from error
    with torch.random.fork_rng(devices=[]):  # of initial weights, which are replaced
        return experiment.load(Saved(folder, experiment, settings, result, states, fabric))
