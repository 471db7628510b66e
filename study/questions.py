"""The questions of the study: which arms, on which tasks and seeds.

Runs belong to one of three phases:

- "tuning": plain training at several learning rates or weight decays, on held-out training
  samples and seeds of its own;
- "trials": methods at several strengths on seeds from 0 on, on held-out training samples, or for
  GANs, whose samples are compared with the training images, on fresh noise;
- "test": methods at the strength that was best in the trials, on seeds from 10 on and the test
  samples.

In the last two, every seed has a run of plain training too, which the others are paired with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.runs import RunKey
from study.tasks import TASKS

TUNING_SEEDS = range(100, 110)
PHASES = {"tuning": TUNING_SEEDS, "trials": range(10), "test": range(10, 20)}
HELD_OUT = ("flowers", "pets", "pets-25", "pets-10", "imagenette", "cola", "poem")
"""Tasks whose trials use held-out training samples."""


class Arm(NamedTuple):
    """A method with its settings.

    Attributes:
        method: its name.
        strength: the weight, or the share for the rules of `study.rules`; None for the one that
            was best in the trials; 0 for plain training.
        options: further assignments.
    """

    method: str = "plain"
    strength: float | None = 0.0
    options: tuple[str, ...] = ()


PLAIN = Arm()


def at(strengths: Iterable[float | None], *methods: str, options: Sequence[str] = ()) -> list[Arm]:
    """Every method at every strength, the first strength of all methods first."""
    return [Arm(method, each, tuple(options)) for each in strengths for method in methods]


def best(*methods: str, options: Sequence[str] = ()) -> list[Arm]:
    """Methods at the strength that was best in the trials."""
    return at([None], *methods, options=options)


@dataclass(frozen=True)
class Question:
    """Arms to compare with plain training, paired by seed.

    Attributes:
        asks: the question, for its page.
        phase: "trials" or "test".
        arms: for each task; plain training always comes first.
        seeds: how many; by task, 5 where it says nothing.
    """

    asks: str
    phase: str
    arms: Mapping[str, Sequence[Arm]]
    seeds: Mapping[str, int]


RULES = (
    *("atom-calibrated", "atom-capped", "atom-share"),
    *("atom-energy", "atom-decay", "atom-warm-up"),
)
WEIGHTS, SHARES = (1.0, 0.2, 5.0), (0.1, 0.03, 0.3)
ALL_RULES = [
    *at(WEIGHTS, "atom"),
    *at(SHARES, *RULES),
    *at((0.1,), "atom-constraints"),
]
COMMON = [*at((1.0,), "atom"), *at((0.1,), "atom-calibrated", "atom-share")]
"""What every task is to have, so that the rules can be compared over all of them."""

PARTS = ("atom-no-constraints", "atom-no-energy")
LATE = ("layer=layer4.1.bn2",)
"""The last block of a ResNet, before its activation."""

SMALL_ARMS = [Arm("atom-calibrated", 0.1), Arm("mode-seeking", 1.0)]
FEW_LABELS = [Arm("atom", 0.2), Arm("atom-no-energy", 1.0), Arm("koleo", 0.1)]
TEXT_ARMS = [
    Arm("atom", 0.01),
    Arm("atom", 0.01, ("charge=learned",)),
    Arm("atom", 0.01, ("layer=*encoder.layer.5",)),
]

QUESTIONS = {
    "gans": Question(
        "Do GANs drop fewer modes?",
        "test",
        {
            "stacked": [
                *at((10.0,), "atom"),
                *at((1.0,), "mode-seeking"),
                *at((10.0,), *PARTS),
            ],
            "faces": at((0.1,), "atom-calibrated", "atom-share"),
            "cifar10": at((0.1,), "atom-calibrated", "atom-share"),
            "small-faces": SMALL_ARMS,
            "small-cifar10": SMALL_ARMS,
        },
        {"stacked": 8, "small-faces": 10, "small-cifar10": 10},
    ),
    "paper": Question(
        "Which rows of the paper hold at its settings, the learning rate fixed?",
        "test",
        {
            "demo": [
                *at((12.5,), "atom", "atom-no-neutrality", "atom-no-occupancy"),
                *at((12.5,), "atom-no-constraints", "atom-no-energy"),
                *at((0.005,), "hinge-1", "hinge-2", "rank-h"),
                *(Arm("simclr", 0.5), Arm("koleo", 3e-5), Arm("vicreg", 0.003)),
            ]
        },
        {"demo": 10},
    ),
    "example": Question(
        "Does it help DCGANs at the settings of PyTorch's example, nothing tuned?",
        "trials",
        {
            "example-mnist": at((1.0, 10.0), "atom"),
            "example-mnist-r1": at((1.0, 10.0), "atom"),
            "example-stacked": at((1.0, 10.0), "atom"),
        },
        {"example-mnist": 10, "example-mnist-r1": 10},
    ),
    "strength": Question(
        "Which rule for the strength of atom modeling carries over from task to task?",
        "trials",
        {
            "mixtures": ALL_RULES,
            "digits": ALL_RULES,
            "small-mnist": [
                *at((1.0, 10.0), "atom"),
                *at((0.1,), "atom-calibrated", "atom-share", "atom-warm-up"),
                *at((0.03,), "atom-calibrated"),
            ],
            "small-mnist-usual": COMMON,
            "small-mnist-r1": COMMON,
            "small-mnist-long": COMMON,
            "small-stacked": [
                *at(WEIGHTS, "atom"),
                *at((0.1,), "atom-calibrated", "atom-share"),
                *at((0.03,), "atom-calibrated"),
            ],
            "example-mnist": [
                *at((1.0, 10.0), "atom"),
                *at((0.1,), "atom-share", "atom-calibrated"),
            ],
            "stacked": [*at((0.1,), "atom-calibrated", "atom-share"), *at((10.0,), "atom")],
            "faces": [*at((1.0,), "atom"), *at((0.1,), "atom-share", "atom-calibrated")],
            "flowers": [
                *at((0.2, 0.02, 1.0), "atom"),
                *at(SHARES, "atom-calibrated", "atom-share"),
                *at((0.1,), "atom-capped", "atom-energy", "atom-constraints"),
                *at((0.1,), "atom-decay", "atom-warm-up"),
            ],
            "pets-10": [*COMMON, *at((0.03,), "atom-calibrated"), *at((0.1,), "atom-constraints")],
            "pets": [
                *at((0.2, 0.02, 1.0), "atom"),
                *at((0.1,), "atom-calibrated", "atom-share", "atom-constraints", "atom-warm-up"),
            ],
        },
        {"example-mnist": 10},
    ),
    "peers": Question(
        "At which strength do the constraints alone and KoLeo work best?",
        "trials",
        {
            "flowers": at((1.0, 0.1, 10.0), "atom-no-energy", "koleo"),
            "pets": at((1.0, 0.1), "atom-no-energy", "koleo"),
        },
        {},
    ),
    "classifiers": Question(
        "Is anything left for classifiers once the weight decay is tuned?",
        "test",
        {
            "flowers": [
                *best("atom", "atom-no-energy", "koleo"),
                *(Arm("atom", 0.2, LATE), Arm("atom-no-energy", 1.0, LATE)),
            ],
            "pets": best("atom", "atom-no-energy", "koleo"),
            "pets-25": FEW_LABELS,
            "pets-10": FEW_LABELS,
            "pets-10-strong": FEW_LABELS,
            "imagenette": at((0.02, 0.2), "atom"),
        },
        {"flowers": 10, "pets": 10, "imagenette": 10},
    ),
    "text": Question(
        "Does it help to fine-tune an encoder?",
        "test",
        dict.fromkeys(("cola", "poem"), TEXT_ARMS),
        {},
    ),
    "settings": Question(
        "Which settings matter: scale, norm, sampling, charge, layer, nucleus?",
        "test",
        {
            "digits": [
                *at((1.0,), "atom", *PARTS, "mode-seeking", "koleo", "vicreg"),
                *at((1.0,), "atom-centre-of-mass"),
                Arm("atom", 1.0, ("method.norm=1",)),
                Arm("atom", 1.0, ("method.charge=5",)),
                Arm("atom", 1.0, ("method.pairs=sampled", "method.tokens=16")),
                Arm("atom", 1.0, ("layer=main.5",)),
                Arm("atom", 1.0, ("layer=main.1",)),
            ],
            "mixtures": [
                *at((2.5,), "atom", "atom-no-neutrality", "atom-no-occupancy", *PARTS),
                *at((2.5,), "atom-centre-of-mass"),
                Arm("atom", 2.5, ("method.norm=1",)),
                Arm("atom", 2.5, ("method.charge=5",)),
                Arm("atom", 2.5, ("method.pairs=sampled",)),
            ],
        },
        {"mixtures": 10},
    ),
}


@dataclass(frozen=True)
class Planned:
    """A run of the study.

    Attributes:
        task: name of its task.
        phase: its phase.
        arm: its arm, with its strength.
        tuned: value of the task's tuned setting.
        settings: all assignments.
        key: the run.
    """

    task: str
    phase: str
    arm: Arm
    tuned: float
    settings: tuple[str, ...]
    key: RunKey


def plan_tuning(task: str, data: Path, *, graphs: bool = True) -> Iterator[Planned]:
    """The runs that tune plain training; none if there is only one value."""
    values = TASKS[task].tuned[1]
    for value in values if len(values) > 1 else ():
        for seed in TUNING_SEEDS[: TASKS[task].tries]:
            yield plan_run(task, data, "tuning", PLAIN, seed, value, graphs=graphs)


def plan_arms(
    question: Question,
    task: str,
    data: Path,
    tuned: float,
    arms: Iterable[Arm],
    *,
    graphs: bool = True,
) -> Iterator[Planned]:
    """The runs of plain training and of arms, whose strengths are known."""
    seeds = PHASES[question.phase][: question.seeds.get(task, 5)]
    compared = (PLAIN, *arms)
    for seed in seeds:  # all arms of a seed together, so that a study that is cut short has pairs
        for arm in compared:
            yield plan_run(task, data, question.phase, arm, seed, tuned, graphs=graphs)


def plan_run(
    name: str, data: Path, phase: str, arm: Arm, seed: int, tuned: float, *, graphs: bool = True
) -> Planned:
    """One run; without `graphs`, steps are not captured into CUDA graphs, for a CPU."""
    task = TASKS[name]
    fixed = (each for each in task.settings if graphs or each != "graph=true")
    settings = (*fixed, f"{task.tuned[0]}={tuned:g}", *arm.options)
    if arm.method != "plain":
        settings = (*settings, f"weight={arm.strength:g}")
    if arm.method in ("atom-decay", "atom-warm-up"):
        settings = (*settings, f"method.steps={task.steps}")
    key = run_key(
        *(find_experiment(task.experiment), arm.method, seed),
        [each.format(data=data) for each in settings],
        validation=phase == "tuning" or (phase == "trials" and name in HELD_OUT),
    )
    return Planned(name, phase, arm, tuned, settings, key)
