"""VQ against vector-quantize-pytorch, the loop over tokens, and its start."""

from __future__ import annotations

import pytest
import torch
from agreement import BATCHES, agree
from reference import make_batch, make_mask
from torch import Tensor
from vector_quantize_pytorch import VectorQuantize

from atomsep.methods import VQ, vq


def make_quantiser(latent: Tensor, codes: int = 5, **options: float) -> VQ:
    quantiser = VQ(latent.shape[-1], codes, **options).double()
    quantiser.codes.data = make_batch(codes, latent.shape[-1], seed=21)
    return quantiser


def make_peer(quantiser: VQ, *, learnable: bool) -> VectorQuantize:
    codes, features = quantiser.codes.shape
    peer = VectorQuantize(
        dim=features,
        codebook_size=codes,
        commitment_weight=1.0,
        rotation_trick=False,
        learnable_codebook=learnable,
        ema_update=False,
    ).double()
    with torch.no_grad():
        peer.codebook = quantiser.codes.data
    return peer


def nearest(token: Tensor, codes: Tensor) -> Tensor:
    return min(codes, key=lambda code: ((token - code) ** 2).sum().item())


def looped(latent: Tensor, codes: Tensor, mask: Tensor | None, weights: tuple) -> Tensor:
    terms = []
    for i, tokens in enumerate(latent):
        for j, token in enumerate(tokens):
            if mask is None or mask[i, j]:
                code = nearest(token, codes)
                commitment = ((token - code.detach()) ** 2).mean()
                terms.append(
                    weights[0] * commitment + weights[1] * ((code - token.detach()) ** 2).mean()
                )
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("latent", "mask"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("weights", [(1.0, 0.25), (0.25, 1.0)], ids=["named", "van den Oord"])
def test_equals_the_loop_over_tokens(latent: Tensor, mask: Tensor | None, weights: tuple) -> None:
    quantiser = make_quantiser(latent, commitment=weights[0], codebook=weights[1])

    def with_codes(x: Tensor, codes: Tensor) -> Tensor:
        return torch.func.functional_call(quantiser, {"codes": codes}, (x,), {"mask": mask})

    agree(
        with_codes, lambda x, codes: looped(x, codes, mask, weights), latent, quantiser.codes.data
    )


def test_the_default_weights_are_those_of_the_named_code() -> None:
    assert (VQ(4).commitment, VQ(4).codebook) == (1.0, 0.25)


@pytest.mark.parametrize("lengths", [[3] * 6, [3, 1, 2, 3, 1, 2]], ids=["full", "ragged"])
def test_commitment_equals_vector_quantize_pytorch(lengths: list[int]) -> None:
    latent, mask = make_batch(6, 3, 4, seed=22), make_mask(lengths, 3)
    quantiser = make_quantiser(latent, codebook=0.0)
    peer = make_peer(quantiser, learnable=False)
    agree(
        lambda x: quantiser(x, mask=mask),
        lambda x: peer(x.float(), mask=mask)[2].squeeze().double(),
        latent,
        tolerance=1e-6,  # it computes in float32
    )


def test_gradients_of_codes_and_tokens_equal_vector_quantize_pytorch() -> None:
    # Its one term has the gradients of both of ours at weight 1, and half their value.
    latent = make_batch(6, 3, 4, seed=23).float().requires_grad_()  # torch 2.6 needs one dtype
    quantiser = make_quantiser(latent, codebook=1.0)
    peer = make_peer(quantiser, learnable=True)
    loss, expected = quantiser(latent), peer(latent)[2].squeeze()
    torch.testing.assert_close(loss, 2 * expected, check_dtype=False)
    ours = torch.autograd.grad(loss, [latent, quantiser.codes])
    (theirs,) = [p for p in peer.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(expected, [latent, theirs])
    torch.testing.assert_close(ours[0], slopes[0], check_dtype=False)
    torch.testing.assert_close(ours[1], slopes[1].squeeze(0), check_dtype=False)


def test_codes_and_straight_through_equal_vector_quantize_pytorch() -> None:
    latent = make_batch(6, 3, 4, seed=24).requires_grad_()
    quantiser = make_quantiser(latent)
    upstream = make_batch(6, 3, 4, seed=25)
    results = []
    for passed in (quantiser.pass_on(latent), make_peer(quantiser, learnable=False)(latent)[0]):
        results.append((passed, *torch.autograd.grad((passed * upstream).sum(), latent)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(results[0][1], upstream)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_what_is_passed_on_is_a_code_exactly(dtype: torch.dtype) -> None:
    quantiser = VQ(4)
    latent = make_batch(3, 5, 4, seed=26, spread=100, dtype=dtype).requires_grad_()
    passed = quantiser.pass_on(latent)
    assert passed.dtype == dtype
    codes = quantiser.codes.detach().to(dtype)
    assert all((row == codes).all(1).any() for row in passed.detach().flatten(0, 1))


def test_the_task_does_not_move_the_codes() -> None:
    quantiser = VQ(4)
    latent = make_batch(3, 5, 4, seed=27, dtype=torch.float32).requires_grad_()
    quantiser.pass_on(latent).sum().backward()
    assert quantiser.codes.grad is None
    assert torch.equal(latent.grad, torch.ones_like(latent))


def test_the_nearest_of_tiny_codes_is_found_for_large_tokens() -> None:
    quantiser = VQ(64)
    tokens = make_batch(200, 64, seed=28, spread=30, dtype=torch.float32)
    differences = tokens.double().unsqueeze(1) - quantiser.codes.detach().double()
    assert torch.equal(quantiser.nearest(tokens), differences.square().sum(2).argmin(1))


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    quantiser = VQ(4)
    tokens = make_batch(101, 4, seed=29, dtype=torch.float32)
    whole = quantiser.nearest(tokens)
    monkeypatch.setattr(vq, "BLOCK", 3 * 512)
    assert torch.equal(quantiser.nearest(tokens), whole)


def test_codes_start_uniform_between_their_limits_by_the_seed() -> None:
    codes = VQ(64, seed=1).codes.detach() * 512
    assert codes.shape == (512, 64)
    assert codes.abs().max() <= 1
    assert abs(codes.mean()) < 0.02
    assert codes.var().item() == pytest.approx(1 / 3, rel=0.02)
    assert torch.equal(codes, VQ(64, seed=1).codes.detach() * 512)
    assert not torch.equal(codes, VQ(64, seed=2).codes.detach() * 512)


def test_training_brings_codes_and_tokens_together() -> None:
    quantiser = VQ(2, codes=4)
    latent = make_batch(8, 4, 2, seed=30, dtype=torch.float32)
    optimiser = torch.optim.SGD(quantiser.parameters(), lr=5.0)
    losses = []
    for _ in range(30):
        losses.append(quantiser(latent))
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < 0.7 * losses[0]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="the codes have 4 features, but the tokens have 3; pass"):
        VQ(4)(torch.zeros(2, 2, 3))
    with pytest.raises(ValueError, match="codes must be at least 1, not 0"):
        VQ(4, codes=0)
    with pytest.raises(ValueError, match="codebook must be a weight of at least 0, not -1"):
        VQ(4, codebook=-1)
