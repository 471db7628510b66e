"""An attachment that was left on a layer is named; several on purpose are fine."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from small_models import batch, hooks_of, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss, AtomWarning

EARLIER = "an earlier attachment on the same layer '0' is still attached"


@pytest.mark.parametrize("weight", [0.1, 0.5])
def test_attaching_again_names_the_earlier_attachment(weight: float) -> None:
    model = mlp()
    atomsep.attach(model, "0", add_to="loss")
    with pytest.warns(AtomWarning, match=EARLIER) as caught:
        atomsep.attach(model, ["1", "0"], weight=weight)
    assert caught[0].filename == __file__
    for each in atomsep.attachments(model):  # as the message says
        each.detach()
    atomsep.attach(model, "0")  # warnings are errors


def test_once_for_several_layers() -> None:
    model = mlp()
    atomsep.attach(model, ["0", "1"])
    with pytest.warns(AtomWarning, match=EARLIER) as caught:
        atomsep.attach(model, ["0", "1"])
    assert len(caught) == 1


def test_where_warnings_are_errors_no_hook_stays_behind() -> None:
    """Those that note the mask of a call are registered before the layer's own."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.second(self.first(x))

    model = Words()
    attachment = atomsep.attach(model, "second")
    before = hooks_of(model)
    with pytest.raises(AtomWarning, match="is still attached"):  # warnings are errors
        atomsep.attach(model, ["first", "second"])
    assert hooks_of(model) == before
    assert atomsep.attachments(model) == [attachment]
    attachment.detach()
    assert hooks_of(model) == 0
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"loss": AtomLoss(norm=1)}),
        ({}, {"loss": AtomLoss(charge=nn.Linear(8, 1))}),
        ({"layout": "channels_last"}, {"layout": "length_first"}),
        ({}, {"skip_tokens": 1}),
        ({}, {"in_eval": "zero"}),
    ],
)
def test_two_that_differ_both_act(first: dict[str, Any], second: dict[str, Any]) -> None:
    model = mlp()
    pair = [atomsep.attach(model, "0", **settings) for settings in (first, second)]
    model(batch())
    for each in pair:
        assert each.loss() > 0


def test_the_same_settings_on_different_tensors_layers_and_copies() -> None:
    class Two(nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            return y, 2 * y

    model = nn.Sequential(Two(3, 8))
    for select in (0, 1):
        atomsep.attach(model, "0", select=select)
    plain = mlp()
    for layer in ("0", "1"):
        atomsep.attach(plain, layer)
    atomsep.attach(copy.deepcopy(plain[0]), "")  # a copy of a part has no attachment


def test_an_unused_attachment_beside_another_is_told_apart() -> None:
    model = mlp()
    atomsep.attach(model, "0")
    used = atomsep.attach(model, "0", AtomLoss(norm=1))
    message = r"loss\(\) was never called.*Another attachment is on the same layer.*detach\(\) it"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(50):
            model(batch())
            used.loss()
    assert len(caught) == 1
    with pytest.raises(AtomWarning, match=message):
        raise caught[0].message  # type: ignore[misc]
