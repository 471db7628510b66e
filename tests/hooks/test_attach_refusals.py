"""What an attachment refuses, and what it warns of."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from small_models import batch, hooks_of, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomWarning
from atomsep.methods import KoLeo

# What it refuses


def test_a_loss_is_given_once_for_each_forward() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0")
    with pytest.raises(RuntimeError, match=r"'0' has not run in this thread since it was attached"):
        attachment.loss()
    with pytest.raises(RuntimeError, match="has not run"):
        _ = attachment.stats
    model(batch())
    attachment.loss()
    with pytest.raises(RuntimeError, match="no new forward"):
        attachment.loss()


def test_a_layer_that_the_model_never_runs() -> None:
    model = mlp()
    model.unused = nn.Linear(3, 3)
    attachment = atomsep.attach(model, "unused")
    model[0](batch())
    with pytest.raises(RuntimeError, match="not part of its forward"):
        attachment.loss()


def test_detaching_a_compiled_model_stops_its_hook() -> None:
    torch.compiler.reset()
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    attachment = atomsep.attach(compiled, "0")
    compiled(batch())
    tap = attachment._taps[0]
    attachment.detach()
    compiled(batch())
    assert tap.forwards.last.statistics is None


def test_data_parallel_is_refused() -> None:
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        atomsep.attach(nn.DataParallel(mlp()), "0")
    model = mlp()
    atomsep.attach(model, "0")
    replica = model[0]._replicate_for_data_parallel()
    replica.weight, replica.bias = model[0].weight, model[0].bias
    with pytest.raises(RuntimeError, match="replica of nn.DataParallel"):
        replica(batch())


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_latents_that_are_not_real_numbers(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Identity())
    atomsep.attach(model, "0", layout="channels_last")
    with pytest.raises(TypeError, match="must be floating point, but is torch"):
        model(torch.zeros(2, 3, 4, dtype=dtype))


def test_shapes_without_tokens_or_features() -> None:
    model = nn.Sequential(nn.Identity())
    atomsep.attach(model, "0", layout="channels_last")
    with pytest.raises(ValueError, match=r"\(2, 4\), which has no token axis"):
        model(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="no tokens"):
        model(torch.zeros(2, 0, 4))
    with pytest.raises(ValueError, match="one feature, and the charge uses it"):
        model(torch.zeros(2, 3, 1))
    atomsep.attachments(model)[0].detach()
    atomsep.attach(model, "0", layout="channels_last", skip_tokens=3)
    with pytest.raises(ValueError, match="skip_tokens=3 leaves no tokens"):
        model(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("again", [False, True])
def test_a_second_backward_says_to_add_the_losses(again: bool) -> None:
    model = mlp()
    attachment = atomsep.attach(model, "0")
    model(batch()).sum().backward(retain_graph=again)
    if again:  # a kept graph is fine
        attachment.loss().backward()
        return
    with pytest.raises(RuntimeError, match=r"\(task \+ attachment.loss\(\)\).*a second time"):
        attachment.loss().backward()


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.conv(x).relu()).flatten(1)


def test_one_token_per_sample_is_named() -> None:
    model, x = Pooled(), torch.randn(4, 3, 6, 6)
    with (
        atomsep.attach(model, "pool"),
        pytest.raises(ValueError, match="one token per sample.*attach before pooling"),
    ):
        model(x)
    attachment = atomsep.attach(model, "pool", layout="channels_first")
    model(x)
    with pytest.warns(AtomWarning, match="'pool' has one token per sample.*before pooling"):
        attachment.loss()
    for _ in range(20):  # warnings are errors: nothing about negative scores
        model(x)
        attachment.loss()


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="skip_tokens must be at least 0"):
        atomsep.attach(mlp(), "0", skip_tokens=-1)
    with pytest.raises(ValueError, match="skip_tokens must be at least 0"):
        atomsep.attach(mlp(), "0", skip_tokens=True)
    with pytest.raises(ValueError, match="layout must be 'auto' or one of"):
        atomsep.attach(mlp(), "0", layout="NCHW")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "lazy"),
    [
        (nn.LazyLinear(8), "LazyLinear"),
        (nn.LazyBatchNorm1d(affine=False), "LazyBatchNorm1d"),  # with buffers alone
        (nn.Sequential(nn.Tanh(), nn.LazyLinear(8)), "LazyLinear"),
    ],
)
def test_a_lazy_layer_has_to_run_once(layer: nn.Module, lazy: str) -> None:
    model = nn.Sequential(nn.Flatten(1, 1), layer, nn.LazyLinear(2))
    x = torch.randn(4, 8, 8, requires_grad=True)
    before = hooks_of(model)  # lazy layers have some of their own
    message = f"layer '1' has no weights yet: {lazy} makes .*Run the model once.*attach after"
    with pytest.raises(ValueError, match=message):
        atomsep.attach(model, "1")
    with pytest.raises(ValueError, match=message):
        KoLeo().bind(model, "1")
    assert hooks_of(model) == before
    atomsep.attach(model, "0", layout="channels_last").detach()  # which has nothing to make
    model(x)
    attachment = atomsep.attach(model, "1")
    model(x)
    attachment.loss()


# What it warns of


def test_a_rectified_layer_is_noticed_once() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "1", layout="channels_last")
    model(x)
    with pytest.warns(AtomWarning, match="'1' gives no negative scores.*activation") as caught:
        attachment.loss()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            model(x)
            attachment.loss()


def test_a_positive_layer_is_noticed_after_the_first_steps() -> None:
    """Positive scores may be chance at the start: only eight looks without a negative one tell."""
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Sigmoid()), batch()
    attachment = atomsep.attach(model, "1", layout="channels_last")
    for _ in range(7):
        model(x)
        attachment.loss()
    model(x)
    with pytest.warns(AtomWarning, match="'1' gives no negative scores"):
        attachment.loss()


class Masked(nn.Module):
    """A layer with an activation, in a model that takes a mask."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 8), activation)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        return self.layer(x).mean()


