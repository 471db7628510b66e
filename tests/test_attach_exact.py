"""Attaching gives the gradient of a forward written by hand, whatever the model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import atomsep
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
    inner: list[int] = []
    model.conv1.register_forward_hook(
        lambda m, a, out: inner.append(out._base is None), prepend=True
    )
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
    latent = model[:5](F.relu(z) * 0 + z)
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
    layout = "auto" if batch_first else "length_first"
    attachment = atomsep.attach(root, "0", weight=WEIGHT, layout=layout)
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


# Ways to run a training step


def test_gradient_accumulation() -> None:
    model, batches = resnet(), torch.randn(2, 4, 3, 32, 32, dtype=torch.float64)
    total: Any = 0
    for x in batches:
        logits, latent = resnet_by_hand(model, x, "bn1")
        total = total + logits.logsumexp(1).mean() + WEIGHT * plain_loss(latent)
    expected = gradients(model, total)
    attachment = atomsep.attach(model, "bn1", weight=WEIGHT)
    model.zero_grad()
    for x in batches:
        (model(x).logsumexp(1).mean() + attachment.loss()).backward()
    assert_same({n: p.grad for n, p in model.named_parameters()}, expected)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU(True))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.second, self.first(x), use_reentrant=self.reentrant).mean()


def test_activation_checkpointing_counts_once() -> None:
    model = Checkpointed(reentrant=False).double()
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    latent = model.second[0](model.first(x))
    expected = gradients(model, F.relu(latent).mean() + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(model, "second.0", weight=WEIGHT)
    for _ in range(3):
        task = model(x)
        assert_same(gradients(model, task + attachment.loss()), expected)
    with pytest.raises(RuntimeError, match="no new forward"):
        attachment.loss()  # the recomputation is no forward of its own


def test_reentrant_checkpointing_is_refused() -> None:
    model = Checkpointed(reentrant=True).double()
    attachment = atomsep.attach(model, "second.0")
    task = model(torch.randn(4, 5, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        attachment.loss()
    task.backward()


def test_checkpointing_in_bert_with_another_mask_in_between() -> None:
    model, batch = bert().train(), bert_batch()
    other = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    mask = batch["attention_mask"].bool()
    total: Any = 0
    for each in (batch, other):
        task, latent = bert_latent_by_hand(model, each)
        own = mask if each is batch else None
        total = total + task + WEIGHT * plain_loss(latent, own)
    expected = gradients(model, total)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    total = 0
    for each in (batch, other):
        total = total + model(**each).loss + attachment.loss()
    assert_same(gradients(model, total), expected)


def test_of_several_forwards_the_last_counts() -> None:
    model, batch = bert().train(), bert_batch()
    full = {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}
    first, _ = bert_latent_by_hand(model, full)
    second, latent = bert_latent_by_hand(model, batch)
    mask = batch["attention_mask"].bool()
    expected = gradients(model, first + second + WEIGHT * plain_loss(latent, mask))
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    task = model(**full).loss + model(**batch).loss
    assert_same(gradients(model, task + attachment.loss()), expected)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(torch.tanh(self.shared(x))).square().mean()


def test_of_a_layer_that_runs_twice_the_last_run_counts() -> None:
    model, x = Twice().double(), torch.randn(4, 5, 4, dtype=torch.float64)
    latent = model.shared(torch.tanh(model.shared(x)))
    expected = gradients(model, latent.square().mean() + WEIGHT * plain_loss(latent))
    attachment = atomsep.attach(model, "shared", weight=WEIGHT)
    for _ in range(2):
        task = model(x)
        assert_same(gradients(model, task + attachment.loss()), expected)


def test_r1_penalty_on_an_attached_critic() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(64, 1)
    ).double()
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64, requires_grad=True)

    def penalised() -> Tensor:
        score = critic(x).sum()
        [slope] = torch.autograd.grad(score, x, create_graph=True)
        return score + slope.square().sum()

    expected = gradients(critic, penalised())
    attachment = atomsep.attach(critic, "0", weight=WEIGHT)
    for _ in range(2):
        assert_same(gradients(critic, penalised()), expected)
        attachment._taps[0]._settle()
    task = penalised()
    atom = gradients(critic, plain_loss(as_tokens(critic[0](x))).mul(WEIGHT))
    task = penalised()
    with_loss = gradients(critic, task + attachment.loss())
    for name, gradient in with_loss.items():
        torch.testing.assert_close(gradient, expected[name] + atom.get(name, 0))


def test_the_loss_itself_can_be_differentiated_twice() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    x = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)

    def curvature(loss: Callable[[], Tensor]) -> dict[str, Tensor]:
        [slope] = torch.autograd.grad(loss(), x, create_graph=True)
        return gradients(model, slope.square().sum())

    def plain() -> Tensor:
        """Distances from differences: old versions cannot differentiate cdist twice."""
        atoms = form_atoms(model[0](x))
        first, second = torch.triu_indices(4, 4, 1)
        away = (atoms.nucleus[first] - atoms.nucleus[second]).square().sum(1)
        d, r = (away + 1e-4).sqrt(), (atoms.radius[first] + atoms.radius[second]) / 2
        p, g = atoms.protons / 5, atoms.electrons / 5
        alike = p[first] * p[second] + g[first] * g[second]
        opposite = p[first] * g[second] + g[first] * p[second]
        energy = (alike / d - opposite / (d + r)).mean()
        return WEIGHT * (energy + neutrality(atoms).mean() + occupancy(atoms).mean())

    expected = curvature(plain)
    attachment = atomsep.attach(model, "0", weight=WEIGHT)

    def attached() -> Tensor:
        model(x)
        return attachment.loss()

    assert_same(curvature(attached), expected, rtol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_statistics_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
    x = torch.randn(6, 5, 3)
    with torch.autocast("cpu", dtype=dtype):
        latent = model[0](x)
        assert latent.dtype == dtype
        expected = WEIGHT * plain_loss(latent)
    attachment = atomsep.attach(model, "0", weight=WEIGHT)
    with torch.autocast("cpu", dtype=dtype):
        task = model(x).float().logsumexp(1).mean()
        loss = attachment.loss()
    numbers = attachment._taps[0].numbers
    assert numbers is not None
    assert numbers.table.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    (task + loss).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_models(backend: str, fullgraph: bool) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.Flatten(), nn.Linear(64, 2)
    ).double()
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    latent = model[1](model[0](x))
    task = model[3:](F.relu(latent)).logsumexp(1).mean()
    expected = gradients(model, task + WEIGHT * plain_loss(as_tokens(latent)))
    compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    attachment = atomsep.attach(compiled, "1", weight=WEIGHT)
    frames = torch._dynamo.utils.counters["frames"]
    for step in range(3):
        logits = compiled(x)
        actual = gradients(model, logits.logsumexp(1).mean() + attachment.loss())
        assert_same(actual, expected)
        if step == 0:
            compiled_frames = frames["total"]
    assert frames["total"] == compiled_frames, "recompiled after the first step"
    attachment.detach()
    model.eval()
    compiled(x)


def test_compiled_bert_with_padding() -> None:
    torch.compiler.reset()
    model, batch = bert().train(), bert_batch()
    task, latent = bert_latent_by_hand(model, batch)
    mask = batch["attention_mask"].bool()
    expected = gradients(model, task + WEIGHT * plain_loss(latent, mask))
    attachment = atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        assert_same(gradients(model, compiled(**batch).loss + attachment.loss()), expected)


def test_several_layers_give_the_mean_of_their_losses() -> None:
    model, x = resnet(), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    logits, first = resnet_by_hand(model, x, "layer1.0.bn2")
    _, second = resnet_by_hand(model, x, "layer1.1.bn2")
    loss = logits.logsumexp(1).mean() + WEIGHT * (plain_loss(first) + plain_loss(second)) / 2
    expected = gradients(model, loss)
    attachment = atomsep.attach(model, "layer1.*.bn2", weight=WEIGHT)
    assert attachment.layers == ["layer1.0.bn2", "layer1.1.bn2"]
    task = model(x).logsumexp(1).mean()
    assert_same(gradients(model, task + attachment.loss()), expected)
    assert list(attachment.importance) == attachment.layers
    assert list(attachment.stats) == attachment.layers


def test_the_paper_setting_samples_tokens_of_an_overwritten_layer() -> None:
    """With as many pairs and tokens as there are, the sampled loss is of the true output."""
    model, x = resnet(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    logits, latent = resnet_by_hand(model, x, "bn1")
    criterion = atomsep.AtomLoss.paper(tokens=40, seed=3)
    expected_loss = criterion(latent)
    expected = gradients(model, logits.logsumexp(1).mean() + WEIGHT * expected_loss)
    attachment = atomsep.attach(
        model, "bn1", atomsep.AtomLoss.paper(tokens=40, seed=3), weight=WEIGHT
    )
    task = model(x).logsumexp(1).mean()
    assert_same(gradients(model, task + attachment.loss()), expected)
