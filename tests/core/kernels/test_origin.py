"""Batch norms, whose output is computed again in the backward pass instead of being kept."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import atomsep
from atomsep import Attachment, use_kernels
from atomsep.hooks import origin, tap
from atomsep.hooks.origin import find_origin


@pytest.fixture(autouse=True)
def _small_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "LARGE", 0)


def network(norm: Any, inplace: bool, device: torch.device) -> nn.Sequential:
    """A convolution, a batch norm with weights that matter, a ReLU, and one more layer."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[int(type(norm).__name__[9])]
    channels = norm.num_features
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, channels, 3), norm, nn.ReLU(inplace), conv(channels, 2, 1))
    if norm.affine:
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    return model.to(device)


def train(model: nn.Module, attachment: Attachment, batch: Tensor) -> None:
    (model(batch).square().mean() + attachment.loss()).backward()


def check(
    model: nn.Module,
    batch: Tensor,
    step: Callable[[nn.Module, Attachment, Tensor], None] = train,
    *,
    kept: bool = False,
    tolerance: float = 1e-4,
    **options: Any,
) -> None:
    """Hold the gradient of a step by the kernels against plain PyTorch, which keeps the latent.

    With `kept` the kernels are to keep it too.
    """
    found = []
    for mode in ("triton", "torch"):
        trained = copy.deepcopy(model)
        settings = {"weight": 1.0, **options}
        with use_kernels(mode), atomsep.attach(trained, "1", **settings) as attachment:  # type: ignore[arg-type]
            step(trained, attachment, batch)
            [own] = attachment._taps
            held = own.forwards.read()
            watched = bool(held.watched) or own.writes is not None
            assert watched is (kept or mode == "torch")  # who writes to it matters if it is kept
        # the bias before a batch norm has no gradient but rounding
        wanted = [p.grad for name, p in trained.named_parameters() if name != "0.bias"]
        found.append(torch.cat([g.flatten().double().cpu() for g in wanted if g is not None]))
    by_kernels, plain = found
    assert (by_kernels - plain).norm() <= tolerance * plain.norm()


MEMORY = pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])


@MEMORY
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("channels", [8, 40])  # the second in chunks
@pytest.mark.usefixtures("small_blocks")
def test_the_gradient_is_that_of_a_kept_latent(
    channels: int, inplace: bool, memory: torch.memory_format, device: torch.device
) -> None:
    model = network(nn.BatchNorm2d(channels), inplace, device).to(memory_format=memory)
    batch = torch.randn(3, 3, 22, 20, device=device).to(memory_format=memory)
    check(model, batch)


@MEMORY
def test_masks(memory: torch.memory_format, device: torch.device) -> None:
    model = network(nn.BatchNorm2d(8), True, device).to(memory_format=memory)
    with torch.no_grad():
        model[0].bias[0] = 3  # so that a score of 0 in the input would be an electron
    batch = torch.randn(3, 3, 22, 20, device=device).to(memory_format=memory)
    mask = torch.rand(3, 20, 18, device=device) < 0.7
    check(model, batch, mask=lambda args, kwargs: mask)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(8, affine=False),
        nn.BatchNorm2d(8, track_running_stats=False, eps=0.3),
        nn.BatchNorm1d(8),
        nn.BatchNorm3d(8),
    ],
    ids=str,
)
def test_every_kind_of_batch_norm(norm: nn.Module, device: torch.device) -> None:
    shape = {"BatchNorm1d": (400,), "BatchNorm2d": (22, 20), "BatchNorm3d": (8, 9, 10)}
    model = network(norm, True, device)
    check(model, torch.randn(4, 3, *shape[type(norm).__name__], device=device))


def test_far_from_zero(device: torch.device) -> None:
    """Where a batch norm subtracts a mean that is many deviations away."""
    model = network(nn.BatchNorm2d(8), True, device)
    with torch.no_grad():
        model[0].bias += 100
    check(model, torch.randn(4, 3, 22, 20, device=device), tolerance=1e-3)


