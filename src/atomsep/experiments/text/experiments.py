"""Text classification: CoLA, Poem sentiment (the paper's table 5), and own sentences.

The paper fine-tunes BERT and leaves the recipe open; here it is the schedule of the model's authors
(warm-up over a tenth, linear decay) at the rate of Hugging Face's example. CoLA
is evaluated on its dev sets, as GLUE's own test labels are secret. Poem's test set has no verse
of mixed sentiment: F1 is the mean over the classes that it has, with the other averages beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from atomsep.experiments.classification import SCHEDULES, Classification
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.loading import LoaderFeed
from atomsep.experiments.randomness import seeded
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Context, Experiment, Task
from atomsep.experiments.text.data import TextSets, read_cola, read_poem
from atomsep.experiments.text.models import TINY, Pad, Tokens, load_encoder
from atomsep.experiments.text.own import read_own_text
from atomsep.experiments.text.tiny import agreement, read_tiny, verses
from atomsep.methods.registry import ATOM_MODELING, METHODS, OfferedMethods

CHARGES = ("feature", "learned")


@dataclass(frozen=True)
class TextSettings(Settings):
    """Settings of text classification."""

    epochs: int = setting(3, "passes over the training samples", low=1)
    batch: int = setting(32, "samples a step, over all devices", low=1)
    learning_rate: float = setting(2e-5, "of AdamW", low=0)
    layer: str = setting(
        "*encoder.layer.0", "the layer that the method acts on, by its dotted name or a pattern"
    )
    model: str = setting("bert-base-cased", "of Hugging Face by its name, or a folder")
    max_length: int = setting(128, "tokens of a sentence; what is longer is cut", low=4)
    weight_decay: float = setting(0.01, "of all but biases and norms", low=0)
    schedule: str = setting("linear", "of the learning rate", choices=tuple(SCHEDULES))
    warmup: float = setting(0.1, "share of the training over which the rate rises", low=0)
    clip: float = setting(1.0, "largest norm of the gradient; 0: any", low=0)
    charge: str = setting(
        "feature", "of atom modeling: the first feature, or a learned map of all", choices=CHARGES
    )


@dataclass(frozen=True)
class TableSettings(TextSettings):
    """Settings of text classification from a table."""

    file: str = setting(
        "", "a .csv or .tsv with a header, or package.module:function, which returns the samples"
    )
    test_file: str = setting("", "the test samples; a fifth of file if not set")
    text_column: str = setting("text", "name of the column that holds the sentences")
    label_column: str = setting("label", "name of the column that holds the classes")


def build(
    context: Context,
    read: Callable[[Context], TextSets],
    tiny: Callable[[], TextSets],
    metrics: Callable[[int], Mapping[str, Any]],
) -> Task:
    """A classifier with its sentences.

    Args:
        context: of the run.
        read: finds the sentences.
        tiny: makes those of the tiny form.
        metrics: makes the metrics for a number of classes.
    """
    settings: TextSettings = context.settings
    if context.tiny and getattr(settings, "file", None):
        raise ExperimentError("--tiny trains on embedded sentences; leave it out, or file=…")
    train, held_out = read_tiny(context, tiny()) if context.tiny else read(context)
    classes = len(train.classes)
    with seeded(context.seed, "initial weights"), context.fabric.rank_zero_first():
        tokenizer, model = load_encoder(
            settings.model, classes, train.texts, download=context.download
        )
    if settings.charge == "learned" and "charge" in METHODS[context.method].options:
        with seeded(context.seed, "charge"):
            charge = nn.Linear(model.config.hidden_size, 1)
        options = {**settings.method, "charge": charge}
        context = replace(context, settings=replace(settings, method=options))
    load = partial(
        LoaderFeed,
        augment=unchanged,
        batch=settings.batch,
        seed=context.seed,
        shard=context.shard,
        collate=Pad(tokenizer),
        pin_memory=context.fabric.device.type == "cuda",
    )  # in this process: the tokens are in memory
    return Classification(
        context,
        model,
        make_optimiser(settings, model),
        load(Tokens(train, tokenizer, settings.max_length)),
        load(Tokens(held_out, tokenizer, settings.max_length), shuffle=False).batches,
        partial(metrics, classes),
        features=getattr(model.config, "hidden_size", 0),
        schedule=settings.schedule,
        warmup=settings.warmup,
        clip=settings.clip,
    )


def unchanged(stored: Any) -> Any:
    """Sentences are not augmented."""
    return stored


def make_optimiser(settings: TextSettings, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, which leaves biases and norms (all that is a vector) as large as they are."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=0.0)


def cola_metrics(classes: int) -> Mapping[str, Any]:
    """Matthews's correlation and accuracy."""
    from torchmetrics.classification import MulticlassAccuracy, MulticlassMatthewsCorrCoef

    return {
        "mcc": MulticlassMatthewsCorrCoef(classes),
        "accuracy": MulticlassAccuracy(classes, average="micro"),
    }


def poem_metrics(classes: int) -> Mapping[str, Any]:
    """F1 over the classes of the truth, and its other averages."""
    from torchmetrics.classification import MulticlassF1Score

    from atomsep.experiments.metrics import F1InTruth

    return {
        "f1": F1InTruth(classes),
        "f1_micro": MulticlassF1Score(classes, average="micro"),
        "f1_weighted": MulticlassF1Score(classes, average="weighted"),
        "f1_macro_all": MulticlassF1Score(classes, average="macro"),
    }


def own_metrics(classes: int) -> Mapping[str, Any]:
    """Accuracy, Matthews's correlation, F1 over the classes of the truth."""
    from atomsep.experiments.metrics import F1InTruth

    return {**cola_metrics(classes), "f1": F1InTruth(classes)}


COMMON: dict[str, Any] = {
    "tiny": {"model": TINY, "epochs": 3, "batch": 16, "learning_rate": 5e-3},
    "methods": OfferedMethods("text", "labels", "dropout"),
    # The 1-norm adds up all features of all tokens, and is by far the largest.
    "weights": {
        "hinge-1": 0.001,
        **dict.fromkeys(("hinge-2", "rank-h", "simcse", "mixcse", *ATOM_MODELING), 0.01),
    },
    "learning_rates": (1e-5, 2e-5, 3e-5, 5e-5, 1e-4),
    "weight_grid": {"": (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)},
}

COLA = Experiment(
    name="cola",
    title="CoLA",
    summary="an encoder fine-tuned on linguistic acceptability",
    settings=TextSettings(),
    build=partial(build, read=read_cola, tiny=partial(agreement, 192, 64), metrics=cola_metrics),
    metric="mcc",
    **COMMON,
)
POEM = Experiment(
    name="poem",
    title="Poem",
    summary="an encoder fine-tuned on the sentiment of verses",
    settings=TextSettings(),
    build=partial(build, read=read_poem, tiny=partial(verses, 192, 64), metrics=poem_metrics),
    metric="f1",
    **COMMON,
)
OWN_TEXT = Experiment(
    name="own-text",
    title="Own text",
    summary="any encoder fine-tuned on your own CSV or TSV",
    settings=TableSettings(),
    build=partial(build, read=read_own_text, tiny=partial(agreement, 192, 64), metrics=own_metrics),
    metric="accuracy",
    **COMMON,
)
TEXTS = (COLA, POEM, OWN_TEXT)
