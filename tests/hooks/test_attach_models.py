"""Models and habits that once went wrong, or could without a word."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep import AtomLoss


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 6)
        self.saves = True

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if self.saves:
            return checkpoint(self.second, self.first(x), use_reentrant=False).tanh().mean()
        return self.second(self.first(x)).tanh().mean()


def gradient(model: Checkpointed, criterion: AtomLoss, mask: Tensor | None) -> list[Tensor]:
    torch.manual_seed(1)
    x = torch.randn(4, 9, 3, dtype=torch.float64)
    with atomsep.attach(model, "second", criterion, weight=1.0) as attachment:
        loss = model(x, mask) + attachment.loss()
        return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("kind", ["sampled", "learned"])
def test_a_recomputed_checkpoint_draws_and_masks_as_before(kind: str) -> None:
    model = Checkpointed().double()
    mask = torch.ones(4, 9, dtype=torch.bool)
    mask[1, 5:] = False
    learned = nn.Linear(6, 1).double()

    def criterion() -> AtomLoss:
        return AtomLoss(tokens=4) if kind == "sampled" else AtomLoss(charge=learned)

    actual = gradient(model, criterion(), mask)
    model.saves = False
    for one, other in zip(actual, gradient(model, criterion(), mask), strict=True):
        torch.testing.assert_close(one, other)


def test_a_decoder_takes_its_own_mask() -> None:
    """T5's decoder lies inside a module whose attention_mask is the encoder's."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train()
    ids = torch.randint(1, 30, (3, 5))
    own = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    encoder = torch.tensor([[1, 1, 0, 0, 0]] * 3)
    attachment = atomsep.attach(model, "decoder.block.0", select=0, weight=1.0)
    model(input_ids=ids, attention_mask=encoder, decoder_input_ids=ids, decoder_attention_mask=own)
    assert torch.equal(attachment.importance == 0, own == 0)


def test_a_root_that_is_passed_over_brings_no_stale_mask() -> None:
    """A training step may call the network inside, past the wrapper's own forward."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Checkpointed()

        def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.net(x, attention_mask)

    model = Wrapper()
    attachment = atomsep.attach(model, "net.second")
    x, mask = torch.randn(2, 4, 3), torch.tensor([[True] * 4, [True, True, False, False]])
    model.net(x, attention_mask=mask)
    assert torch.equal(attachment.importance == 0, ~mask)
    model(x, mask)
    with pytest.warns(atomsep.AtomWarning, match="outside a call of Wrapper"):
        model.net(x)
    assert (attachment.importance != 0).all()


def test_generation_with_a_cache() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=30, n_embd=8, n_layer=2, n_head=2, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    attachment = atomsep.attach(model, "transformer.h.0", layout="channels_last", select=None)
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    out = model.generate(
        torch.randint(30, (2, 3)), attention_mask=mask, max_new_tokens=3, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    assert out.shape == (2, 6)
    assert attachment.importance.shape == (2, 1)


@pytest.mark.parametrize(
    ("build", "target", "shape"),
    [
        (lambda: nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 4)), "0", (5, 2)),
        (lambda: nn.Sequential(nn.LayerNorm([4, 6, 5])), "0", (2, 4, 6, 5)),
    ],
)
def test_layouts_that_only_look_certain(build: Any, target: str, shape: tuple[int, ...]) -> None:
    model = build()
    atomsep.attach(model, target)
    x = torch.zeros(shape).long() if isinstance(model[0], nn.Embedding) else torch.randn(shape)
    with pytest.raises(ValueError, match="not certain"):
        model(x)


def test_a_block_whose_output_is_not_as_wide_as_its_layers() -> None:
    class Squeeze(nn.Module):
        """Linear layers inside, channels first outside."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale(x.mean((2, 3)))[..., None, None]

    model = nn.Sequential(Squeeze())
    atomsep.attach(model, "0")
    with pytest.raises(ValueError, match=r"\(2, 4, 6, 5\)\. Which axis .* is not certain"):
        model(torch.randn(2, 4, 6, 5))


def test_a_submodule_that_is_called_module() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.module = nn.Linear(3, 4), nn.Sequential()
            self.module.fc = nn.Linear(3, 4)

    model = Named()
    tap = atomsep.attach(model, "fc")._taps[0]
    assert tap in model.fc._forward_hooks.values()
    assert atomsep.attach(model, "module.fc").layers == ["module.fc"]


def test_an_in_place_consumer_that_comes_after_the_loss() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4)), torch.randn(4, 5, 3)
    attachment = atomsep.attach(model, "0", weight=1.0)
    seen = []
    for _ in range(3):
        y = model(x)
        loss = attachment.loss()
        (y.relu_().sum() + loss).backward()
        seen.append(model[0].weight.grad.clone())
        model.zero_grad()
    torch.testing.assert_close(seen[0], seen[1])
    torch.testing.assert_close(seen[0], seen[2])


def test_a_loss_that_fails_takes_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
    attachment = atomsep.attach(model, ["0", "1"])
    model[0](torch.randn(2, 5, 3))
    with pytest.raises(RuntimeError, match="'1' has not run"):
        attachment.loss()
    model[1](torch.randn(2, 5, 4))
    attachment.loss().backward()


def test_data_parallel_training_and_copies_of_the_model_inside(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(True)), torch.randn(4, 5, 3)
        expected = torch.autograd.grad(
            model(x).sum() + AtomLoss()(model[0](x)), list(model.parameters())
        )
        parallel = nn.parallel.DistributedDataParallel(model)
        attachment = atomsep.attach(parallel, "0", weight=1.0)
        for _ in range(2):
            (parallel(x).sum() + attachment.loss()).backward()
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, gradient)
            parallel.zero_grad()
        twin = copy.deepcopy(parallel.module)
        twin(x)
        assert atomsep.attachments(twin)[0].loss().requires_grad
    finally:
        torch.distributed.destroy_process_group()


class Failing(nn.Module):
    """Runs out of memory between a layer and the consumer that overwrites its output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.fails = nn.Linear(3, 4), False

    def forward(self, x: Tensor) -> Tensor:
        latent = self.linear(x)
        if self.fails:
            raise MemoryError
        return latent.relu_().sum()


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_forward_that_failed_says_nothing_of_its_consumer(attempts: int) -> None:
    model, x = Failing(), torch.randn(4, 5, 3)
    latent = model.linear(x)
    loss = latent.relu().sum() + atomsep.AtomLoss()(latent)
    expected = torch.autograd.grad(loss, [model.linear.weight])
    attachment = atomsep.attach(model, "linear", weight=1.0)
    model.fails = True
    for _ in range(attempts):
        with pytest.raises(MemoryError):
            model(x)
    model.fails = False
    for _ in range(3):
        actual = torch.autograd.grad(model(x) + attachment.loss(), [model.linear.weight])
        torch.testing.assert_close(actual, expected)
