"""Models with a task, and the shares of the loss's gradient by autograd, without any hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from by_hand import WEIGHT, as_tokens, bert, bert_batch, plain_loss, resnet
from torch import Tensor, nn
from torch.nn import functional as F

from atomsep.experiments.gan.dcgan import Discriminator, Generator

Run = Callable[[nn.Module], Tensor]
"""Runs a model, and returns the task's loss."""


def classify(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6, 3, 32, 32, generator=generator).to(next(model.parameters()))
    return F.cross_entropy(model(images).double(), torch.arange(6, device=images.device) % 5)


def generate(model: nn.Module) -> Tensor:
    torch.manual_seed(1)
    like = next(model.parameters())
    critic, noise = Discriminator(1, 4).to(like), torch.randn(4, 8, 1, 1).to(like)
    logits = critic(model(noise)).double()
    return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def read(model: nn.Module) -> Tensor:
    device = next(model.parameters()).device
    loss: Tensor = model(**{name: part.to(device) for name, part in bert_batch().items()}).loss
    return loss.double()


def dcgan() -> nn.Module:
    torch.manual_seed(0)
    return Generator(1, 4, 8).double()


MODELS: dict[str, tuple[Callable[[], nn.Module], str, Run]] = {
    "ResNet-18": (resnet, "layer1.1.bn2", classify),
    "ResNet-18, conv1": (resnet, "conv1", classify),
    "DCGAN": (dcgan, "main.10", generate),
    "BERT": (bert, "bert.encoder.layer.0", read),
}


def expected(model: nn.Module, layer: str, run: Run, autocast: bool = False) -> list[float]:
    """Whole, charge and positions, from two gradients of a model without hooks."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> Any:
        seen.append(output[0] if isinstance(output, tuple) else output)
        copied = seen[0].clone()  # which the model may overwrite
        return (copied, *output[1:]) if isinstance(output, tuple) else copied

    model = copy.deepcopy(model)
    model.get_submodule(layer).register_forward_hook(keep)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        task = run(model)
    [latent] = seen
    is_map = latent.dim() == 4
    mask = None if is_map else bert_batch()["attention_mask"].bool()
    loss = WEIGHT * plain_loss(as_tokens(latent) if is_map else latent, mask)
    gradients = [torch.autograd.grad(part, latent, retain_graph=True)[0] for part in (loss, task)]
    own, arriving = (as_tokens(grad) if is_map else grad for grad in gradients)
    own, arriving = own.double(), arriving.double()
    parts = [lambda grad: grad, lambda grad: grad[..., 0], lambda grad: grad[..., 1:]]
    return [float(part(own).norm() / part(arriving).norm()) for part in parts]


def shares(stats: dict[str, float]) -> list[float]:
    return [stats[f"gradient_share{part}"] for part in ("", "_charge", "_positions")]
