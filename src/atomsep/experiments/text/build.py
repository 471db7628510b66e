"""From the settings of text classification to a classifier with its sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from atomsep.experiments.classification import Classification
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.optimisers import make_optimiser
from atomsep.experiments.predicting import Shown
from atomsep.experiments.randomness import seeded
from atomsep.experiments.samples import Sets
from atomsep.experiments.task import Context, Task
from atomsep.experiments.text.data import read_cola, read_poem
from atomsep.experiments.text.experiments import TextSettings
from atomsep.experiments.text.feed import TokenFeed, tokenise
from atomsep.experiments.text.inputs import ENCODER, TextInputs
from atomsep.experiments.text.models import load_encoder, quiet
from atomsep.experiments.text.own import read_own_text
from atomsep.experiments.text.tiny import agreement, verses
from atomsep.experiments.trained import Saved, TrainedClassifier
from atomsep.methods import METHODS


def build(
    context: Context,
    read: Callable[[Context], Sets],
    tiny: Callable[[int, int], Sets],
    metrics: Callable[[int], Mapping[str, Any]],
) -> Task:
    """A classifier with its sentences.

    Args:
        context: context of the run.
        read: reads the sentences.
        tiny: makes those of the tiny form, from the numbers of training and test samples.
        metrics: makes the metrics for a number of classes.
    """
    settings: TextSettings = context.settings
    if context.tiny and getattr(settings, "file", None):
        raise ExperimentError("--tiny trains on embedded sentences; omit either --tiny or file=…")
    if context.tiny:
        train, test = tiny(192, 64)
        train, held_out = train.with_held_out(test, 0.2, context.validation)
    else:
        train, held_out = read(context)
    classes = len(train.classes)
    with seeded(context.seed, "initial weights"), context.fabric.rank_zero_first():
        tokenizer, model = load_encoder(
            settings.model, classes, train.stored, download=context.download
        )
    context = replace(context, settings=with_charge(settings, context.method, context.seed, model))
    train_feed, test_feed = (
        TokenFeed(
            tokenise(texts, tokenizer, settings.max_length, context.fabric.device, context.data_on),
            batch=settings.batch,
            seed=context.seed,
            shard=context.shard,
            bucketed=settings.bucketed,
        )
        for texts in (train, held_out)
    )
    return Classification(
        context,
        model,
        without_decay_of_vectors(context, model),
        train_feed,
        test_feed.held_out,
        partial(metrics, classes),
        shown=Shown(
            TextInputs(tokenizer, settings.max_length),
            held_out.stored.__getitem__,
            held_out.labels,
            train.classes,
        ),
        features=getattr(model.config, "hidden_size", 0),
        schedule=settings.schedule,
        warmup=settings.warmup,
        clip=settings.clip,
    )


def with_charge(settings: TextSettings, method: str, seed: int, model: Any) -> TextSettings:
    """Settings whose method has an untrained map as its charge, if they ask for a learned one."""
    if settings.charge != "learned" or "charge" not in METHODS[method].options:
        return settings
    with seeded(seed, "charge"):
        charge = nn.Linear(model.config.hidden_size, 1)
    return replace(settings, method={**settings.method, "charge": charge})


def load(saved: Saved) -> TrainedClassifier:
    """The trained classifier of a run."""
    settings: TextSettings = saved.settings
    tokenizer, untrained = read_encoder(saved)
    model = saved.weights_into(untrained, "model")
    settings = with_charge(settings, saved.result["method"], saved.result["seed"], model)
    binding = saved.bound(model, settings, getattr(model.config, "hidden_size", 0))
    return TrainedClassifier(saved, model, binding, TextInputs(tokenizer, settings.max_length))


def read_encoder(saved: Saved) -> tuple[Any, Any]:
    """The tokenizer of a run, and its model without the trained weights.

    Raises:
        ExperimentError: the run has not left them.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    place = saved.folder / ENCODER
    if not place.is_dir():
        raise saved.too_old(f"there is no {ENCODER}/")
    try:
        with quiet():
            config = AutoConfig.from_pretrained(place, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
            return tokenizer, AutoModelForSequenceClassification.from_config(config)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ExperimentError(f"{place} does not hold an encoder ({reason})") from error


def without_decay_of_vectors(context: Context, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW without weight decay for biases and norms, which are all the vectors."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = context.settings.weight_decay
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return make_optimiser(torch.optim.AdamW, groups, context, weight_decay=0.0)


def cola_metrics(classes: int) -> Mapping[str, Any]:
    """Matthews correlation, accuracy, and the calibration of the predictions."""
    from torchmetrics.classification import MulticlassAccuracy, MulticlassMatthewsCorrCoef

    from atomsep.experiments.metrics import calibration

    return {
        "mcc": MulticlassMatthewsCorrCoef(classes),
        "accuracy": MulticlassAccuracy(classes, average="micro"),
        **calibration(classes),
    }


def poem_metrics(classes: int) -> Mapping[str, Any]:
    """F1 over the classes that occur in the labels, its other averages, and calibration."""
    from torchmetrics.classification import MulticlassF1Score

    from atomsep.experiments.metrics import F1InTruth, calibration

    return {
        "f1": F1InTruth(classes),
        "f1_micro": MulticlassF1Score(classes, average="micro"),
        "f1_weighted": MulticlassF1Score(classes, average="weighted"),
        "f1_macro_all": MulticlassF1Score(classes, average="macro"),
        **calibration(classes),
    }


def own_metrics(classes: int) -> Mapping[str, Any]:
    """Accuracy, Matthews correlation, and F1 over the classes that occur in the labels."""
    from atomsep.experiments.metrics import F1InTruth

    return {**cola_metrics(classes), "f1": F1InTruth(classes)}


build_cola = partial(build, read=read_cola, tiny=agreement, metrics=cola_metrics)
build_poem = partial(build, read=read_poem, tiny=verses, metrics=poem_metrics)
build_own = partial(build, read=read_own_text, tiny=agreement, metrics=own_metrics)
