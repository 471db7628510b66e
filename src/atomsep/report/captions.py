"""Captions of figures: which data and seeds, and what to see."""

from __future__ import annotations

from collections.abc import Sequence

from atomsep.report.groups import Group, Row
from atomsep.report.parts import Part
from atomsep.report.verdict import shown_verdict

TINY = " The runs are of the tiny form: the numbers mean nothing."
SCALE = "Orange-red: charge above 0; white: 0; blue: below 0. The scale is fixed to [−1, 1]."


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds in words.

    Example:
        >>> seeds_text([0, 1, 2, 3]), seeds_text([5]), seeds_text([1, 4])
        ('seeds 0 to 3', 'seed 5', 'seeds 1, 4')
    """
    numbers = sorted(set(seeds))
    if len(numbers) == 1:
        return f"seed {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"seeds {numbers[0]} to {numbers[-1]}"
    return "seeds " + ", ".join(map(str, numbers))


def _end(part: Part) -> str:
    return TINY if part.main.tiny else ""


def energy() -> str:
    """Of the energy against the distance."""
    return (
        "Energy of a pair of samples against the distance of their nuclei, from the formula alone. "
        "k compares the charge products of opposite sign with those of like sign. For k > 1 there "
        "is a distance of least energy, d* (dots), which grows as k falls to 1; for k ≤ 1 the pair "
        "always repels. At distance 0 the energy is infinite: samples do not coincide."
    )


def boxes(part: Part, group: Group, rows: Sequence[Row], best: float | None) -> str:
    """Of a metric by method."""
    seeds = seeds_text([seed for row in rows for seed in row.values])
    better = "" if group.higher_is_better else " Less is better."
    line = "" if best is None else f" Dashed: the best possible, {best:.2f}."
    found = "".join(_judged(group, place) for place, row in enumerate(group.rows) if row in rows)
    return (
        f"{part.title}: {group.label} on held-out samples by method, {seeds}.{better} Each dot is "
        f"a seed, and a faint line joins the dots of a seed. Boxes: median and quartiles; "
        f"whiskers: the farthest seed within 1.5 times the height of the box.{line}"
        f"{found}{_end(part)}"
    )


def _judged(group: Group, place: int) -> str:
    """What the seeds show about a row against the plain one, as a sentence; "" if nothing."""
    found = shown_verdict(group, place)
    title = group.rows[place].title
    return "" if found is None else f" {title} against plain: {found.word}, {found.reason}."


def latent(part: Part, seed: int, projection: str) -> str:
    """Of the latent space."""
    way = {
        "pca": "in the first two principal components of each model; all panels share one scale",
        "tsne": "by t-SNE, in which distances between clumps and their sizes mean nothing",
    }[projection]
    return (
        f"{part.title}: hidden states of test samples, averaged over their five sub-units, {way}; "
        f"seed {seed}. Colour: the class. What to look for: how far apart the clumps are (one for "
        f"each number of sub-units from A), and where the two classes mix.{_end(part)}"
    )


def charge(part: Part, seeds: Sequence[int]) -> str:
    """Of the charge against the value."""
    return (
        f"{part.title}: the charge that models trained with atom modeling give to a sub-unit of "
        f"value x, a line per model, {seeds_text(seeds)}. Shaded: the distributions of the "
        f"classes. What to look for: where the charge changes its sign, and whether all seeds "
        f"agree on which class gets the positive one.{_end(part)}"
    )


def distances(part: Part, seed: int) -> str:
    """Of the atomic distances."""
    return (
        f"{part.title}: distances between the nuclei of up to 128 samples, all pairs, before the "
        f"training, half way and at its end, by method; seed {seed}. All panels have the same "
        f"axes. What to look for: whether the distribution moves and widens more than it does with "
        f"the plain method.{_end(part)}"
    )


def images(part: Part, seed: int, layer: str, *, generated: bool) -> str:
    """Of images with their charges."""
    what = "generated images" if generated else "held-out images"
    checkerboard = (
        " In a DCGAN, a checkerboard of two pixels comes from the transposed convolution in front "
        "of the layer, which computes even and odd positions with different parts of its kernel."
        if generated
        else ""
    )
    return (
        f"{part.title}: {what} with the charges at layer {layer}, atom modeling, seed {seed}. Each "
        f"block is one token. {SCALE} Below: all charges of these samples. What to look for: "
        f"whether the sign follows the content of the image.{checkerboard}{_end(part)}"
    )


def sentences(part: Part, seed: int) -> str:
    """Of sentences with their charges."""
    return (
        f"{part.title}: held-out sentences with the charges of their words, atom modeling, seed "
        f"{seed}. A word has the mean charge of its pieces; special tokens are in italics. {SCALE} "
        f"Below: all words of these sentences. What to look for: whether the sign follows the kind "
        f"of word."
        f"{_end(part)}"
    )
