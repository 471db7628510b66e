"""StyleSwin's networks: sizes and names of the published ones, and what they compute."""

from __future__ import annotations

import copy
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import naive_styleswin as naive
import pytest
import torch
from torch import Tensor, nn

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.gan.styleswin.attention import WindowAttention
from atomsep.experiments.gan.styleswin.colours import Colours
from atomsep.experiments.gan.styleswin.discriminator import Discriminator, deviation
from atomsep.experiments.gan.styleswin.filters import haar, inverse_haar
from atomsep.experiments.gan.styleswin.generator import Generator
from atomsep.experiments.gan.styleswin.official import from_official, read_official
from atomsep.experiments.gan.styleswin.sizes import heads_of
from atomsep.experiments.gan.styleswin.spectral import SpectralConv

PUBLISHED = {
    64: (45_209_794, 20_745_729),
    128: (47_973_593, 22_519_297),
    256: (48_929_512, 26_211_585),
}


def published_state(network: str) -> dict[str, Tensor]:
    """Every entry of the published model at 256 px, by name and shape."""
    lines = (Path(__file__).parent / "styleswin_256.txt").read_text().splitlines()
    entries = [line.split("\t") for line in lines if line.startswith(network)]
    return {
        name: torch.empty([int(side) for side in shape.split()], device="meta")
        for _, name, shape in entries
    }


@pytest.mark.parametrize("size", PUBLISHED)
def test_as_many_parameters_as_published(size: int) -> None:
    with torch.device("meta"):
        networks = Generator(size), Discriminator(size)
    counts = tuple(sum(p.numel() for p in network.parameters()) for network in networks)
    assert counts == PUBLISHED[size]


@pytest.mark.parametrize(("network", "entries"), [("generator", 308), ("discriminator", 131)])
def test_a_published_state_loads(network: str, entries: int) -> None:
    state = published_state(network)
    assert len(state) == entries
    with torch.device("meta"):
        model = {"generator": Generator, "discriminator": Discriminator}[network](256)
    own = from_official(state)
    model.load_state_dict(own)  # strictly
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in own.items()
    }
    del own[next(iter(own))]
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(own)


def test_a_published_file_loads(tmp_path: Path) -> None:
    """All six parts of it; every entry has a number of its own, kept once for all its elements."""

    def numbered(state: dict[str, Tensor], first: int) -> dict[str, Tensor]:
        numbers = enumerate(state.items(), first)
        return {name: torch.full((), float(n)).expand(like.shape) for n, (name, like) in numbers}

    weight = nn.Parameter(torch.ones(2))
    adam = torch.optim.Adam([weight], betas=(0.0, 0.99))
    weight.sum().backward()
    adam.step()
    networks = {"g": "generator", "g_ema": "generator", "d": "discriminator"}
    saved: dict[str, Any] = {
        name: numbered(published_state(network), 1000 * index)
        for index, (name, network) in enumerate(networks.items())
    }
    saved |= {"g_optim": adam.state_dict(), "d_optim": adam.state_dict()}
    path = tmp_path / "CelebAHQ_256.pt"
    torch.save({**saved, "args": Namespace(size=256, ttur=True, D_lr=2e-4)}, path)
    with pytest.raises(pickle.UnpicklingError, match="argparse.Namespace"):
        torch.load(path, weights_only=True)
    found = read_official(path)
    assert set(found) == {*saved, "args"}
    assert found["args"] == Namespace(size=256, ttur=True, D_lr=2e-4)
    torch.testing.assert_close(found["d_optim"], saved["d_optim"])
    for name, network in networks.items():
        with torch.device("meta"):
            model = {"generator": Generator, "discriminator": Discriminator}[network](256)
        model.load_state_dict(from_official(found[name]), assign=True)
        for entry, value in model.state_dict().items():
            assert value.shape == saved[name][entry].shape, entry
            assert value.flatten()[0] == saved[name][entry].flatten()[0], entry
    torch.save({"args": Path()}, path)
    with pytest.raises(pickle.UnpicklingError):
        read_official(path)


