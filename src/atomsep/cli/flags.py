"""Commands whose help shows flags as they are written: `--tiny`, without the type of a value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _plain(options: list[Any]) -> list[Any]:
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


class Command(TyperCommand):
    """A command with plain flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with that of --help."""
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands with plain flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, with that of --help."""
        return _plain(super().get_params(ctx))
