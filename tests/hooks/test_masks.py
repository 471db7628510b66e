"""Where a layer's mask comes from."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from masked_models import check, drawn, lengths, words
from torch import Tensor, nn

import atomsep


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.linear(x).mean()


X = torch.randn(2, 5, 3)
MASK = torch.tensor([[True] * 5, [True, True, False, False, False]])


def loss_with(mask: Any, *args: Any, **kwargs: Any) -> Tensor:
    model = Model()
    attachment = atomsep.attach(model, "linear", mask=mask, weight=1.0)
    model(*args, **kwargs)
    return attachment.loss()


def expected(mask: Tensor | None) -> Tensor:
    return atomsep.AtomLoss()(Model().linear(X), mask)


def test_an_argument_by_name_in_every_way_to_pass_it() -> None:
    torch.testing.assert_close(loss_with("padding", X, padding=MASK), expected(MASK))
    torch.testing.assert_close(loss_with("padding", X, MASK), expected(MASK))
    torch.testing.assert_close(loss_with("padding", X, MASK.long()), expected(MASK))
    torch.testing.assert_close(loss_with("padding", X, MASK.float()), expected(MASK))
    torch.testing.assert_close(loss_with("padding", X), expected(None))


def test_a_callable_and_none_at_all() -> None:
    own = loss_with(lambda args, kwargs: ~kwargs["padding"], X, padding=~MASK)
    torch.testing.assert_close(own, expected(MASK))
    torch.testing.assert_close(loss_with(None, X, MASK), expected(None))
    torch.testing.assert_close(loss_with(False, X, MASK), expected(None))


def not_padding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return ~kwargs["padding"]  # type: ignore[no-any-return]


def test_a_function_travels_with_copies_and_a_lambda_is_named_where_it_cannot() -> None:
    model = Model()
    atomsep.attach(model, "linear", mask=not_padding, weight=1.0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(X, padding=~MASK)
        [copied] = atomsep.attachments(twin)
        torch.testing.assert_close(copied.loss(), expected(MASK))
    model = Model()
    attachment = atomsep.attach(model, "linear", mask=lambda args, kwargs: ~kwargs["padding"])
    assert len(atomsep.attachments(copy.deepcopy(model))) == 1
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(model)
    attachment.detach()
    pickle.dumps(model)


def test_names_that_nobody_takes() -> None:
    with pytest.raises(
        ValueError, match="mask='pad' is not an argument .* takes x, padding, or of"
    ):
        loss_with("pad", X)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(2, 4).bool(), ValueError, r"layer 'linear': the padding has shape \(2, 4\)"),
        (torch.ones(5, 2).bool(), ValueError, r'It fits layout="length_first".* mask=False'),
        (torch.full((2, 5), 0.5), TypeError, "float32 and holds other numbers than 0 and 1"),
        (MASK.float().log(), TypeError, "other numbers than 0 and 1.*mask=False to ignore masks"),
        (torch.zeros(2, 5), ValueError, "no token in sample 0, 1"),
        ([[1] * 5] * 2, TypeError, "the mask is a list, but must be a tensor"),
        (torch.zeros(2, 5).bool(), ValueError, "no token in sample 0, 1"),
    ],
)
def test_masks_that_do_not_fit(mask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        loss_with("padding", X, mask)


class Recurrent(nn.Module):
    """A model that needs no mask and does not name it, as xLSTM: it drops what it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.gates = nn.GRU(8, 8, batch_first=True)

    def forward(self, input_ids: Tensor, **kwargs: Any) -> Tensor:
        return self.gates(self.words(input_ids))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("named", [None, "attention_mask"])
def test_a_mask_that_the_model_does_not_name(named: str | None) -> None:
    model, mask = drawn(Recurrent()), lengths(7, 4, 2, length=7)
    for layer in ("words", "gates"):
        check(model, layer, lambda: model(words(7), attention_mask=mask), mask, mask=named)
        check(model, layer, lambda: model(words(7)), None, mask=named)
    with pytest.raises(ValueError, match="mask='atention_mask' is not an argument"):
        atomsep.attach(model, "words", mask="atention_mask")
    outer = nn.ModuleDict({"inner": model})
    outer.forward = lambda **batch: model(**batch)  # type: ignore[method-assign]
    run = lambda: outer(input_ids=words(7), attention_mask=mask)  # noqa: E731
    check(outer, "inner.words", run, mask, mask=named)