def test_bfloat16(device: torch.device) -> None:
    model = network(nn.BatchNorm2d(8), True, device)
    batch = torch.randn(4, 3, 22, 20, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        check(model, batch, tolerance=1e-2)


def test_another_feature_and_norm(device: torch.device) -> None:
    model = network(nn.BatchNorm2d(8), True, device)
    batch = torch.randn(4, 3, 22, 20, device=device)
    check(model, batch, loss=atomsep.AtomLoss(norm=1, charge=5))


def test_nothing_is_copied_or_kept(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(nn.BatchNorm2d(8), False, device)
    places: list[int] = []
    storages: list[weakref.ref[object]] = []

    def note(layer: nn.Module, hook: object, args: object, output: Tensor) -> Any:
        places.append(output.data_ptr())
        return find_origin(layer, hook, args, output)  # type: ignore[arg-type]

    def look(module: nn.Module, args: object, output: Tensor) -> None:
        places.append(output.data_ptr())
        storages.append(weakref.ref(output.untyped_storage()))

    monkeypatch.setattr(tap, "find_origin", note)
    with use_kernels("triton"), atomsep.attach(model, "1") as attachment:
        model[1].register_forward_hook(look)
        out = model(torch.randn(4, 3, 22, 20, device=device))
        assert places[0] == places[1]
        assert storages[0]() is None  # the ReLU has read it, and nobody else wants it
        (out.mean() + attachment.loss()).backward()


def test_the_gradient_can_be_differentiated_again(device: torch.device) -> None:
    def twice(model: nn.Module, attachment: Attachment, batch: Tensor) -> None:
        model(batch)
        first = model.get_parameter("0.weight")
        [gradient] = torch.autograd.grad(attachment.loss(), first, create_graph=True)
        gradient.square().sum().backward()

    model = network(nn.BatchNorm2d(8), True, device)
    check(model, torch.randn(4, 3, 22, 20, device=device), twice)


def test_who_writes_may_change(device: torch.device) -> None:
    """Where the latent is kept, a consumer that begins to write is an error for one step."""
    model = network(nn.BatchNorm2d(8), False, device)
    batch = torch.randn(4, 3, 22, 20, device=device)
    with use_kernels("triton"), atomsep.attach(model, "1") as attachment:
        for inplace in (False, True, False):
            model[2].inplace = inplace
            train(model, attachment, batch)
        assert attachment._taps[0].writes is None  # nobody looks


def test_a_bias_that_changed_is_refused_where_it_is_needed(device: torch.device) -> None:
    model = network(nn.BatchNorm2d(8), True, device)
    batch = torch.randn(4, 3, 22, 20, device=device)
    for create_graph in (False, True):
        with use_kernels("triton"), atomsep.attach(model, "1") as attachment:
            model(batch)
            loss = attachment.loss()
            with torch.no_grad():
                model[1].bias.add_(1)
            wanted = [model[0].weight]
            if not create_graph:
                torch.autograd.grad(loss, wanted)
                continue
            with pytest.raises(RuntimeError, match="bias of a batch norm .* was modified in place"):
                torch.autograd.grad(loss, wanted, create_graph=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the compiler imports
def test_a_backward_pass_that_is_compiled_alone(device: torch.device) -> None:
    def compiled(model: nn.Module, attachment: Attachment, batch: Tensor) -> None:
        loss = model(batch).square().mean() + attachment.loss()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()

    model = network(nn.BatchNorm2d(8), True, device)
    check(model, torch.randn(4, 3, 22, 20, device=device), compiled)


class Doubled(nn.BatchNorm2d):
    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(2 * batch)


def frozen() -> nn.Module:
    return nn.BatchNorm2d(8).eval()


def scaled() -> nn.Module:
    """A hook changes the output behind autograd's back."""

    def scale(module: nn.Module, args: object, output: Tensor) -> None:
        output.data.mul_(3)

    norm = nn.BatchNorm2d(8)
    norm.register_forward_hook(scale)
    return norm


def replaced() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    norm.forward = lambda batch: nn.BatchNorm2d.forward(norm, 2 * batch.tanh())  # type: ignore[method-assign]
    return norm


def parametrized() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    return norm


@pytest.mark.parametrize("make", [partial(Doubled, 8), frozen, scaled, replaced, parametrized])
def test_the_latent_is_kept_where_it_is_made_otherwise(
    make: Callable[[], nn.Module], device: torch.device
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), make(), nn.ReLU(True), nn.Conv2d(8, 2, 1)).to(device)
    batch = torch.randn(4, 3, 22, 20, device=device)
    check(model, batch, kept=True, layout="channels_first")


def test_the_latent_is_kept_where_tokens_are_few(device: torch.device) -> None:
    """The second look, which needs it, is repeated there."""
    model = network(nn.BatchNorm2d(8), True, device)
    check(model, torch.randn(4, 3, 5, 6, device=device), kept=True)


def test_the_latent_is_kept_where_channels_are_the_tokens(device: torch.device) -> None:
    model = network(nn.BatchNorm1d(400), True, device)
    check(model, torch.randn(4, 3, 10, device=device), kept=True, layout="channels_last")


def test_hooks_before_see_what_they_would_see_without(device: torch.device) -> None:
    """What they keep of a layer's output is not overwritten behind their back."""
    model = network(nn.BatchNorm2d(8), True, device)
    seen: list[Tensor] = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    with use_kernels("triton"), atomsep.attach(model, "1") as attachment:
        model(torch.randn(4, 3, 22, 20, device=device))
        assert seen[0].min() < 0  # the ReLU wrote to a copy
        attachment.loss()


def test_a_second_attachment_keeps_its_own(device: torch.device) -> None:
    def with_another(model: nn.Module, attachment: Attachment, batch: Tensor) -> None:
        with atomsep.attach(model, "1", atomsep.AtomLoss(norm=1), weight=0.5) as second:
            (model(batch).square().mean() + attachment.loss() + second.loss()).backward()

    model = network(nn.BatchNorm2d(8), True, device)
    check(model, torch.randn(4, 3, 22, 20, device=device), with_another)


def checkpointed(model: nn.Module, attachment: Attachment, batch: Tensor) -> None:
    out = checkpoint(model, batch, use_reentrant=False)
    (out.square().mean() + attachment.loss()).backward()


def offloaded(model: nn.Module, attachment: Attachment, batch: Tensor) -> None:
    with torch.autograd.graph.save_on_cpu():
        out = model(batch)
    (out.square().mean() + attachment.loss()).backward()


@pytest.mark.parametrize("step", [checkpointed, offloaded])
def test_the_latent_is_kept_under_hooks_on_saved_tensors(
    step: Callable[[nn.Module, Attachment, Tensor], None], device: torch.device
) -> None:
    model = network(nn.BatchNorm2d(8), True, device)
    check(model, torch.randn(4, 3, 22, 20, device=device), step, kept=True)


def test_when_nothing_is_found(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nn.BatchNorm2d(4).to(device)
    batch = torch.randn(2, 4, 5, 5, device=device, requires_grad=True)

    def hook(module: nn.Module, args: object, output: object) -> None: ...

    norm.register_forward_hook(hook)
    found = partial(find_origin, norm, hook)
    assert found((batch,), norm(batch)) is not None
    assert find_origin(norm, print, (batch,), norm(batch)) is None
    assert found((), norm(input=batch)) is None
    assert found((batch,), norm(batch).detach()) is None
    with torch.autograd.graph.save_on_cpu():
        assert found((batch,), norm(batch)) is None
    turned = batch.contiguous(memory_format=torch.channels_last)
    assert found((turned,), norm(batch)) is None
    everywhere = nn.modules.module.register_module_forward_hook(hook)
    assert found((batch,), norm(batch)) is None
    everywhere.remove()
    monkeypatch.setattr(origin, "LARGE", batch.nbytes)
    assert found((batch,), norm(batch)) is None
