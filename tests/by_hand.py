"""Models run by hand, and the loss by the plain formulas: what attaching is compared with."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from atomsep.functional import form_atoms, neutrality, occupancy, pair_energy

WEIGHT = 0.3


def plain_loss(latent: Tensor, mask: Tensor | None = None, **maps: Any) -> Tensor:
    """The loss by the plain formulas and autograd."""
    atoms = form_atoms(latent, mask, **maps)
    samples = len(latent)
    energy = pair_energy(atoms).sum() / max(1, samples * (samples - 1))
    return energy + neutrality(atoms).mean() + occupancy(atoms).mean()


def as_tokens(maps: Tensor) -> Tensor:
    return maps.flatten(2).transpose(1, 2)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-9) -> None:
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            actual[name],
            gradient,
            rtol=rtol,
            atol=max(1e-14, rtol * gradient.abs().max().item()),
            msg=name,
        )


def resnet() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=5).double()


def resnet_by_hand(model: Any, x: Tensor, target: str) -> tuple[Tensor, Tensor]:
    """ResNet-18 without in-place operations; the output and the latent of the target."""
    latents = {"conv1": model.conv1(x)}
    latents["bn1"] = model.bn1(latents["conv1"])
    x = model.maxpool(F.relu(latents["bn1"]))
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        for index, block in enumerate(getattr(model, stage)):
            identity = x if block.downsample is None else block.downsample(x)
            out = block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x)))))
            latents[f"{stage}.{index}.bn2"] = out
            x = F.relu(out + identity)
    return model.fc(model.avgpool(x).flatten(1)), as_tokens(latents[target])


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )  # fmt: skip
    return BertForSequenceClassification(config).double()


def bert_batch() -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0], [1] * 2 + [0] * 5])
    return {
        "input_ids": torch.randint(50, (4, 7)),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1, 1, 0]),
    }


def bert_latent_by_hand(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Task loss, and the first layer's output as the encoder itself reports it."""
    out = model(**batch, output_hidden_states=True)
    return out.loss, out.hidden_states[1]
