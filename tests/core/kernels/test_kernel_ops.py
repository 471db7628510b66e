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
from atomsep.core.statistics import Reading, Tokens


def tokens(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device)


def test_operators_keep_their_promises(device: torch.device) -> None:
    """Shapes, types and strides of the fake implementations are those of the real ones."""
    source, scores = tokens(device, 3, 7, 5), tokens(device, 3, 7)
    mask = torch.ones(3, 7, dtype=torch.bool, device=device)
    count = torch.full((3,), 7.0, device=device)
    image = source.transpose(1, 2).contiguous().unflatten(2, (7, 1))
    last = tokens(device, 3, 5, 7, 2).contiguous(memory_format=torch.channels_last)
    turned = tokens(device, 5, 3, 7).permute(1, 2, 0)
    checks = ("test_schema", "test_faketensor")
    for *known, copy, reading in (
        (source, None, None, count, True, ("channels_last", 0, 0, 2)),
        (source, scores, mask, count, False, ("channels_last", 0, None, 1)),
        (image, None, mask[:, 1:], count - 1, True, ("channels_first", 1, -1, 2)),
        (last, None, None, 2 * count, True, ("channels_first", 0, 0, 2)),
        (turned, None, None, count, True, ("channels_last", 0, 0, 2)),
        (source.transpose(0, 1), None, None, count, True, ("length_first", 0, 0, 2)),
    ):
        read, gradient = ops._read_op, ops._gradient_op
        given = *known, *reading
        torch.library.opcheck(read, (*given, copy), test_utils=checks)
        _, _, table, s = read(*given, copy)
        for direction, passed, scale in ((s, known[0], None), (None, None, count[0])):
            arguments = (*given, table, direction, passed, table, scale)
            torch.library.opcheck(gradient, arguments, test_utils=checks)
    for wanted in (True, False):
        arguments = (tokens(device, 3, 9), count, 0.5, wanted, 2, 1e-2, "mean", 1.0, 1.0, 0.5)
        torch.library.opcheck(ops._loss_op, arguments, test_utils=checks)


LAYOUTS = {
    "rows": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "length first": lambda x: x.flatten(2).permute(2, 0, 1),
    "tokens": lambda x: x.flatten(2).transpose(1, 2),
}
AXES = {"length first": "length_first", "tokens": "channels_last"}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize("passing", [None, "clone"])
def test_compiled_in_every_layout(
    memory: str, backend: str, passing: str | None, device: torch.device
) -> None:
    """One graph, with work before and after the node, and the numbers of plain float64."""
    axes = AXES.get(memory, "channels_first")
    image = LAYOUTS[memory](tokens(device, 3, 5, 4, 2))
    module = AtomLoss()

    def run(latent: Tensor) -> Tensor:
        measured = module.measure(
            latent.tanh(),
            None,
            Layout(axes),
            passing=passing,
            weight=1.0,  # type: ignore[arg-type]
        )
        loss = module.from_statistics(measured.statistics)
        return loss if measured.passed is None else loss + measured.passed.relu().square().mean()

    exact = image.double().requires_grad_()
    with use_kernels("torch"):
        run(exact).backward()
    leaf = image.clone().requires_grad_()
    torch.compiler.reset()
    with use_kernels("triton"):
        loss = torch.compile(run, backend=backend, fullgraph=True)(leaf)
        loss.backward()
    assert leaf.grad is not None
    assert exact.grad is not None
    assert (leaf.grad.double() - exact.grad).norm() < 1e-4 * exact.grad.norm()


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("passing", [None, "alias", "clone"])
@pytest.mark.parametrize("energy", [1.0, 0.0])
def test_a_loss_end_to_end(
    compiling: bool, passing: str | None, energy: float, device: torch.device
) -> None:
    """Through the module, with a consumer of the latent beside the loss, against plain float64."""
    latent = tokens(device, 4, 9, 6)
    mask = torch.ones(4, 9, dtype=torch.bool, device=device)
    mask[1, 6:] = False
    module = AtomLoss(energy=energy)
    torch.compiler.reset()

    def run(latent: Tensor) -> Tensor:
        measured = module.measure(latent, mask, Layout(), passing=passing, weight=1.0)
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
    ("dtype", "length", "features"),
    [
        (torch.float32, 64, 64),
        (torch.bfloat16, 64, 64),
        (torch.float32, 200, 64),
        (torch.bfloat16, 200, 64),
        (torch.bfloat16, 188, 64),
        (torch.bfloat16, 128, 768),
        (torch.bfloat16, 120, 768),
    ],
)
def test_little_is_kept_between_the_passes(
    dtype: torch.dtype, length: int, features: int, device: torch.device
) -> None:
    """Under 5 % of the latent, charges for the importance included; the gradient is right."""
    latent = tokens(device, 3, length, features).to(dtype).requires_grad_()
    module = AtomLoss()
    with use_kernels("triton"):
        with Allocations() as allocations:
            measured = module.measure(latent, None, Layout(), passing="alias", weight=1.0)
            loss = module.from_statistics(measured.statistics)
        assert 0 < allocations.kept(latent) < 0.05 * latent.nbytes
        [gradient] = torch.autograd.grad(loss, latent)
    exact = latent.detach().double().requires_grad_()
    [expected] = torch.autograd.grad(module(exact), exact)
    assert (gradient.double() - expected).norm() < 1e-2 * expected.norm()


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

    count = torch.full((2,), 6.0, device=device)

    def supports(source: Tensor, reading: Reading = reading) -> bool:
        return kernels.supports(Tokens(source, None, None, count, reading))

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
    scores = rows[..., 0].double()
    assert not kernels.supports(Tokens(rows, scores, None, count, Reading(Layout(), None, 2)))


def test_atomsep_works_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, atomsep\n"
        "from atomsep.core import kernels\n"
        "assert not kernels._FOUND\n"
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
    assert "72 kernels compiled" in done.stdout
