"""Which backend computes, and what happens where the kernels cannot."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from by_hand import plain_loss as functional_loss

from atomsep import AtomLoss, use_kernels
from atomsep.core import backend, kernels, node, plain
from atomsep.core.layout import Layout
from atomsep.core.statistics import Reading, Tokens

# older interpreters use what newer versions of NumPy deprecate
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

READING = Reading(Layout(), 0, 2)


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(not kernels._FOUND, reason="Triton is not installed")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of passes that fail, in mode "auto" as on a GPU: the interpreter counts as one."""
    failing: list[str] = []
    launcher = kernels._launcher

    def launch(file: str, name: str) -> Any:
        if name in failing:
            raise RuntimeError("Failed to find C compiler.\nPlease set the CC variable.")
        return launcher(file, name)

    def wants(*arguments: Any) -> bool:
        return not backend.guarded.failure and kernels.supports(*arguments)

    monkeypatch.setattr(kernels, "_launcher", launch)
    monkeypatch.setattr(kernels, "_INTERPRETED", not torch.cuda.is_available())
    monkeypatch.setattr(backend.guarded, "failure", "")
    monkeypatch.setattr(backend, "_mode", "auto")
    monkeypatch.setattr(node, "wants_kernels", wants)
    return failing


def gradient(latent: torch.Tensor) -> torch.Tensor:
    leaf = latent.detach().requires_grad_()
    [grad] = torch.autograd.grad(AtomLoss()(leaf), leaf)
    return grad


@needs_triton
@pytest.mark.parametrize("name", ["read_atoms", "pair_loss", "atoms_gradient"])
def test_a_failing_kernel_is_replaced_with_one_warning(
    broken: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    latent = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    broken.append(name)
    with pytest.warns(RuntimeWarning, match=r"Failed to find C compiler\.\)"):
        found = gradient(latent)
    leaf = latent.double().requires_grad_()
    [expected] = torch.autograd.grad(functional_loss(leaf), leaf)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(gradient(latent), gradient(latent))
    monkeypatch.setattr(kernels, "_launcher", lambda *names: pytest.fail("tried again"))
    gradient(latent)


@needs_triton
def test_compiled_too(broken: list[str]) -> None:
    latent = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    expected = gradient(latent)
    broken.append("read_atoms")
    leaf = latent.requires_grad_()
    compiled = torch.compile(AtomLoss(), backend="aot_eager", fullgraph=True)
    with pytest.warns(RuntimeWarning, match="Failed to find C compiler"):
        [found] = torch.autograd.grad(compiled(leaf), leaf)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@needs_triton
def test_asked_for_they_raise(broken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken.append("read_atoms")
    monkeypatch.setattr(backend, "_mode", "triton")
    with pytest.raises(RuntimeError, match="CC variable"):
        AtomLoss()(torch.randn(2, 3, 4, device=DEVICE))


def test_memory_that_runs_out_is_not_a_failing_kernel(
    broken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(file: str, name: str) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(kernels, "_launcher", launch)
    with pytest.raises(torch.OutOfMemoryError):
        backend.guarded.read_atoms(torch.zeros(1, 2, 3))
    assert not backend.guarded.failure


@pytest.mark.parametrize(
    ("version", "found"),
    [("3.3.1", False), ("3.4.0", True), ("3.6.0+git12ab", True), ("4.0", True), ("main", True)],
)
def test_versions_of_triton(version: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that names no version is tried: if it fails, plain PyTorch takes over."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert kernels._find() is found


def test_modes() -> None:
    with pytest.raises(ValueError, match="mode must be one of auto, triton, torch, not 'cuda'"):
        use_kernels("cuda")  # type: ignore[arg-type]
    source = torch.zeros(1, 2, 3)
    for mode in ("auto", "torch"):
        with use_kernels(mode):  # type: ignore[arg-type]
            assert not backend.wants_kernels(
                Tokens(source, None, None, torch.full((1,), 2.0), READING)
            )
            assert backend.backend(False) is plain
