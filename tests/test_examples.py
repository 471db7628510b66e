"""What the documentation shows is what runs, and what the code says is in the documentation."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REGION = re.compile(r"# --8<-- \[start:(\w+)\]\n(.*?)# --8<-- \[end:\1\]", re.DOTALL)
NO_MESSAGES_OF = {"experiments", "report", "arguments.py", "cli.py", "demo.py"}
"""Parts of the package whose messages explain themselves."""


def regions() -> Iterator[tuple[str, str]]:
    for path in EXAMPLES:
        for match in REGION.finditer(path.read_text()):
            yield f"{path.stem}:{match[1]}", match[2]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed
    assert "nan" not in printed


@pytest.mark.parametrize(("name", "lines"), list(regions()), ids=lambda value: value.split("\n")[0])
def test_the_readme_shows_the_lines_of_the_example(name: str, lines: str) -> None:
    assert f"```python\n{lines}```" in (ROOT / "README.md").read_text(), name


def test_every_python_snippet_of_the_readme_is_a_region_of_an_example() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert sorted(shown) == sorted(lines for _, lines in regions())


def test_links_of_the_readme_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)", (ROOT / name).read_text()):
            assert (ROOT / target).exists(), f"{name} links to {target}"


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The fixed parts of every message that a file raises or warns with."""
    tree = ast.parse(path.read_text())
    helpers = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        spoken = [node.exc] if isinstance(node, ast.Raise) and node.exc else []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".tell", "warn")):
            spoken = node.args[1:]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.idle_reason":
            spoken = [node.value]
        for part in list(spoken):  # a helper of the same file may write the sentence
            called = (call.func for call in ast.walk(part) if isinstance(call, ast.Call))
            names = {ast.unparse(function).removeprefix("self.") for function in called}
            for helper in (helpers[name] for name in names & helpers.keys()):
                spoken += [r.value for r in ast.walk(helper) if isinstance(r, ast.Return)]
        for part in spoken:
            for text in ast.walk(part) if part is not None else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield node.lineno, text.value


def test_every_message_is_in_the_troubleshooting_page() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    missing, found = [], 0
    for path in sorted((ROOT / "src" / "atomsep").rglob("*.py")):
        if NO_MESSAGES_OF & set(path.parts):
            continue
        for line, text in messages(path):
            if len(text.strip()) < 8:
                continue
            found += 1
            if text.strip() not in page:
                missing.append(f"{path.name}:{line}: {text!r}")
    assert found > 50
    assert not missing, "\n".join(missing)
