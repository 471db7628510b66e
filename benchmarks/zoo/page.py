"""The page about the table, made from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.zoo import table

PATH = Path(__file__).parent.parent.parent / "docs" / "models.md"

COUNTED = ("exact", "refused", "warned", "wrong", "crashed")
"""Outcomes of an attempt to attach."""

LIBRARIES = {
    "torchvision": "every classification builder",
    "timm": "the smallest model of every family",
    "transformers": "every text, vision and audio family, with a tiny configuration",
    "diffusers": "UNets, transformers and autoencoders, with a tiny configuration",
}


def write() -> Path:
    """Write the page."""
    PATH.write_text(render(table.read()))
    return PATH


def render(rows: list[dict[str, str]]) -> str:
    """The page for the rows of a table."""
    tried = [row for row in rows if row["outcome"] in COUNTED]
    counts = Counter(row["outcome"] for row in tried)
    largest = max((float(row["error"]) for row in tried if row["outcome"] == "exact"), default=0.0)
    versions = sorted({f"{row['library']} {row['version']}" for row in rows})
    versions += sorted({f"torch {row['torch']}" for row in rows})
    models = {(row["library"], row["model"]) for row in tried}
    chosen, begun = table.read_chosen(), len({(row["library"], row["model"]) for row in rows})
    whole = str(chosen) if begun >= chosen else f"{begun} (of {chosen})"
    parts = [
        HEAD.format(
            whole=whole,
            models=len(models),
            rows=len(tried),
            exact=counts["exact"],
            share=100 * counts["exact"] / max(1, len(tried)),
            refused=counts["refused"],
            warned=counts["warned"],
            crashed=counts["crashed"],
            wrong=counts["wrong"],
            undecided=sum(row["outcome"] == "undecided" for row in rows),
            largest=largest,
            versions=", ".join(versions),
        ),
        "| library | models | cases | exact | refused | warned | wrong |",
        "|---|---|---|---|---|---|---|",
        *(_line(library, tried) for library in LIBRARIES),
        "",
        *_section("Refused", "refused", tried, REFUSED),
        *_section("Warned", "warned", tried, WARNED),
        *_section("Wrong", "wrong", tried, WRONG),
        *_section("Stopped with an error", "crashed", tried, CRASHED),
        *_not_built(rows),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _line(library: str, tried: list[dict[str, str]]) -> str:
    own = [row for row in tried if row["library"] == library]
    counts = Counter(row["outcome"] for row in own)
    models = len({row["model"] for row in own})
    refused = counts["refused"] + counts["crashed"]
    cells = (models, len(own), counts["exact"], refused, counts["warned"], counts["wrong"])
    return f"| {library}: {LIBRARIES[library]} | " + " | ".join(map(str, cells)) + " |"


def _section(title: str, outcome: str, rows: list[dict[str, str]], text: str) -> list[str]:
    found = [row for row in rows if row["outcome"] == outcome]
    if not found:
        return []
    lines = ["", f"## {title}", "", text, "", "| model | layer | message |", "|---|---|---|"]
    seen: dict[tuple[str, str, str], None] = {}
    for row in found:
        said = row["message"].split(": ", 1)[-1].split("; pass ")[0].replace("|", "\\|")
        seen[(f"{row['library']} `{row['model']}`", f"`{row['layer']}`", said)] = None
    return [*lines, *(f"| {' | '.join(cells)} |" for cells in seen)]


def _not_built(rows: list[dict[str, str]]) -> list[str]:
    """Models without a row to count, and why."""
    outcomes = ("not built", "timed out", "undecided")
    found = [row for row in rows if row["outcome"] in outcomes]
    if not found:
        return []
    lines = ["", "## Not measured", "", NOT_BUILT, "", "| model | reason |", "|---|---|"]
    seen: dict[str, str] = {}
    for row in found:
        why = row["message"].replace("|", "\\|")[:160]
        layer = f", `{row['layer']}`" if row["layer"] else ""
        seen[f"{row['library']} `{row['model']}`{layer}"] = f"{row['outcome']}: {why}"
    return [*lines, *(f"| {name} | {why} |" for name, why in seen.items())]


HEAD = """# Models

`python -m benchmarks.zoo` attaches to third-party models with no argument except the layer's name,
and compares the gradients of all parameters with those of a hand-written hook.

- **Models** are chosen by a rule. Of {whole} models tried, {models} could be built and run in a
  small size, without pretrained weights; the rest are [listed below](#not-measured).
- **Layers.** Three per model: the layer that [`atomsep.layers`](guide.md#finding-a-layer)
  recommends, one in the middle, and the last one with tokens. Models for text or sound are also
  tested with padding.
- **Ground truth.** The positions of tokens, padding and class tokens are found by running each
  model on batches of different sizes, not by atomsep. Where a module returns the mask of its
  tokens, that mask is used.

Of {rows} cases,

- {exact} ({share:.1f} %) attach and are exact,
- {refused} are refused with an error that says why,
- {warned} give a warning,
- {crashed} stop with another error,
- {wrong} fail silently.

The largest error among the exact cases is {largest:.0e}, relative to the norm of the atom loss's
own gradient. {undecided} more cases are not counted because the correct answer is unknown: the
model itself returns NaN, or its sizes do not distinguish tokens from features. Every case is a row
of `benchmarks/results/zoo.csv` ({versions}).
"""
REFUSED = "The first forward raises this error. Pass the argument that it asks for."
WARNED = (
    "In these cases, a mask that fits is not used, or tokens outside the image's grid are counted. "
    "Pass the argument that the warning names."
)
WRONG = (
    "These attach without an error, but the gradients differ from those of the hand-written hook."
)
CRASHED = "These stop with an error that atomsep does not raise itself."
NOT_BUILT = (
    "These are models that cannot be built or run offline by the rules for tiny configurations and "
    "inputs, and layers whose tokens cannot be inferred from sizes."
)
