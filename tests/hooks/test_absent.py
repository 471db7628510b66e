"""Layers that did not run, or ran in evaluation mode, when loss() is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import plain_loss
from small_models import batch, mlp
from torch import Tensor, nn

import atomsep
from atomsep import AtomLoss, AtomWarning


class Dropping(nn.Module):
    """Leaves its second layer out on demand, as LayerDrop does at random."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.drop = nn.Linear(3, 4), nn.Linear(4, 4), False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x if self.drop else self.second(x)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_layer_that_is_left_out_is_an_error_that_says_what_to_do(earlier: bool) -> None:
    model = Dropping()
    attachment = atomsep.attach(model, "second")
    if earlier:
        model(batch())
        attachment.loss()
    model.drop = True
    model(batch())
    with pytest.raises(RuntimeError, match='LayerDrop.*missing="zero"'):
        attachment.loss()


def test_a_zero_for_a_layer_that_is_left_out() -> None:
    model, x = Dropping(), batch()
    attachment = atomsep.attach(model, "second", weight=1.0, missing="zero")
    for drop in (True, False, True, True, False):
        model.drop = drop
        model.zero_grad()
        out = model(x)
        loss = attachment.loss()
        assert loss.requires_grad
        assert loss.dtype == torch.float32
        if drop:
            assert loss.item() == 0
        else:
            torch.testing.assert_close(loss, AtomLoss()(out.detach()))
        loss.backward()
        assert (model.second.weight.grad is None) is drop
    attachment.detach()
    with pytest.raises(RuntimeError, match="detached"):
        attachment.loss()


def test_a_zero_counts_in_the_mean_over_layers() -> None:
    model, x = Dropping(), batch()
    attachment = atomsep.attach(model, ["first", "second"], weight=1.0, missing="zero")
    model.drop = True
    out = model(x)
    torch.testing.assert_close(attachment.loss(), AtomLoss()(out.detach()) / 2)


def test_an_evaluation_before_a_layer_is_left_out() -> None:
    """The layer's last forward was one without a loss, but not in this step."""
    model, x = Dropping(), batch()
    attachment = atomsep.attach(model, "second", missing="zero")
    model.eval()
    model(x)
    with pytest.raises(RuntimeError, match="model.train"):
        attachment.loss()
    model.train()
    model.drop = True
    model(x)
    assert attachment.loss().item() == 0


def test_reentrant_checkpointing_is_not_taken_for_a_layer_that_is_left_out() -> None:
    model, x = Dropping(), batch().requires_grad_()
    attachment = atomsep.attach(model, "second", missing="zero")
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        attachment.loss()


def test_a_layer_that_never_runs_is_noticed() -> None:
    model = Dropping()
    attachment = atomsep.attach(model, "second", missing="zero")
    model.drop = True
    for _ in range(49):
        model(batch())
        attachment.loss()
    model(batch())
    with pytest.warns(AtomWarning, match="'second' did not run in the last 50 steps"):
        attachment.loss()


def test_layer_drop_in_wav2vec2() -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    config = Wav2Vec2Config(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        conv_dim=(4, 4), conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, layerdrop=0.5, mask_time_prob=0.0,
    )  # fmt: skip
    model = Wav2Vec2Model(config).train()
    layer = "encoder.layers.1.final_layer_norm"
    attachment = atomsep.attach(model, layer, weight=1.0, missing="zero")
    latents: list[Tensor] = []
    model.get_submodule(layer).register_forward_hook(
        lambda module, args, output: latents.append(output.detach())
    )
    zeros = 0
    for _ in range(12):
        latents.clear()
        out = model(torch.randn(3, 400)).last_hidden_state.sum()
        loss = attachment.loss()
        (out + loss).backward()
        if latents:
            torch.testing.assert_close(loss, plain_loss(latents[0]))
        else:
            assert loss.item() == 0
            zeros += 1
    assert 0 < zeros < 12


# Evaluation mode


def shared_step(model: nn.Module, attachment: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    task = model(x).logsumexp(1).mean()
    return task, task + attachment.loss()


def test_a_step_shared_by_training_and_validation() -> None:
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", in_eval="zero")
    task, total = shared_step(model, attachment, x)
    assert total > task
    total.backward()
    for gradients_on in (True, False):
        model.eval()
        with torch.set_grad_enabled(gradients_on):
            task, total = shared_step(model, attachment, 2 * x)
        assert torch.equal(task, total)
        assert total.requires_grad is gradients_on
    model.train()
    task, total = shared_step(model, attachment, x)
    assert total > task


@pytest.mark.parametrize("in_eval", ["error", "zero"])
def test_a_validation_step_does_not_take_a_training_loss(in_eval: Any) -> None:
    """The training forward before it left a loss that nobody took."""
    model, x = mlp(), batch()
    attachment = atomsep.attach(model, "0", weight=1.0, in_eval=in_eval)
    model(x)
    model.eval()
    model(x)
    if in_eval == "zero":
        assert attachment.loss().item() == 0
    else:
        with pytest.raises(RuntimeError, match=r"eval mode.*call model.train\(\).*in_eval"):
            attachment.loss()
    model.train()  # and it is still there
    assert attachment.loss().item() > 0


def test_a_model_that_was_never_set_to_training_is_told() -> None:
    model = mlp().eval()
    attachment = atomsep.attach(model, "0")
    model(batch())
    with pytest.raises(RuntimeError, match=r"call model.train\(\) before the forward"):
        attachment.loss()
