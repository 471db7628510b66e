"""Which methods each experiment offers, with which default weights and weights to search."""

from __future__ import annotations

import pytest

from atomsep.experiments.registry import EXPERIMENTS, run_key
from atomsep.experiments.sweeps.search import weight_grid

ATOMS = ("atom", "atom-no-neutrality", "atom-no-occupancy", "atom-no-constraints", "atom-no-energy")
PAPERS_GRID = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
GRID_OF_MIXTURES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
GRID_OF_IMAGES = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
GRID_OF_GANS = (5.0, 2.0, 1.0, 0.5, 0.2, 0.1)

Offered = dict[str, tuple[float, tuple[float, ...]]]
"""Default weight and weights to search, by method, in the order of the tables."""

MIXTURES: Offered = {
    "hinge-1": (0.005, GRID_OF_MIXTURES),
    "hinge-2": (0.005, GRID_OF_MIXTURES),
    "rank-h": (0.005, GRID_OF_MIXTURES),
    "simclr": (0.5, GRID_OF_MIXTURES),
    "koleo": (3e-5, (1e-3, 3e-4, 1e-4, 3e-5, 1e-5)),
    "vicreg": (0.003, (0.1, 0.03, 0.01, 0.003, 0.001)),
    **dict.fromkeys(ATOMS, (12.5, (12.5, 5.0, 2.5, 1.25, 0.5, 0.25, 0.125))),
}
GANS: Offered = {
    "sscl": (0.02, PAPERS_GRID),
    "vq": (1.0, (2.0, 1.0, 0.5, 0.2, 0.1)),
    "koleo": (0.2, (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)),
    "vicreg": (1.0, GRID_OF_GANS),
    "mode-seeking": (1.0, GRID_OF_GANS),
    **dict.fromkeys(ATOMS, (1.0, GRID_OF_GANS)),
}
IMAGES: Offered = {
    "hinge-1": (0.001, PAPERS_GRID),
    "hinge-2": (0.01, PAPERS_GRID),
    "rank-h": (0.01, PAPERS_GRID),
    "simclr": (0.01, PAPERS_GRID),
    "koleo": (0.1, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
    "vicreg": (0.1, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)),
    **dict.fromkeys(ATOMS, (0.2, GRID_OF_IMAGES)),
}
TEXTS: Offered = {
    "hinge-1": (0.001, PAPERS_GRID),
    "hinge-2": (0.01, PAPERS_GRID),
    "rank-h": (0.01, PAPERS_GRID),
    "simcse": (0.01, PAPERS_GRID),
    "mixcse": (0.01, PAPERS_GRID),
    "koleo": (0.02, PAPERS_GRID),
    "vicreg": (0.01, PAPERS_GRID),
    **dict.fromkeys(ATOMS, (0.01, PAPERS_GRID)),
}
EXPECTED: dict[str, Offered] = {
    "synthetic": MIXTURES,
    **dict.fromkeys(
        ("mnist-gan", "cifar10-gan", "own-gan", "stacked-mnist-gan", "faces-gan"), GANS
    ),
    **dict.fromkeys(("pets", "flowers", "own-images"), IMAGES),
    "imagenet": {**IMAGES, **dict.fromkeys(ATOMS, (0.02, GRID_OF_IMAGES))},
    **dict.fromkeys(("cola", "poem", "own-text"), TEXTS),
}


def test_every_experiment_is_listed_here() -> None:
    assert EXPERIMENTS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_methods_weights_and_grids(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert list(experiment.methods) == ["plain", *EXPECTED[name]]
    for method, (weight, grid) in EXPECTED[name].items():
        assert run_key(experiment, method, 0).settings.weight == weight, method
        assert weight_grid(experiment, method) == grid, method
    assert run_key(experiment, "plain", 0).settings.weight == 0
