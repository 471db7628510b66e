"""The tasks that methods are compared on, at sizes that allow hundreds of runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        title: for tables.
        experiment: name of the experiment.
        metrics: metrics to keep; the first decides.
        settings: the same for all runs; `{data}` stands for the folder of all data.
        tuned: a setting of plain training that is chosen on held-out training samples, and its
            values.
        tries: seeds per value.
        sign: 1 if more of the metric is better, -1 if less is.
        steps: in a run, for rules that rise or fall over it.
        gpu_seconds: estimate for a run of many that share an H200, for the budget.
    """

    title: str
    experiment: str
    metrics: tuple[str, ...]
    settings: tuple[str, ...]
    tuned: tuple[str, tuple[float, ...]]
    tries: int = 2
    sign: int = -1
    steps: int = 0
    gpu_seconds: float = 0.0


RATES = "learning_rate", (1e-4, 2e-4, 4e-4)
DECAYS = "weight_decay", (5e-4, 2e-3, 5e-3, 1e-2, 2e-2)
FAST = ("precision=bf16-mixed", "graph=true")


def _both(name: str) -> tuple[str, ...]:
    """Metrics of a generator and of its average."""
    each = (name, "precision", "recall")
    return (*each, *(f"ema_{metric}" for metric in each))


GAN = _both("frechet_classifier")
MODES = ("modes", "ema_modes", "reverse_kl", "ema_reverse_kl")
COLOUR = _both("frechet_efficientnet_lite0")
COLOUR_FEATURES = "features=study.features:efficientnet_lite0"
COLOUR_32 = _both("frechet_efficientnet_lite0_64")
SMALL = (
    *("precision=bf16-mixed", "batch=128", "epochs=20", "train_samples=5120", "samples=2000"),
    "features=study.features:efficientnet_lite0_64",
)
"""GANs at 32 px for a CPU: 5,120 of the images, 800 steps."""

SMALL_MNIST = (
    *("train_samples=10000", "samples=2000", "evaluate_every=314", "average_last=3"),
    "epochs=8",
)
"""The DCGAN at 16 px on 10,000 digits, in batches of 64: 157 steps per pass."""

CLASSIFIER = (*FAST, "evaluate_every=0", "image=64")
IMAGES = ("top1", "ece", "nll")
TEXT = ("model={data}/minilm", "evaluate_every=0")

EXAMPLE = "precision=bf16-mixed", "batch=128"
"""PyTorch's example, but for the batch: with its 64 the GAN breaks down after some epochs."""

EXAMPLE_MNIST = (
    *(*EXAMPLE, "features=classifier", "epochs=5"),
    *("evaluate_every=469", "average_last=3"),
)

