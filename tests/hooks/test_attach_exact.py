"""Attaching gives the gradient of a forward written by hand, whatever the model is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from by_hand import (
    WEIGHT,
    as_tokens,
    assert_same,
    bert,
    bert_batch,
    bert_latent_by_hand,
    gradients,
    plain_loss,
    resnet,
    resnet_by_hand,
)
from torch import Tensor, nn
from torch.nn import functional as F

import atomsep


@pytest.mark.parametrize("target", ["conv1", "bn1", "layer1.1.bn2", "layer2.0.bn2"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_resnet_overwrites_its_outputs_in_place(target: str, memory_format: Any) -> None:
    model, x = resnet(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    model, x = model.to(memory_format=memory_format), x.to(memory_format=memory_format)
    y = torch.arange(4)
    logits, latent = resnet_by_hand(model, x, target)
    expected = gradients(model, F.cross_entropy(logits, y) + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(model, target, weight=WEIGHT)
    for _ in range(3):  # the first forward copies, the next ones know who writes
        logits = model(x)
        actual = gradients(model, F.cross_entropy(logits, y) + attachment.loss())
        assert_same(actual, expected)
    assert attachment._taps[0].writes is (target != "conv1")


def test_a_layer_that_nobody_overwrites_is_handed_on_without_a_copy() -> None:
    model, x = resnet(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    seen: list[int] = []
    atomsep.attach(model, "conv1")
    model.conv1.register_forward_hook(lambda m, a, out: seen.append(out.data_ptr()))
    [attachment] = atomsep.attachments(model)
    before: list[int] = []
    model.conv1.register_forward_hook(lambda m, a, out: before.append(out.data_ptr()), prepend=True)
    for _ in range(2):
        model(x).sum().backward()
        with torch.no_grad():
            attachment.loss()
    assert seen[0] != before[0]
    assert seen[1] == before[1]


def test_mlp_on_tokens() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2)).double()
    x, y = torch.randn(6, 5, 3, dtype=torch.float64), torch.arange(6) % 2
    latent = model[0](x)
    expected = gradients(model, F.cross_entropy(model[1:](latent), y) + WEIGHT * plain_loss(latent))
    with atomsep.attach(model, "0", weight=WEIGHT) as attachment:
        for _ in range(2):
            logits = model(x)
            assert_same(gradients(model, F.cross_entropy(logits, y) + attachment.loss()), expected)


@pytest.mark.parametrize(
    "settings", [{}, {"pairs": "sampled"}, {"position": nn.Linear(8, 2).double()}]
)
@pytest.mark.parametrize("watch", [False, True])
def test_a_weight_of_0_leaves_training_as_it_is(settings: dict[str, Any], watch: bool) -> None:
    """Even where the energy is infinite: equal samples without softening."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2)).double()
    x = torch.randn(1, 5, 3, dtype=torch.float64).expand(4, 5, 3)
    task = model(x).logsumexp(1).sum()
    expected = gradients(model, task)
    criterion = atomsep.AtomLoss(softening=0, **settings)
    attachment = atomsep.attach(model, "0", criterion, weight=0, watch_gradients=watch)
    for _ in range(2):
        total = model(x).logsumexp(1).sum() + attachment.loss()
        assert total == task
        assert_same(gradients(model, total), expected, 0)
        assert not any(p.grad.any() for p in attachment.parameters())
        assert attachment.stats.get("gradient_share") == (0 if watch else None)


