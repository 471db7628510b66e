"""The latent space of the Gaussian mixtures, by class and method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from atomsep.experiments.randomness import generator, seeded
from atomsep.experiments.runs import Run
from atomsep.experiments.synthetic import mixtures
from atomsep.report.style import CLASSES, PAGE

PROJECTIONS = {
    "pca": ("first component, in units of the latent", "second component, in units of the latent"),
    "tsne": ("t-SNE 1, no unit", "t-SNE 2, no unit"),
}
"""Ways into the plane, and the labels of its axes."""

SHOWN, ACROSS = 600, 4
"""Samples in a panel, and panels in a row."""


def trained_model(folder: Path, settings: Mapping[str, Any]) -> mixtures.MixtureClassifier:
    """The model that a finished run trained."""
    model = mixtures.MixtureClassifier(settings["activation"])
    states = torch.load(Run(folder).model, map_location="cpu", weights_only=True)
    model.load_state_dict(states["model"])
    return model.eval()


def untrained_model(seed: int, settings: Mapping[str, Any]) -> mixtures.MixtureClassifier:
    """The model that a run starts from."""
    with seeded(seed, "initial weights"):
        return mixtures.MixtureClassifier(settings["activation"])


def latent_space(
    models: Mapping[str, mixtures.MixtureClassifier], seed: int, projection: str = "pca"
) -> Figure:
    """Hidden states, averaged over sub-units, in two dimensions; a panel per model.

    With PCA, all panels share one scale. Each clump is one number of sub-units from A, 0 to 5.

    Args:
        models: by the titles of their panels.
        seed: seed of the test samples.
        projection: "pca" or "tsne".
    """
    samples = mixtures.draw(SHOWN, generator(seed, "test samples"))
    labels = samples.labels.bool()
    columns = min(ACROSS, len(models))
    rows = -(-len(models) // columns)
    width = PAGE * max(columns, 2) / ACROSS
    figure = Figure(figsize=(width, 1.7 * rows + 0.4), layout="constrained")
    shared = projection == "pca"
    panels = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False)
    for axes in panels.flat[len(models) :]:
        axes.set_axis_off()
    for axes, (title, model) in zip(panels.flat, models.items(), strict=False):
        with torch.no_grad():
            hidden = model.hidden(samples.values).unflatten(1, (mixtures.SUB_UNITS, -1)).mean(1)
        plane = project(hidden, labels, projection)
        for name, chosen in (("A", labels), ("B", ~labels)):
            look = {"s": 4, "color": CLASSES[name], "alpha": 0.5, "lw": 0}
            axes.scatter(*plane[chosen].T.numpy(), **look, label=f"most sub-units from {name}")
        axes.set_title(title)
        if not shared:
            axes.set(xticks=[], yticks=[])
    across, up = PROJECTIONS[projection]
    figure.supxlabel(across, fontsize=7)
    figure.supylabel(up, fontsize=7)
    entries = panels[0, 0].get_legend_handles_labels()
    legend = figure.legend(*entries, loc="outside upper right", ncols=2, markerscale=2)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)
    return figure


def project(hidden: Tensor, labels: Tensor, projection: str) -> Tensor:
    """Hidden states in the plane, A on the right: `(n, h)` to `(n, 2)`."""
    if projection == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(hidden) - 1) / 3)
        found = TSNE(init="pca", random_state=0, perplexity=perplexity).fit_transform(
            hidden.numpy()
        )
        plane = torch.from_numpy(found)
    else:
        centred = hidden - hidden.mean(0)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)
        plane = centred @ directions[:2].T
    if plane[labels, 0].mean() < plane[~labels, 0].mean():
        plane[:, 0] *= -1
    return plane
