"""Let the reference show `Example:` of docstrings as code: its parser knows only `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Rename the section while a docstring is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename it in one object's docstring."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
