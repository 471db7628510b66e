"""What the documentation shows is what runs, and what it quotes is what the code says."""

from __future__ import annotations

import ast
import math
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import atomsep
from atomsep.methods import make_method

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REGION = re.compile(r"# \[start:(\w+)\]\n(.*?)# \[end:\1\]", re.DOTALL)
SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]+)?\)")


def regions() -> dict[str, str]:
    """The marked lines of all examples."""
    return {
        f"{path.stem}:{match[1]}": match[2]
        for path in EXAMPLES
        for match in REGION.finditer(path.read_text())
    }


def pages() -> dict[str, str]:
    """Every Markdown file that a reader may open, by its path."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


def linked_from_the_readme() -> list[str]:
    """The pages that a reader of the README reaches on a code host."""
    targets = (target for target, _ in LINK.findall((ROOT / "README.md").read_text()))
    return sorted({"README.md", *(target for target in targets if target.endswith(".md"))})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed
    assert "nan" not in printed


def calibrate(model: nn.Module, batches: int) -> Any:
    """The attachment of the example that calibrates a weight, and the weights that it tried."""
    names: dict[str, Any] = {
        "model": model,
        "loader": [(torch.randn(4, 1, 5, 5), torch.tensor([0, 1, 2, 0])) for _ in range(batches)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "atomsep": atomsep,
        "F": F,
        "inf": math.inf,
        "geometric_mean": geometric_mean,
    }
    exec(regions()["calibrate_weight:calibrate"], names)
    return names["attachment"], names["weights"]


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 3))


def test_a_weight_is_calibrated_though_the_first_step_has_no_share() -> None:
    """Its last layer starts at zero, so no gradient of the task arrives before it."""
    with torch.random.fork_rng():
        model = small_model()
        nn.init.zeros_(model[3].weight)
        attachment, weights = calibrate(model, 101)
    assert len(weights) == 100
    assert attachment.weight == pytest.approx(geometric_mean(weights))


@pytest.mark.usefixtures("study_methods")
def test_the_example_calibrates_as_the_study_does() -> None:
    """The study's rule weighs every step by its own gradients, the example by the last step's."""
    with torch.random.fork_rng():
        attachment, weights = calibrate(small_model(), 120)
        model = small_model()
        method = make_method("atom-calibrated", features=4)
        binding = method.bind(model, "1", weight=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(120):
            loss = F.cross_entropy(model(torch.randn(4, 1, 5, 5)), torch.tensor([0, 1, 2, 0]))
            optimizer.zero_grad()
            (loss + binding.loss()).backward()
            optimizer.step()
    rule = math.exp(method.log_weight / method.counted)
    assert attachment.weight == pytest.approx(rule, rel=0.05)
    assert max(weights) > 1.2 * min(weights), "the weights vary"


@pytest.mark.parametrize("name", regions())
def test_marked_lines_of_an_example_are_shown_literally(name: str) -> None:
    shown = [page for page, text in pages().items() if regions()[name] in SNIPPET.findall(text)]
    assert shown, f"no page shows {name}; copy its lines again"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_front_pages_show_only_lines_of_examples(page: str) -> None:
    shown = SNIPPET.findall(pages()[page])
    assert shown
    assert set(shown) <= set(regions().values())


def test_a_copy_of_an_example_is_not_changed_by_hand() -> None:
    """A snippet that starts like the marked lines must be the marked lines."""
    firsts = {lines.splitlines()[0]: lines for lines in regions().values()}
    for page, text in pages().items():
        for snippet in SNIPPET.findall(text):
            assert snippet == firsts.get(snippet.splitlines()[0], snippet), page


@pytest.mark.parametrize("page", linked_from_the_readme())
def test_pages_of_the_readme_are_plain_markdown(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", pages()[page], flags=re.DOTALL)
    for pattern in ("--8<--", r"\]\[", r"markdown(=\S+)?>", r"^:::", r"\{ *[.#:][\w-]+.*\}"):
        found = re.search(pattern, text, re.MULTILINE)
        assert not found, f"{page}: {found.group()!r} is shown unrendered on a code host"


def anchors(text: str) -> set[str]:
    """The anchors that a code host gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in LINK.findall(pages()[page]):
        path = (ROOT / page).parent / target
        assert path.exists(), f"{page} links to {target}"
        if anchor and "/reference/" not in path.as_posix():  # those come from docstrings
            assert anchor[1:] in anchors(path.read_text()), f"{page} links to {target}{anchor}"
    for source in re.findall(r'\bsrc(?:set)?="([^"]+)"', pages()[page]):
        assert ((ROOT / page).parent / source).exists(), f"{page} shows {source}"
    for anchor in re.findall(r"\]\(#([^)]+)\)", pages()[page]):
        assert anchor in anchors(pages()[page]), f"{page} links to #{anchor}"


def test_the_readme_is_short_and_says_early_whether_it_helps() -> None:
    text = pages()["README.md"]
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    assert len(prose.split()) <= 750
    assert text.split("\n\n")[2].startswith("**Does it help?**")


def messages() -> Iterator[str]:
    """The fixed parts of all texts of the package."""
    for path in (ROOT / "src" / "atomsep").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_headings_of_the_troubleshooting_page_are_messages_of_the_code() -> None:
    quoted = re.findall(r"^### `(.+)`$", pages()["docs/troubleshooting.md"], re.MULTILINE)
    texts = list(messages())
    stale = [quote for quote in quoted if not any(quote in text for text in texts)]
    assert len(quoted) > 10
    assert not stale


def mapped_files() -> set[str]:
    """The files that the map of CONTRIBUTING.md lists, by their path in the package."""
    block = pages()["CONTRIBUTING.md"].split("    src/atomsep/\n")[1].split("\n\n`")[0]
    folders: list[tuple[int, str]] = []
    files = set()
    for line in block.splitlines():
        indent = len(line) - len(line.lstrip())
        folders = [(depth, name) for depth, name in folders if depth < indent]
        opened = re.match(r"\s*(\w+)/", line)
        if opened:
            folders.append((indent, opened[1]))
        above = [name for _, name in folders]
        files |= {"/".join([*above, name]) for name in re.findall(r"\b\w+\.py\b", line)}
    return files


def test_the_map_of_the_code_lists_every_file() -> None:
    package = ROOT / "src" / "atomsep"
    paths = (path.relative_to(package) for path in package.rglob("*.py"))
    existing = {path.as_posix() for path in paths if not path.name.startswith("__")}
    assert mapped_files() == existing