def shaken(model: Any) -> Any:
    """With weights of which none is 0, so that each has its say."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def test_the_generator_written_out() -> None:
    torch.manual_seed(0)
    model = shaken(Generator(size=16, width=16, z=8)).double()
    noise = torch.randn(2, 8, dtype=torch.float64)
    expected = naive.generate(model.state_dict(), noise)
    assert expected.std() > 0.1
    for layer in model.layers[:-1]:  # which are float32
        sines = layer.upsample.positions
        exact = naive.positions(*sines.shape[1:])
        torch.testing.assert_close(sines, exact, rtol=0, atol=1e-5)
        layer.upsample.positions = exact
    images = model(noise[:, :, None, None])
    torch.testing.assert_close(Colours().double().enter(images), expected, rtol=1e-9, atol=1e-9)


def test_the_discriminator_written_out() -> None:
    torch.manual_seed(0)
    model = shaken(Discriminator(size=32, width=8)).double()
    images = torch.randn(8, 3, 32, 32, dtype=torch.float64)
    state = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(model.judge(images), naive.judge(state, images))


def test_the_spectral_norm_is_torchs() -> None:
    torch.manual_seed(0)
    layer = SpectralConv(3, 4, 3).double()
    for _ in range(3):
        expected, u, v = naive.normed({f"x.{k}": w for k, w in layer.state_dict().items()}, "x")
        torch.testing.assert_close(layer.weight, expected)
        torch.testing.assert_close((layer.weight_u, layer.weight_v), (u, v))
    for _ in range(200):
        weight = layer.weight
    assert torch.linalg.matrix_norm(weight.flatten(1), 2).item() == pytest.approx(1)
    before = layer.weight_u.clone()
    _ = layer.eval().weight
    assert torch.equal(layer.weight_u, before)


@pytest.mark.parametrize(
    ("side", "window", "shift"), [(8, 8, 0), (16, 8, 0), (16, 8, 4), (24, 8, 4)]
)
def test_window_attention_is_masked_attention_over_all_tokens(
    side: int, window: int, shift: int
) -> None:
    """Values and gradients, in float64."""
    torch.manual_seed(0)
    attention = WindowAttention(side, window, shift, heads=2).double()
    nn.init.normal_(attention.relative_position_bias_table)
    results = []
    arriving = torch.randn(2, side, side, 6, dtype=torch.float64)
    for own in (True, False):
        torch.manual_seed(1)
        qkv = torch.randn(2, side, side, 3, 6, dtype=torch.float64, requires_grad=True)
        table = attention.relative_position_bias_table
        out = attention(qkv) if own else naive.attend(qkv, table, window, shift)
        gradients = torch.autograd.grad((out * arriving).sum(), (qkv, table))
        results.append((out, *gradients))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_haars_pair_inverts_exactly() -> None:
    torch.manual_seed(0)
    whole = torch.randint(0, 256, (2, 3, 16, 16)).float()
    assert torch.equal(inverse_haar(haar(whole)), whole)  # to the last bit
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(inverse_haar(haar(images)), images, rtol=0, atol=1e-14)
    torch.testing.assert_close(haar(inverse_haar(haar(images))), haar(images), rtol=0, atol=1e-14)
    torch.testing.assert_close(haar(images), naive.wavelet(images))
    torch.testing.assert_close(haar(images).square().sum(), images.square().sum())


def test_deviations_are_of_groups_of_four() -> None:
    x = torch.randn(8, 2, 3, 3, dtype=torch.float64)
    found = deviation(x)
    for start in (0, 1):
        group = x[start::2]
        expected = (group.var(0, correction=0) + 1e-8).sqrt().mean()
        assert (found[start::2] - expected).abs().max() < 1e-12
    for rest, size in ((x[:6], 2), (x[:7], 7), (x[:5], 5)):  # at the end of an epoch, or of a rank
        for start in range(len(rest) // size):
            group = rest[start :: len(rest) // size]
            expected = (group.var(0, correction=0) + 1e-8).sqrt().mean()
            found = deviation(rest)[start :: len(rest) // size]
            assert found.shape == (size, 1, 3, 3)
            assert (found - expected).abs().max() < 1e-12
    assert deviation(x.bfloat16()).dtype == torch.bfloat16


def test_a_published_generator_may_be_sampled_in_bytes() -> None:
    colours = Colours()
    pixels = torch.rand(2, 3, 4, 4)
    mean, deviation_ = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (pixels - mean[:, None, None]) / deviation_[:, None, None]
    torch.testing.assert_close(colours.leave(normalised), 2 * pixels - 1)
    torch.testing.assert_close(colours.enter(2 * pixels - 1), normalised)


def test_features_that_heads_cannot_share() -> None:
    for features in (100, 160):
        with pytest.raises(ExperimentError, match=f"{features} features cannot be divided"):
            heads_of(features)


@pytest.mark.parametrize("half", [False, True])
def test_the_gradient_at_the_images_and_its_own_gradient(half: bool) -> None:
    """R1, against torch's own convolutions."""
    torch.manual_seed(0)
    model = shaken(Discriminator(size=32, width=8))
    images = torch.rand(4, 3, 32, 32) * 2 - 1
    if not half:
        model, images = model.double(), images.double()
    results = []
    for own in (True, False):
        copied = copy.deepcopy(model)
        if own:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                logits, gradient = copied.with_gradient(images)
        else:
            seen = copied.colours.enter(images).requires_grad_()
            logits = copied.judge(seen)
            [gradient] = torch.autograd.grad(logits.sum(), seen, create_graph=True)
        penalty = gradient.square().sum()
        slopes = torch.autograd.grad(penalty, list(copied.parameters()), allow_unused=True)
        flat = torch.cat([slope.flatten() for slope in slopes if slope is not None])
        results.append((gradient, flat))
    for ours, expected in zip(*results, strict=True):
        if half:
            assert torch.cosine_similarity(ours.flatten(), expected.flatten(), dim=0) > 0.99
        else:
            torch.testing.assert_close(ours, expected)
    assert all(
        module.first is None for module in model.modules() if isinstance(module, SpectralConv)
    )
