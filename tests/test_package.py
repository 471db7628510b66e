"""What the package shows: its public names, imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import atomsep

SCRIPT = """
import sys
import atomsep
assert "torch" not in sys.modules
assert callable(atomsep.{0})
"""


@pytest.mark.parametrize(
    "name", ["importance.merge_words", "methods.make_method", "functional.form_atoms", "attach"]
)
def test_what_the_guide_writes_works_after_one_import(name: str) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT.format(name)], check=True)


def test_dir_lists_public_names_once() -> None:
    _ = atomsep.attach, atomsep.functional  # which are then in the module's dictionary as well
    names = dir(atomsep)
    assert len(names) == len(set(names))
    assert [name for name in names if not name.startswith("__")] == sorted(atomsep.__all__)
    assert "__version__" in names
    for name in names:
        assert getattr(atomsep, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'atach'"):
        _ = atomsep.atach  # type: ignore[attr-defined]