TASKS = {
    "demo": Task(
        *(
            "Gaussian mixtures, rate 0.3 as in the demo",
            "synthetic",
            ("accuracy",),
            ("evaluate_every=0",),
        ),
        ("learning_rate", (0.3,)),
        tries=1,
        sign=1,
    ),
    "mixtures": Task(
        *("Gaussian mixtures, rate tuned", "synthetic", ("accuracy",), ("evaluate_every=0",)),
        ("learning_rate", (0.1, 0.3, 1.0, 3.0, 10.0)),
        tries=3,
        sign=1,
        steps=640,
    ),
    "digits": Task(
        *("Digits DCGAN, 16 px", "digits-gan", GAN, ()),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=3,
        steps=2320,
    ),
    "small-mnist": Task(
        *("MNIST DCGAN, 16 px", "small-mnist-gan", GAN, SMALL_MNIST),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=1,
        steps=1256,
    ),
    "small-mnist-usual": Task(
        *("MNIST DCGAN, 16 px, usual rate", "small-mnist-gan", GAN, SMALL_MNIST),
        ("learning_rate", (2e-4,)),
        steps=1256,
    ),
    "small-mnist-r1": Task(
        *("MNIST DCGAN, 16 px, with R1", "small-mnist-gan", GAN, (*SMALL_MNIST, "r1=1")),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=1,
        steps=1256,
    ),
    "small-mnist-long": Task(
        *("MNIST DCGAN, 16 px, 25 passes", "small-mnist-gan", GAN),
        (*SMALL_MNIST[:-1], "epochs=25"),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=1,
        steps=3925,
    ),
    "small-stacked": Task(
        *("Stacked MNIST DCGAN, 16 px", "small-stacked-gan", MODES, ()),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=1,
        sign=1,
        steps=4000,
    ),
    "example-mnist": Task(
        *("MNIST DCGAN as in PyTorch's example", "mnist-gan", GAN, EXAMPLE_MNIST),
        ("learning_rate", (2e-4,)),
        tries=1,
        gpu_seconds=8,
    ),
    "example-mnist-r1": Task(
        *("MNIST DCGAN as in the example, with R1", "mnist-gan", GAN, (*EXAMPLE_MNIST, "r1=1")),
        ("learning_rate", (2e-4,)),
        tries=1,
        gpu_seconds=12,
    ),
    "example-stacked": Task(
        *("Stacked MNIST DCGAN as in PyTorch's example", "stacked-mnist-gan", MODES),
        (
            *(*EXAMPLE, "discriminator_width=16", "epochs=2"),
            *("evaluate_every=1000", "average_last=1"),
        ),
        ("learning_rate", (2e-4,)),
        tries=1,
        sign=1,
        gpu_seconds=7,
    ),
    "stacked": Task(
        *("Stacked MNIST, DCGAN", "stacked-mnist-gan", MODES),
        (
            *(*FAST, "batch=128", "discriminator_width=16"),
            *("epochs=2", "evaluate_every=1000", "average_last=1"),
        ),
        RATES,
        tries=1,
        sign=1,
        steps=2000,
        gpu_seconds=3,
    ),
    "cifar10": Task(
        *("10,000 images of CIFAR-10, DCGAN", "own-gan", COLOUR),
        (
            *(*FAST, COLOUR_FEATURES, "batch=128", "epochs=24", "samples=5000"),
            *("evaluate_every=0", "average_last=1", "folder={data}/cifar10-png"),
        ),
        ("learning_rate", (2e-4,)),
        gpu_seconds=5,
    ),
    "faces": Task(
        *("UTKFace, DCGAN at its usual rate", "own-gan", COLOUR),
        (
            *(*FAST, COLOUR_FEATURES, "batch=128", "epochs=20", "samples=2500"),
            *("evaluate_every=0", "average_last=1", "folder={data}/utkface-64"),
        ),
        ("learning_rate", (2e-4,)),
        steps=1880,
        gpu_seconds=5,
    ),
    "small-faces": Task(
        *("UTKFace at 32 px, DCGAN", "small-own-gan", COLOUR_32),
        (*SMALL, "folder={data}/utkface-64"),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=1,
        steps=800,
    ),
    "small-cifar10": Task(
        *("CIFAR-10 at 32 px, DCGAN", "small-own-gan", COLOUR_32),
        (*SMALL, "folder={data}/cifar10-png"),
        ("learning_rate", (2e-4, 5e-4, 1e-3)),
        tries=1,
        steps=800,
    ),
    "flowers": Task(
        *("Flowers-102, ResNet-18", "flowers", IMAGES, (*CLASSIFIER, "epochs=30")),
        DECAYS,
        sign=1,
        steps=480,
        gpu_seconds=1,
    ),
    "pets": Task(
        *("Pets, ResNet-18", "pets", (*IMAGES, "robust")),
        (*CLASSIFIER, "epochs=20", "robustness=true"),
        DECAYS,
        sign=1,
        steps=920,
        gpu_seconds=1.2,
    ),
    "pets-25": Task(
        *("Pets, a quarter of the labels", "pets", IMAGES),
        (*CLASSIFIER, "epochs=60", "labels=0.25"),
        DECAYS,
        tries=1,
        sign=1,
        gpu_seconds=0.5,
    ),
    "pets-10": Task(
        *("Pets, a tenth of the labels", "pets", IMAGES),
        (*CLASSIFIER, "epochs=60", "labels=0.1"),
        (DECAYS[0], (*DECAYS[1], 5e-2, 1e-1)),
        sign=1,
    ),
    "pets-10-strong": Task(
        *("Pets, a tenth of the labels, decay 0.02", "pets", IMAGES),
        (*CLASSIFIER, "epochs=60", "labels=0.1"),
        ("weight_decay", (2e-2,)),
        sign=1,
    ),
    "imagenette": Task(
        *("Imagenette, ResNet-18", "own-images", IMAGES),
        (
            *FAST,
            "evaluate_every=0",
            "image=80",
            "epochs=15",
            "batch=128",
            "folder={data}/imagenette-80",
        ),
        DECAYS,
        tries=1,
        sign=1,
        gpu_seconds=3,
    ),
    "cola": Task(
        *("CoLA, MiniLM", "cola", ("mcc", "accuracy")),
        (*TEXT, "epochs=3", "precision=bf16-mixed"),
        ("learning_rate", (2e-5, 5e-5, 1e-4)),
        tries=1,
        sign=1,
        gpu_seconds=2,
    ),
    "poem": Task(
        *("Poem sentiment, MiniLM", "poem", ("f1", "f1_weighted"), (*TEXT, "epochs=10")),
        ("learning_rate", (2e-5, 5e-5, 1e-4)),
        sign=1,
        gpu_seconds=0.5,
    ),
}
