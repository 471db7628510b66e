"""`atomsep layers`: the layers of a model that can be attached to."""

from __future__ import annotations

from typing import Annotated

import typer

from atomsep.cli import display, tables
from atomsep.experiments.errors import ExperimentError


def layers(
    model: Annotated[
        str,
        typer.Argument(
            help="A torchvision or timm name, a Hugging Face folder or name, or "
            "package.module:function, which returns a model and an example batch."
        ),
    ],
) -> None:
    """Show the layers of a model that `atomsep.attach` accepts, and the one to start with.

    The model is built without weights and runs once on noise.

    Examples:
    - `atomsep layers resnet18`

    - `atomsep layers vit_tiny_patch16_224`

    - `atomsep layers my_models:make`
    """
    from atomsep.cli.models import find_model
    from atomsep.hooks.layers import COLUMNS, layers, row

    console = display.make_console()
    try:
        found = layers(*find_model(model))
    except ValueError as error:
        raise ExperimentError(f"{model}: {error}") from error
    rows = [
        [f"**{cell}**" if each.name == found.recommended and cell else cell for cell in row(each)]
        for each in found
    ]
    console.say(f"Recommended: {found.recommended}, {found.reason}")
    tables.show(console, model, COLUMNS, rows)
    if found.refused:
        needing = found.needing_arguments
        console.say(f"{needing.capitalize()}; in Python, atomsep.layers(...).refused says why")
