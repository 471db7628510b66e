"""Text classification: CoLA, Poem sentiment (the paper's table 5), and own sentences.

The paper fine-tunes BERT and does not state the recipe; here it is the schedule of BERT's authors
(warm-up over a tenth, linear decay) at the learning rate of Hugging Face's example. CoLA is
evaluated on its dev sets, because GLUE's test labels are secret. Poem's test set has no verse of
mixed sentiment: its F1 is the mean over the classes that occur, with the other averages beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from atomsep.experiments.entry_points import is_entry_point
from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.schedules import SCHEDULES
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Experiment, deferred
from atomsep.methods.registry import ATOM_MODELING, OfferedMethods

TINY = "tiny"
"""The model that needs no files: see `tiny_encoder`."""


@dataclass(frozen=True)
class TextSettings(Settings):
    """Settings of text classification."""

    epochs: int = setting(3, "passes over the training samples", low=1)
    batch: int = setting(32, "samples per step, over all devices", low=1)
    learning_rate: float = setting(2e-5, "learning rate of AdamW", low=0)
    layer: str = setting(
        "*encoder.layer.0", "layer that the method acts on, by its dotted name or a pattern"
    )
    model: str = setting("bert-base-cased", "name of a Hugging Face model, or a folder")
    max_length: int = setting(128, "tokens per sentence; longer ones are cut", low=4)
    bucketed: bool = setting(True, "whether sentences of similar length share a batch")
    weight_decay: float = setting(0.01, "weight decay of all but biases and norms", low=0)
    schedule: str = setting("linear", "schedule of the learning rate", choices=tuple(SCHEDULES))
    warmup: float = setting(
        0.1, "share of the training over which the learning rate rises", low=0, high=1
    )
    clip: float = setting(1.0, "largest norm of the gradient; 0: no limit", low=0)
    charge: str = setting(
        "feature",
        "charge of atom modeling: the first feature, or a learned map of all",
        choices=("feature", "learned"),
    )


@dataclass(frozen=True)
class TableSettings(TextSettings):
    """Settings of text classification from a table."""

    file: str = setting(
        "", "a .csv or .tsv with a header, or package.module:function, which returns the samples"
    )
    test_file: str = setting("", "file of the test samples; if not set, a fifth of file")
    text_column: str = setting("text", "name of the column that holds the sentences")
    label_column: str = setting("label", "name of the column that holds the classes")


def check_own_text(settings: TableSettings) -> None:
    """See that `file` names a file or a function, and `test_file` a file.

    Raises:
        ExperimentError: `file` is not set, or there is no such file.
    """
    if not settings.file:
        raise ExperimentError(
            "name the file of the sentences with --set file=FILE.csv or FILE.tsv, and its columns "
            "with --set text_column=NAME and --set label_column=NAME"
        )
    files = [settings.file] if not is_entry_point(settings.file) else []
    for file in (*files, *filter(None, [settings.test_file])):
        if not Path(file).exists():
            raise ExperimentError(f"there is no file {file}; name a .csv or .tsv with a header")


COLA = Experiment(
    name="cola",
    title="CoLA",
    summary="an encoder fine-tuned on linguistic acceptability",
    settings=TextSettings(),
    tiny={"model": TINY, "epochs": 3, "batch": 16, "learning_rate": 5e-3},
    build=deferred("atomsep.experiments.text.build:build_cola"),
    load=deferred("atomsep.experiments.text.build:load"),
    methods=OfferedMethods("text", "labels", "dropout"),
    metric="mcc",
    # The 1-norm adds up all features of all tokens, and is by far the largest.
    weights={
        "hinge-1": 0.001,
        "koleo": 0.02,
        **dict.fromkeys(("hinge-2", "rank-h", "simcse", "mixcse", "vicreg", *ATOM_MODELING), 0.01),
    },
    learning_rates=(1e-5, 2e-5, 3e-5, 5e-5, 1e-4),
    weight_decays=(0.0, 0.01, 0.1),
    weight_grid={"": (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)},
)
POEM = replace(
    COLA,
    name="poem",
    title="Poem",
    summary="an encoder fine-tuned on the sentiment of verses",
    build=deferred("atomsep.experiments.text.build:build_poem"),
    metric="f1",
)
OWN_TEXT = replace(
    COLA,
    name="own-text",
    title="Own text",
    summary="any encoder fine-tuned on your own CSV or TSV",
    settings=TableSettings(),
    build=deferred("atomsep.experiments.text.build:build_own"),
    check=check_own_text,
    metric="accuracy",
)
TEXTS = (COLA, POEM, OWN_TEXT)
