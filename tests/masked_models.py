"""Tiny models that get a padding mask, and a hook written by hand that is given the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from by_hand import WEIGHT, assert_same, gradients, plain_loss
from torch import Tensor, nn

import atomsep

SMALL: dict[str, Any] = {
    "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 40, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def words(length: int, seed: int = 1) -> Tensor:
    """Three samples of so many words."""
    return torch.randint(2, 30, (3, length), generator=torch.Generator().manual_seed(seed))


def numbers(*shape: int) -> Tensor:
    """Three samples of numbers."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(3, *shape, generator=generator, dtype=torch.float64)


def lengths(*real: int, length: int) -> Tensor:
    """A mask of samples with so many real tokens, as integers."""
    return (torch.arange(length) < torch.tensor(real)[:, None]).long()


def drawn(model: nn.Module) -> Any:
    """The model in float64, with weights that tell its tokens apart."""
    generator = torch.Generator().manual_seed(0)
    model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def task_of(output: Any) -> Tensor:
    """A scalar that depends on every floating-point tensor of a model's output."""
    values = output.values() if isinstance(output, dict) else output
    values = [output] if isinstance(output, Tensor) else values
    tensors = [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return torch.stack([tensor.tanh().square().mean() for tensor in tensors]).sum()


def check(
    model: nn.Module,
    layer: str,
    run: Callable[[], Any],
    expected_mask: Tensor | None,
    to_tokens: Callable[[Tensor], Tensor] = lambda latent: latent,
    **options: Any,
) -> None:
    """Compare all gradients and the importance with those of a hook that is given the mask.

    In training twice, since the second forward reads another tensor, and in eval mode.
    """
    real = None if expected_mask is None else expected_mask.bool()
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        kept.append(output if isinstance(output, Tensor) else output[0])

    model.train()
    with model.get_submodule(layer).register_forward_hook(keep):
        task = task_of(run())
    latent = to_tokens(kept[0].clone())
    expected = gradients(model, task + WEIGHT * plain_loss(latent, real))
    options = {"layout": "channels_last", "select": None, "skip_tokens": 0, **options}
    with atomsep.attach(model, layer, weight=WEIGHT, **options) as attachment:
        for _ in range(2):
            actual = gradients(model, task_of(run()) + attachment.loss())
            assert_same(actual, expected)
            check_importance(attachment.importance, latent, real)
        model.eval()
        with torch.no_grad(), model.get_submodule(layer).register_forward_hook(keep):
            run()
        check_importance(attachment.importance, to_tokens(kept[-1]), real)


def check_importance(found: Tensor, latent: Tensor, real: Tensor | None) -> None:
    """Exactly zero on padding, and the charge of the first feature elsewhere."""
    charge = (latent[..., 0] / 2).tanh().detach().float()
    charge = charge if real is None else charge * real
    torch.testing.assert_close(found.flatten(1), charge, rtol=1e-5, atol=1e-6)
    if real is not None:
        assert torch.equal(found.flatten(1) == 0, ~real)
