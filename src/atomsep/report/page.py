"""The report: finished runs on one page of HTML that needs nothing else.

Style and scripts are part of the page, and its content security policy lets it load nothing. The
same runs give the same page, byte by byte.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import atomsep
from atomsep.experiments.atoms_file import read_atoms
from atomsep.experiments.files import write_text, writing
from atomsep.importance.colours import STOPS
from atomsep.report import sections
from atomsep.report.embedded import pictures
from atomsep.report.html import Html, element, embedded_json, together
from atomsep.report.parts import Finished, Part, divide, find_runs
from atomsep.report.samples import MOST_SAMPLES, STEPS, explored

NO_SAMPLES = (
    "No run has kept samples. Runs of atom modeling keep some test samples with their charges in "
    "atoms.npz."
)


def write_report(root: Path, out: Path) -> None:
    """Write the report of all finished runs under a folder.

    Args:
        root: folder of runs, or any folder within it.
        out: the file; folders above it that do not exist are created.

    Raises:
        ExperimentError: there is no finished run, or the file cannot be written.
    """
    page = build_page(find_runs(root))
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)


def build_page(runs: Sequence[Finished]) -> str:
    """The report of some finished runs as HTML."""
    parts = divide(runs)
    explorable, left_out = samples_of(parts)
    below = [
        element("div", *(each for part in parts for each in pictures(part)), class_="pictures")
    ]
    if left_out:
        more = "1 more run is" if left_out == 1 else f"{left_out} more runs are"
        note = f"There was no room for all samples: {more} not in the explorer."
        below.insert(0, element("p", note, class_="note"))
    explorer = Html(_file("explorer.html")) if explorable else element("p", NO_SAMPLES)
    shown = [
        ("Verdict", sections.verdicts(parts)),
        *((part.title, sections.results(part)) for part in parts),
        ("Tables", sections.tables(runs)),
        ("Samples", together(explorer, *below)),
        ("Settings", together(*map(sections.settings, parts))),
    ]
    style = _file("report.css")
    script = _file("legend.js") + (_file("explorer.js") if explorable else "")
    names = dict.fromkeys(part.main.title for part in parts)
    return Template(_file("report.html")).substitute(
        policy=f"default-src 'none'; img-src data:; style-src {_digest(style)}; "
        f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'",
        version=atomsep.__version__,
        title="atomsep report",
        about=together(f"{len(runs)} finished runs: {' · '.join(names)}"),
        links=together(
            *(element("a", title, href=f"#part-{n}") for n, (title, _) in enumerate(shown))
        ),
        sections="\n".join(
            element("section", element("h2", title), body, id=f"part-{n}")
            for n, (title, body) in enumerate(shown)
        ),
        style=style,
        samples=embedded_json({"stops": STOPS, "steps": STEPS, "runs": explorable}),
        script=script,
    )


def samples_of(parts: Iterable[Part]) -> tuple[list[dict[str, Any]], int]:
    """What the explorer shows: the first seed of each row that kept samples.

    Returns:
        The runs, with at most `MOST_SAMPLES` samples, and how many runs there was no room for.
    """
    found: list[dict[str, Any]] = []
    count = left_out = 0
    for part in parts:
        for row, runs in zip(part.main.rows, part.runs, strict=True):
            for run in runs:
                atoms = read_atoms(run.folder)
                if atoms is None or not len(atoms):
                    continue
                if count + len(atoms.charges) > MOST_SAMPLES:
                    left_out += 1
                else:
                    count += len(atoms.charges)
                    title = f"{part.title}: {row.title}, seed {run.result['seed']}"
                    classes = run.result.get("classes")
                    names = classes if isinstance(classes, list) else []
                    found.append(explored(atoms, title, names))
                break
    return found, left_out


def _file(name: str) -> str:
    return (resources.files("atomsep.report") / "templates" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """A digest by which the policy admits a style or script of the page."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
