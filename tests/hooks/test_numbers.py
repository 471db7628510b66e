"""A number that stats does not have is refused with the reason."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import batch, mlp
from torch import nn

import atomsep
from atomsep import AtomLoss, Attachment

SHARES = ("gradient_share", "gradient_share_charge", "gradient_share_positions")


def unwatched(model: nn.Module, attachment: Attachment) -> None:
    attachment.watch_gradients = False
    (model(batch()).sum() + attachment.loss()).backward()
    attachment.watch_gradients = True  # too late


def before_backward(model: nn.Module, attachment: Attachment) -> None:
    model(batch())


def task_alone(model: nn.Module, attachment: Attachment) -> None:
    model(batch()).sum().backward()


def loss_alone(model: nn.Module, attachment: Attachment) -> None:
    model(batch())
    attachment.loss().backward()


def evaluated(model: nn.Module, attachment: Attachment) -> None:
    model.eval()
    model(batch())


def compiled(model: nn.Module, attachment: Attachment) -> None:
    run: Any = torch.compile(model, backend="eager")
    (run(batch()).sum() + attachment.loss()).backward()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (unwatched, r"Set attachment.watch_gradients = True before the forward"),
        (before_backward, r"Read stats after backward\(\)"),
        (task_alone, r"only the task's gradient.*\(task \+ attachment.loss\(\)\).backward\(\)"),
        (loss_alone, r"only the atom loss's gradient.*does not depend on the layer"),
        (evaluated, r"the last forward pass was not in training"),
        (compiled, r"compiled models have none. Watch some steps before you compile"),
    ],
)
def test_why_there_is_no_share(step: Callable[[nn.Module, Attachment], None], reason: str) -> None:
    torch.compiler.reset()
    model = mlp()
    attachment = atomsep.attach(model, "0", watch_gradients=True)
    (model(batch()).sum() + attachment.loss()).backward()
    assert attachment.stats["gradient_share"] > 0
    step(model, attachment)
    for name in SHARES:
        with pytest.raises(KeyError, match=f"^stats has no gradient_share: .*{reason}"):
            _ = attachment.stats[name]
        assert name not in attachment.stats
        assert attachment.stats.get(name) is None
    assert "energy" in attachment.stats


def test_an_eager_forward_after_a_compiled_one_shows_the_share() -> None:
    torch.compiler.reset()
    model = mlp()
    attachment = atomsep.attach(model, "0", watch_gradients=True)
    compiled(model, attachment)
    assert "gradient_share" not in attachment.stats
    (model(batch()).sum() + attachment.loss()).backward()
    assert attachment.stats["gradient_share"] > 0


def test_learned_maps_have_one_share() -> None:
    model = mlp()
    criterion = AtomLoss(charge=lambda tokens: tokens[..., 0])
    attachment = atomsep.attach(model, "0", criterion, watch_gradients=True)
    (model(batch()).sum() + attachment.loss()).backward()
    assert attachment.stats["gradient_share"] > 0
    with pytest.raises(KeyError, match="'gradient_share_charge': learned maps read all features"):
        _ = attachment.stats["gradient_share_charge"]


def test_a_misspelt_name_and_the_name_of_a_number_among_layers() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0")
    model(batch())
    with pytest.raises(KeyError, match=r"^stats has no 'enrgy'; did you mean 'energy'\?$"):
        _ = attachment.stats["enrgy"]
    with pytest.raises(KeyError, match="^stats has no 'zzz'; it has energy, neutrality"):
        _ = attachment.stats["zzz"]
    attachment.detach()
    attachment = atomsep.attach(model, ["0", "1"])
    model(batch())
    for name in ("energy", "gradient_share"):
        with pytest.raises(KeyError, match=rf"dictionary by layer here: stats\['0'\]\['{name}'\]"):
            _ = attachment.stats[name]
    with pytest.raises(KeyError, match="watch_gradients = True"):
        _ = attachment.stats["1"]["gradient_share"]


def test_stats_are_copied_pickled_and_saved_as_a_dictionary() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0")
    model(batch())
    stats = attachment.stats
    assert copy.deepcopy(stats) == pickle.loads(pickle.dumps(stats)) == dict(stats)
    file = io.BytesIO()
    torch.save(stats, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == dict(stats)