@pytest.mark.parametrize("loss", [atomsep.AtomLoss(), atomsep.AtomLoss(tokens=2)])
def test_padding_is_not_taken_for_zeros_of_a_rectified_layer(loss: atomsep.AtomLoss) -> None:
    mask = torch.tensor([1, 1, 1, 0, 0]).expand(6, 5)
    positive, rectified = Masked(nn.Softplus()), Masked(nn.ReLU())
    with atomsep.attach(positive, "layer.1", loss, layout="channels_last") as attachment:
        for _ in range(7):  # warnings are errors: these may be positive by chance
            positive(batch(), attention_mask=mask)
            attachment.loss()
    with atomsep.attach(rectified, "layer.1", loss, layout="channels_last") as attachment:
        rectified(batch(), attention_mask=mask)
        with pytest.warns(AtomWarning, match="no negative scores.*or use a learned charge"):
            attachment.loss()


def test_a_rectified_layer_is_noticed_at_once_where_tokens_are_drawn() -> None:
    model = mlp()
    attachment = atomsep.attach(model, "1", atomsep.AtomLoss(tokens=2), layout="channels_last")
    model(batch())
    with pytest.warns(AtomWarning, match="no negative scores"):
        attachment.loss()


def test_a_layer_with_both_signs_is_not_complained_of() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0")
    for _ in range(40):  # warnings are errors
        model(x)
        attachment.loss()


def test_nan_in_the_latent_is_noticed_and_passed_on() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0")
    for _ in range(3):
        model(x)
        attachment.loss()
    x[0, 0, 0] = math.nan
    model(x)
    with pytest.warns(AtomWarning, match="'0' is nan: its output holds NaN or Inf"):
        assert attachment.loss().isnan()


def test_a_frozen_layer_is_noticed() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    attachment = atomsep.attach(model, "0")
    model(batch())
    with pytest.warns(AtomWarning, match="no gradient reaches layer '0'.*frozen") as caught:
        loss = attachment.loss()
    assert caught[0].filename == __file__  # it points at the line that asked for the loss
    assert not loss.requires_grad


def test_a_layer_overwritten_for_the_first_time_later_on() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.writes = nn.Linear(3, 4), False

        def forward(self, x: Tensor) -> Tensor:
            out = self.linear(x)
            return (out.relu_() if self.writes else out.relu()).mean()

    model = Moody()
    attachment = atomsep.attach(model, "linear")
    for _ in range(2):
        (model(batch()) + attachment.loss()).backward()
    model.writes = True
    model(batch())
    with pytest.raises(RuntimeError, match="overwritten in place for the first time"):
        attachment.loss()
    (model(batch()) + attachment.loss()).backward()  # a copy from now on
