"""The tasks that methods are compared on, at sizes that allow hundreds of runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        title: for tables.
        experiment: name of the experiment.
        steps: in a run; for rules that rise or fall over it.
        metrics: metrics to keep; the first decides.
        settings: the same for all runs; `{data}` stands for the folder of all data.
        tuned: a setting of plain training that is chosen on validation data, and its values.
        sign: 1 if more of the metric is better, -1 if less is.
    """

    title: str
    experiment: str
    steps: int
    metrics: tuple[str, ...]
    settings: tuple[str, ...]
    tuned: tuple[str, tuple[float, ...]]
    sign: int = -1


RATES = "learning_rate", (1e-4, 2e-4, 4e-4)
DECAYS = "weight_decay", (5e-4, 2e-3, 5e-3, 1e-2, 2e-2)
FAST = ("precision=bf16-mixed", "graph=true")


def _both(name: str) -> tuple[str, ...]:
    """Metrics of a generator and of its average."""
    each = (name, "precision", "recall")
    return (*each, *(f"ema_{metric}" for metric in each))


GAN = _both("frechet_classifier")
MNIST = (
    *(*FAST, "features=classifier", "batch=128"),
    *("epochs=5", "evaluate_every=469", "average_last=2"),
)
CLASSIFIER = (*FAST, "evaluate_every=0", "image=64")
TASKS = {
    "digits": Task(
        *("Digits, 16 px DCGAN", "digits-gan", 2320, GAN, ()),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
    ),
    "mnist": Task("MNIST, DCGAN", "mnist-gan", 2345, GAN, MNIST, RATES),
    "mnist-r1": Task("the same with R1", "mnist-gan", 2345, GAN, (*MNIST, "r1=1"), RATES),
    "stacked": Task(
        *("Stacked MNIST, DCGAN", "stacked-mnist-gan", 2000),
        ("modes", "ema_modes", "reverse_kl", "ema_reverse_kl"),
        (
            *(*FAST, "batch=128", "discriminator_width=16"),
            *("epochs=2", "evaluate_every=1000", "average_last=1"),
        ),
        RATES,
        sign=1,
    ),
    "faces": Task(
        *("UTKFace, DCGAN", "own-gan", 2820, _both("frechet_efficientnet_lite0")),
        (
            *(*FAST, "batch=128", "epochs=30", "samples=2500"),
            *("evaluate_every=940", "average_last=2", "folder={data}/utkface-64"),
            "features=study.features:efficientnet_lite0",
        ),
        RATES,
    ),
    "flowers": Task(
        *("Flowers-102, ResNet-18", "flowers", 480, ("top1", "ece", "nll")),
        (*CLASSIFIER, "epochs=30"),
        DECAYS,
        sign=1,
    ),
    "pets": Task(
        *("Pets, ResNet-18", "pets", 1160, ("top1", "ece", "nll")),
        (*CLASSIFIER, "epochs=20"),
        DECAYS,
        sign=1,
    ),
}
