"""The kernels as operators: what they promise the compiler, and when they are taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from allocations import Allocations
from graphs import capture
from torch import Tensor

from atomsep import AtomLoss, use_kernels
from atomsep.core import kernels
from atomsep.core.kernels import ops
from atomsep.core.layout import Layout
from atomsep.core.plain.pairs import Terms
from atomsep.core.statistics import Reading


def tokens(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)


def test_operators_keep_their_promises(device: torch.device) -> None:
    source, scores = tokens(device, 3, 7, 5), tokens(device, 3, 7)
    mask = torch.ones(3, 7, dtype=torch.bool, device=device)
    count = torch.full((3,), 7.0, device=device)
    image = source.transpose(1, 2).contiguous().unflatten(2, (7, 1))
    checks = ("test_schema", "test_faketensor")
    for arguments in (
        (source, None, None, count, "channels_last", 0, 0, 2, True),
        (source, scores, mask, count, "channels_last", 0, None, 1, False),
        (image, None, mask[:, 1:], count - 1, "channels_first", 1, -1, 2, True),
    ):
        torch.library.opcheck(ops.measure_forward, arguments, test_utils=checks)
        width = 5 if arguments[6] is None else 4
        table, s = tokens(device, 3, 5 + width), tokens(device, 3, width)
        torch.library.opcheck(
            ops.measure_backward,
            (
                *(*arguments[:4], table, s, *arguments[4:8]),
                *(arguments[0], table),
            ),
            test_utils=checks,
        )
    for gradient in (True, False):
        arguments = (tokens(device, 3, 9), count, 2, 1e-2, "mean", 1.0, 1.0, gradient)
        torch.library.opcheck(ops.pairs_forward, arguments, test_utils=checks)


def test_compiled_whole(device: torch.device) -> None:
    """One graph, the same numbers as eager calls."""
    source = tokens(device, 3, 7, 5)
    count = torch.full((3,), 7.0, device=device)
    reading = Reading(Layout(), 0, 2)
    terms = Terms(2, 1e-2, "mean", 1.0, 1.0)

    def whole(source: Tensor) -> tuple[Tensor, ...]:
        copied, charge, table, s = kernels.measure_forward(source, None, None, count, reading, True)
        loss, slopes = kernels.pairs_forward(table, count, terms, True)
        assert slopes is not None
        grad, _ = kernels.measure_backward(
            source, None, None, count, table, s, reading, copied, slopes
        )
        return copied, charge, loss, grad  # type: ignore[return-value]

    compiled = torch.compile(whole, backend="aot_eager", fullgraph=True)
    for got, want in zip(compiled(source), whole(source), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("passing", [None, "alias", "clone"])
def test_a_loss_end_to_end(compiling: bool, passing: str | None, device: torch.device) -> None:
    """Through the module, with a consumer of the latent beside the loss, against plain float64."""
    latent = tokens(device, 4, 9, 6)
    mask = torch.ones(4, 9, dtype=torch.bool, device=device)
    mask[1, 6:] = False
    module = AtomLoss()

    def run(latent: Tensor) -> Tensor:
        measured = module.measure(latent, mask, Layout(), passing=passing)
        loss = module.from_statistics(measured.statistics)
        return loss if measured.passed is None else loss + measured.passed.square().mean()

    exact = latent.double().requires_grad_()
    with use_kernels("torch"):
        expected = run(exact)
        expected.backward()
    leaf = latent.clone().requires_grad_()
    with use_kernels("triton"):
        called = torch.compile(run, backend="aot_eager", fullgraph=True) if compiling else run
        loss = called(leaf)
        loss.backward()
    assert leaf.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    error = (leaf.grad.double() - exact.grad).norm()
    assert error < 1e-4 * exact.grad.norm()


@pytest.mark.parametrize(
    ("dtype", "length", "features", "roomy"),
    [
        (torch.float32, 64, 64, False),
        (torch.bfloat16, 64, 64, False),
        (torch.float32, 200, 64, True),
        (torch.bfloat16, 200, 64, True),
        (torch.bfloat16, 188, 64, False),
        (torch.bfloat16, 128, 768, True),
        (torch.bfloat16, 120, 768, False),
    ],
)
def test_little_is_kept_between_the_passes(
    dtype: torch.dtype, length: int, features: int, roomy: bool, device: torch.device
) -> None:
    """Under 5 % of the latent, charges for the importance included; the gradient is right."""
    latent = tokens(device, 3, length, features).to(dtype).requires_grad_()
    module = AtomLoss()
    with use_kernels("triton"):
        with Allocations() as allocations:
            measured = module.measure(latent, None, Layout(), passing="alias")
            loss = module.from_statistics(measured.statistics)
        assert 0 < allocations.kept(latent) < 0.05 * latent.nbytes
        [gradient] = torch.autograd.grad(loss, latent)
    exact = latent.detach().double().requires_grad_()
    [expected] = torch.autograd.grad(module(exact), exact)
    assert (gradient.double() - expected).norm() < 1e-2 * expected.norm()
    assert measured.statistics.roomy is roomy


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
@pytest.mark.parametrize("tokens_a_sample", [9, 3000])
def test_captured_into_a_graph(tokens_a_sample: int, device: torch.device) -> None:
    """Replayed on new numbers, forward and backward give what they give outside of a graph."""
    first, second = tokens(device, 2, 5, tokens_a_sample, 40).unbind(0)
    module = AtomLoss()

    def run(latent: Tensor) -> tuple[Tensor, Tensor]:
        latent = latent.detach().requires_grad_()
        loss = module(latent)
        return loss.detach(), torch.autograd.grad(loss, latent)[0]

    with use_kernels("triton"):
        static = first.clone()
        graph, captured = capture(lambda: run(static))
        static.copy_(second)
        graph.replay()
        for got, want in zip(captured, run(second), strict=True):
            assert torch.equal(got, want)


def test_what_is_supported(device: torch.device) -> None:
    reading = Reading(Layout(), 0, 2)
    planes = Reading(Layout("channels_first"), 0, 2)

    def supports(source: Tensor, reading: Reading = reading) -> bool:
        return kernels.supports(source, None, None, reading)

    assert kernels.available()
    rows = tokens(device, 2, 6, 4)
    assert supports(rows)
    assert supports(rows.bfloat16())
    assert supports(rows.transpose(1, 2).contiguous().transpose(1, 2))
    assert supports(rows[:, ::2])  # rows further apart
    assert supports(rows[..., 1:3])
    assert not supports(rows.double())
    assert not supports(rows[..., ::2])
    image = tokens(device, 2, 4, 3, 5)
    assert supports(image, planes)
    assert supports(image.contiguous(memory_format=torch.channels_last), planes)
    assert not supports(image[..., ::2], planes)  # neither features nor tokens lie together
    assert not supports(image.transpose(2, 3), planes)  # tokens are no view
    assert not supports(rows.to("meta"))
    assert not kernels.supports(rows, rows[..., 0].double(), None, Reading(Layout(), None, 2))
    assert kernels.supports_pairs(rows[:, 0])
    assert not kernels.supports_pairs(rows[:, 0].double())


def test_atomsep_works_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, atomsep\n"
        "from atomsep.core import kernels\n"
        "assert not kernels.available()\n"
        "assert atomsep.AtomLoss()(torch.randn(2, 3, 4)).isfinite()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_kernel_compiles_for_a_gpu() -> None:
    """The interpreter takes programs that the compiler refuses; no GPU is needed for this."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_all.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "73 kernels compiled" in done.stdout
