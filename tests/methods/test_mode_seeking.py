"""Mode seeking: by hand, against a plain loop, and on a generator."""

from __future__ import annotations

import pytest
import torch
from agreement import agree
from reference import make_batch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from atomsep.methods import ModeSeeking


def looped(noise: Tensor, images: Tensor) -> Tensor:
    """1 / (ratio + 1e-5), the ratio of the mean absolute differences, entry by entry."""
    half = len(noise) // 2
    means = []
    for batch in (images, noise):
        rows = batch.flatten(1)
        entries = [
            (rows[i, k] - rows[half + i, k]).abs()
            for i in range(half)
            for k in range(rows.shape[1])
        ]
        means.append(sum(entries) / len(entries))
    return 1 / (means[0] / means[1] + 1e-5)


def make_generator() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    return nn.Sequential(*layers, nn.Tanh()).double()


@pytest.mark.parametrize("samples", [2, 3, 6, 7])
def test_equals_the_loop(samples: int) -> None:
    noise, images = make_batch(samples, 3, seed=1), make_batch(samples, 2, 4, 4, seed=2)
    agree(ModeSeeking.compare, looped, noise, images)


def test_by_hand() -> None:
    noise = torch.tensor([[0.0, 0.0], [1.0, 3.0]])  # 2 apart on average
    images = torch.tensor([[0.0], [0.5]])
    assert ModeSeeking.compare(noise, images).item() == pytest.approx(4, rel=1e-4)
    assert ModeSeeking.compare(noise, 0 * images).item() == pytest.approx(1e5)


def test_an_odd_batch_leaves_out_its_last_sample() -> None:
    noise, images = make_batch(5, 3, seed=3), make_batch(5, 2, 4, seed=4)
    assert ModeSeeking.compare(noise, images) == ModeSeeking.compare(noise[:4], images[:4])


@pytest.mark.parametrize("samples", [0, 1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_few_and_equal_samples_are_finite(samples: int, dtype: torch.dtype) -> None:
    noise = torch.ones(samples, 3, dtype=dtype)
    images = torch.ones(samples, 2, 4, dtype=dtype, requires_grad=True)
    for given in (noise, make_batch(samples, 3, seed=5, dtype=dtype)):
        loss = ModeSeeking.compare(given, images)
        [slope] = torch.autograd.grad(loss, images)
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        assert slope.isfinite().all()


def test_bound_to_a_generator() -> None:
    """The weighted loss of what went in and came out, with the gradients of the loop."""
    noise = make_batch(6, 3, 1, 1, seed=6)
    gradients = []
    for by_loop in (False, True):
        generator = make_generator()
        binding = ModeSeeking().bind(generator, "1", weight=0.3, layout="auto")
        images = generator(noise)
        loss = 0.3 * looped(noise, images) if by_loop else binding.loss()
        gradients.append(torch.autograd.grad(loss, list(generator.parameters())))
        binding.detach()
        assert not generator._forward_hooks
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert max(gradient.abs().max() for gradient in gradients[0]) > 0


def test_only_the_last_training_forward_counts_and_once() -> None:
    generator = make_generator()
    binding = ModeSeeking().bind(generator)
    with pytest.raises(RuntimeError, match="has not run in training mode since the last loss"):
        binding.loss()
    first, last = make_batch(4, 3, 1, 1, seed=7), make_batch(4, 3, 1, 1, seed=8)
    generator(first)
    images = generator(last)
    with torch.no_grad():
        generator(first)
    generator.eval()
    generator(first)
    torch.testing.assert_close(binding.loss(), looped(last, images))
    with pytest.raises(RuntimeError, match="run it first"):
        binding.loss()


def test_a_recomputation_is_no_forward() -> None:
    noise, gradients = make_batch(6, 3, 1, 1, seed=6), []
    for by_loop in (False, True):
        generator = make_generator()
        binding = ModeSeeking().bind(generator, weight=0.3)
        with set_checkpoint_early_stop(False):  # as if something followed the generator
            images = checkpoint(generator, noise, use_reentrant=False)
        loss = 0.3 * looped(noise, images) if by_loop else binding.loss()
        gradients.append(torch.autograd.grad(loss, list(generator.parameters())))
        assert (binding.held is None) is not by_loop
    torch.testing.assert_close(*gradients)


def test_a_latent_and_other_generators_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no loss of a latent: bind it to the generator"):
        ModeSeeking()(make_batch(4, 3, 2))
    generator = nn.Identity()
    ModeSeeking().bind(generator)
    with pytest.raises(TypeError, match="Identity took list and returned list"):
        generator([1.0])
