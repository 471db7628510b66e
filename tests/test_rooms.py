"""Imports point one way: each room may import the rooms above it, never those below."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import atomsep

ROOT = Path(atomsep.__file__).parent

ROOMS = [
    ["checks", "functional"],
    ["core"],
    ["hooks"],
    ["integrations"],
    ["importance"],
    ["methods"],
    ["experiments"],
    ["report"],
    ["cli", "__main__", "__init__"],
]
"""From top to bottom; `atomsep` itself only names what the rooms hold."""

CORE = [
    ["layout", "statistics", "origin"],
    ["reference"],
    ["plain"],
    ["kernels"],
    ["backend"],
    ["node"],
    ["handshake", "averaging", "drawing", "saving"],
    ["distributed", "maps"],
    ["measuring"],
    ["loss"],
]
"""The same inside the maths."""

EXCEPTIONS = {("core.kernels.ops", "core.backend")}
"""Operators that a compiled graph calls run through the guard around the kernels."""


def level(name: str, rooms: list[list[str]]) -> int:
    [place] = [number for number, room in enumerate(rooms) if name in room]
    return place


def imports() -> list[tuple[str, str]]:
    """(importer, imported) for every import of the package's own modules, by dotted names."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        importer = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                # `from package import module` names a module as well
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                assert node.level == 0, f"{file}: imports are absolute here"
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found += [
                (importer, name.removeprefix("atomsep."))
                for name in names
                if name.startswith("atomsep.")
            ]
    return found


def test_rooms() -> None:
    wrong = []
    for importer, imported in imports():
        if importer == "__init__":
            continue
        here, there = importer.split(".")[0], imported.split(".")[0]
        known = [name for room in ROOMS for name in room]
        if there not in known:  # a public name of the package itself
            there = "core" if there in ("AtomLoss", "use_kernels", "__version__") else "hooks"
        if level(there, ROOMS) > level(here, ROOMS):
            wrong.append(f"{importer} imports {imported}")
    assert not wrong


def test_rooms_of_the_maths() -> None:
    wrong = []
    for importer, imported in imports():
        if not (importer.startswith("core.") and imported.startswith("core.")):
            continue
        parts = imported.split(".")
        if any(imported.startswith(name) and importer == by for by, name in EXCEPTIONS):
            continue
        if level(parts[1], CORE) > level(importer.split(".")[1], CORE):
            wrong.append(f"{importer} imports {imported}")
    assert not wrong


@pytest.mark.parametrize("room", ["checks", "functional", "core", "hooks", "methods"])
def test_the_core_needs_torch_alone(room: str) -> None:
    """But for the standard library, and Triton inside its own folder."""
    others = set()
    files = [ROOT / f"{room}.py"] if (ROOT / f"{room}.py").exists() else (ROOT / room).rglob("*.py")
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                top = name.split(".")[0]
                if top == "triton" and "kernels" in file.parts:
                    continue
                if top not in sys.stdlib_module_names and top not in ("torch", "atomsep"):
                    others.add(f"{file.name}: {name}")
    assert not others
