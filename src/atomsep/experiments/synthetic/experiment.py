"""The paper's Gaussian mixtures (its figure 3): two linear layers, ten seeds. See `mixtures`.

The learning rate of 0.3 is part of the setting and not tuned; `atomsep sweep synthetic --search`
tunes it first, as the paper's protocol does. The weights were chosen at this rate on validation
samples of seeds that are not reported, over the paper's grid. (The paper takes sums over five
tokens, not means, so its weights of atom modeling are 25 times smaller.) `atomsep sweep synthetic
--search --set learning_rate=0.3 --search-seeds 100-119` found, in percent of the samples:

    weight             0.005    0.01    0.02    0.05     0.1     0.2     0.5
    Hinge, 1-norm      93.84*  93.36   92.50   90.89   89.26   69.17   52.78
    Hinge, 2-norm      94.18*  94.06   93.80   92.86   90.86   87.29   81.76
    Rank-H             94.29*  94.29   94.28   94.28   94.28   94.27   94.22
    SimCLR             94.30   94.31   94.32   94.35   94.36   94.38   94.38*

    weight             0.125    0.25     0.5    1.25     2.5       5    12.5
    atom modeling      94.24   94.37   94.53   94.78   94.94   95.05   95.15*
    no neutrality      94.28   94.39   94.56   94.78   94.96   95.04   95.25*
    no occupancy       94.35   94.39   94.40   94.42   94.44   94.86   95.30*
    no constraints     94.33   94.38   94.40   94.42   94.43   94.69   95.48*

    cross-entropy      94.29

Every choice (*) lies at an end of its grid: the hinges and Rank-H get worse with more weight, and
the others might get better with more than was tried. KoLeo and VICReg were not part of this search:
docs/baselines.md says where their weights come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from atomsep.experiments.schedules import SCHEDULES
from atomsep.experiments.settings import Settings, setting
from atomsep.experiments.task import Experiment, deferred
from atomsep.methods.registry import ATOM_MODELING, OfferedMethods


@dataclass(frozen=True)
class MixtureSettings(Settings):
    """Settings of the Gaussian mixtures."""

    epochs: int = setting(20, "passes over the training samples", low=1)
    learning_rate: float = setting(0.3, "learning rate of the optimiser", low=0)
    layer: str = setting("embed", "layer that the method acts on")
    train_samples: int = setting(2000, "training samples, drawn once per seed", low=2)
    test_samples: int = setting(50_000, "test samples, drawn once per seed", low=1)
    optimiser: str = setting("sgd", "optimiser of the model", choices=("sgd", "adam"))
    schedule: str = setting("constant", "schedule of the learning rate", choices=tuple(SCHEDULES))
    activation: str = setting(
        "sigmoid", "activation of the hidden layer", choices=("sigmoid", "relu")
    )


SYNTHETIC = Experiment(
    name="synthetic",
    title="Gaussian mixtures",
    summary="two linear layers on Gaussian mixtures of five sub-units",
    settings=MixtureSettings(),
    tiny={"epochs": 2, "train_samples": 256, "test_samples": 500},
    build=deferred("atomsep.experiments.synthetic.build:build"),
    load=deferred("atomsep.experiments.synthetic.build:load"),
    methods=OfferedMethods("synthetic", "labels", "augmentation"),
    metric="accuracy",
    weights={
        "hinge-1": 0.005,
        "hinge-2": 0.005,
        "rank-h": 0.005,
        "simclr": 0.5,
        "koleo": 3e-5,
        "vicreg": 0.003,
        **dict.fromkeys(ATOM_MODELING, 12.5),
    },
    large_share=True,
    learning_rates=(0.03, 0.1, 0.3, 1.0, 3.0),
    weight_grid={
        "": (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005),
        "koleo": (1e-3, 3e-4, 1e-4, 3e-5, 1e-5),
        "vicreg": (0.1, 0.03, 0.01, 0.003, 0.001),
        "atom": (12.5, 5.0, 2.5, 1.25, 0.5, 0.25, 0.125),
    },
)