@pytest.mark.parametrize("skip", [0, 1])
def test_vision_transformer_with_its_class_token(skip: int) -> None:
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(16, 4, 2, 2, 8, 16, num_classes=3).double()
    nn.init.normal_(model.heads.head.weight)
    x, y = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.tensor([0, 1, 2, 0])

    def by_hand() -> tuple[Tensor, Tensor]:
        tokens = model._process_input(x)
        tokens = torch.cat([model.class_token.expand(4, -1, -1), tokens], 1)
        latent = model.encoder.layers[0](tokens + model.encoder.pos_embedding)
        out = model.encoder.ln(model.encoder.layers[1](latent))
        return model.heads(out[:, 0]), latent[:, skip:]

    logits, latent = by_hand()
    expected = gradients(model, F.cross_entropy(logits, y) + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(
        model, "encoder.layers.encoder_layer_0", weight=WEIGHT, skip_tokens=skip
    )
    for _ in range(2):
        logits = model(x)
        assert_same(gradients(model, F.cross_entropy(logits, y) + attachment.loss()), expected)
    assert attachment.importance.shape == (4, 17 - skip)


def test_swin_keeps_channels_last_maps() -> None:
    torch.manual_seed(0)
    model = torchvision.models.SwinTransformer(
        [4, 4], 8, [1, 1], [2, 2], [2, 2], stochastic_depth_prob=0.0, num_classes=3
    ).double()
    x, y = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    latent = model.features[1](model.features[0](x))
    out = model.norm(model.features[3](model.features[2](latent)))
    logits = model.head(out.permute(0, 3, 1, 2).mean((2, 3)))
    task = F.cross_entropy(logits, y)
    expected = gradients(model, task + WEIGHT * plain_loss(latent.flatten(1, 2)))
    attachment = atomsep.attach(model, "features.1.0", weight=WEIGHT)
    for _ in range(2):
        task = F.cross_entropy(model(x), y)
        assert_same(gradients(model, task + attachment.loss()), expected)
    assert attachment.importance.shape == (4, 8, 8)


@pytest.mark.parametrize("call", ["keywords", "positions"])
def test_bert_brings_its_own_padding_mask(call: str) -> None:
    model, batch = bert().train(), bert_batch()
    task, latent = bert_latent_by_hand(model, batch)
    mask = batch["attention_mask"].bool()
    expected = gradients(model, task + WEIGHT * plain_loss(latent, mask))
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    for _ in range(2):
        if call == "keywords":
            task = model(**batch).loss
        else:
            task = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        assert_same(gradients(model, task + attachment.loss()), expected)
    assert attachment.importance.shape == (4, 7)
    assert (attachment.importance[~mask] == 0).all()


def test_bert_whose_encoder_returns_an_output_object() -> None:
    model, batch = bert().train(), bert_batch()
    out = model(**batch, output_hidden_states=True)
    latent, mask = out.hidden_states[-1], batch["attention_mask"].bool()
    expected = gradients(model, out.loss + WEIGHT * plain_loss(latent, mask))
    attachment = atomsep.attach(
        model, "bert.encoder", weight=WEIGHT, layout="channels_last", select="last_hidden_state"
    )
    actual = gradients(model, model(**batch).loss + attachment.loss())
    assert_same(actual, expected)


class Pair(nn.Module):
    """Returns a tuple, a list, a mapping or a named tuple."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(3, 6), kind

    def forward(self, x: Tensor) -> Any:
        latent = self.linear(x)
        extra = latent.mean((1, 2))
        return {
            "tuple": (latent, extra), "list": [extra, latent], "dict": {"a": extra, "z": latent},
            "named": torch.return_types.max((latent, torch.zeros(1).long())),
        }[self.kind]  # fmt: skip


class Consumer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.pair, self.kind = Pair(kind), kind
        self.key = {"tuple": 0, "list": 1, "dict": "z"}[kind]

    def forward(self, x: Tensor) -> Tensor:
        out = self.pair(x)
        assert type(out) is {"tuple": tuple, "list": list, "dict": dict}[self.kind]
        return out[self.key].relu_().mean()


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
@pytest.mark.parametrize("explicit", [True, False])
def test_outputs_that_hold_the_tensor_somewhere_inside(kind: str, explicit: bool) -> None:
    torch.manual_seed(0)
    model, x = Consumer(kind).double(), torch.randn(4, 5, 3, dtype=torch.float64)
    latent = model.pair.linear(x)
    expected = gradients(model, latent.relu().mean() + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(
        model, "pair", weight=WEIGHT, select=model.key if explicit else None
    )
    for _ in range(2):
        task = model(x)
        assert_same(gradients(model, task + attachment.loss()), expected)


def dcgan_generator() -> nn.Sequential:
    """The last stages of DCGAN's generator, as in PyTorch's examples."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.ConvTranspose2d(10, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
    ).double()  # fmt: skip


def test_dcgan_generator_before_its_last_activation() -> None:
    model, z = dcgan_generator(), torch.randn(6, 10, 1, 1, dtype=torch.float64)
    latent = model[:5](z)
    task = model[6:](F.relu(latent)).square().mean()
    expected = gradients(model, task + WEIGHT * plain_loss(as_tokens(latent)))
    attachment = atomsep.attach(model, "4", weight=WEIGHT)
    for _ in range(2):
        task = model(z).square().mean()
        assert_same(gradients(model, task + attachment.loss()), expected)
    assert attachment.importance.shape == (6, 8, 8)


@pytest.mark.parametrize("batch_first", [False, True])
def test_length_first_sequences(batch_first: bool) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first).double()
    x = torch.randn(4, 5, 8, dtype=torch.float64)
    given = x if batch_first else x.transpose(0, 1)
    latent = model(given)
    tokens = latent if batch_first else latent.transpose(0, 1)
    expected = gradients(model, latent.square().mean() + WEIGHT * plain_loss(tokens))
    root = nn.Sequential(model)
    attachment = atomsep.attach(root, "0", weight=WEIGHT)
    actual = gradients(model, root(given).square().mean() + attachment.loss())
    assert_same(actual, expected)


def test_learned_maps_train_with_the_model() -> None:
    torch.manual_seed(0)
    model, x = resnet(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    charge, position = nn.Linear(64, 1).double(), nn.Linear(64, 3).double()
    logits, latent = resnet_by_hand(model, x, "bn1")
    loss = logits.logsumexp(1).mean() + WEIGHT * plain_loss(
        latent, charge=charge, position=position
    )
    together = nn.ModuleList([model, charge, position])
    expected = gradients(together, loss)
    criterion = atomsep.AtomLoss(charge=charge, position=position)
    attachment = atomsep.attach(model, "bn1", criterion, weight=WEIGHT)
    assert {id(p) for p in attachment.parameters()} == {
        id(p) for p in (*charge.parameters(), *position.parameters())
    }
    for _ in range(2):
        task = model(x).logsumexp(1).mean()
        assert_same(gradients(together, task + attachment.loss()), expected)
