"""Atoms and the gradient of the latent: the kernels against the plain path in float64."""

from __future__ import annotations

import pytest
import torch
from cases import VALUE, Case, check, relative

from atomsep.checks import count_tokens
from atomsep.core import kernels, plain
from atomsep.core.kernels import blocks, forward
from atomsep.core.layout import Layout
from atomsep.core.statistics import Known, Reading, Tokens

pytestmark = pytest.mark.usefixtures("poisoned_memory")

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="large sizes need a GPU")


def odd_cases() -> list[Case]:
    """Every odd shape in both memories; the other choices take turns."""
    cases = []
    shapes = [(n, h) for n in (1, 2, 3, 17, 33) for h in (2, 3, 64, 65)]
    for turn, (tokens, features) in enumerate(shapes):
        for memory in ("rows", "planes"):
            index = 2 * turn + (memory == "planes")
            cases.append(
                Case(
                    samples=(1, 2, 3, 5)[(index + turn // 4) % 4],
                    tokens=tokens,
                    features=features,
                    memory=memory,
                    dtype=(torch.float32, torch.float32, torch.bfloat16, torch.float16)[index % 4],
                    norm=1 + (index // 3) % 2,
                    feature=(0, -1, features // 2, None)[(index // 2) % 4],
                    masked=bool((index // 5) % 2),
                    copy=bool((index // 4) % 2),
                    passed=(None, "alike", "other")[index % 3],
                )
            )
    return cases


@pytest.mark.parametrize("case", odd_cases(), ids=str)
def test_odd_shapes(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("case", [case for case in odd_cases() if case.tokens > 3], ids=str)
@pytest.mark.usefixtures("small_blocks")
def test_odd_shapes_in_many_tiles(case: Case, device: torch.device) -> None:
    check(case, device)


@pytest.mark.parametrize("memory", ["rows", "planes"])
def test_many_tokens_of_few_features(memory: str, device: torch.device) -> None:
    """Charges take more than one step."""
    check(Case(2, 150, 3, memory), device)
    check(Case(2, 150, 3, memory, torch.bfloat16, 1, masked=True), device)


@pytest.mark.usefixtures("small_blocks")
def test_electrons_in_many_lists(device: torch.device) -> None:
    """Also where the last program's share begins beyond the last token."""
    check(Case(1, 145, 3), device)
    check(Case(2, 150, 3, "rows", torch.bfloat16, 1, masked=True), device)


@pytest.mark.usefixtures("small_blocks")
def test_planes_of_which_a_thread_reads_several_tokens(device: torch.device) -> None:
    """Two and four at once, in several steps of both looks, with and without g from the first."""
    check(Case(5, 36, 20, "planes", masked=True, copy=True), device)
    check(Case(5, 38, 5, "planes", torch.bfloat16, 1), device)
    check(Case(5, 38, 20, "planes", torch.bfloat16, feature=None), device)
    check(Case(5, 36, 40, "planes", torch.float16, 1, masked=True), device)


@pytest.mark.parametrize("memory", ["rows", "planes"])
@pytest.mark.usefixtures("small_blocks")
def test_samples_whole_in_many_steps(
    memory: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program a sample, as small samples are taken, in tiles that are smaller still."""
    monkeypatch.setattr(blocks, "SMALL_SAMPLE", 1 << 19)
    check(Case(2, 33, 20, memory, masked=True, copy=True, skip=1), device)
    check(Case(3, 21, 32, memory, torch.bfloat16, 1, feature=None, passed="other"), device)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("memory", ["sliced", "length_first", "channels_last", "image"])
@pytest.mark.usefixtures("small_blocks")
def test_strides_and_skipped_tokens(memory: str, norm: int, device: torch.device) -> None:
    check(Case(3, 19, 12, memory, norm=norm, skip=2, copy=True), device)
    check(Case(2, 18, 20, memory, norm=norm, masked=True, passed=None, skip=1), device)
    check(Case(2, 16, 48, memory, torch.bfloat16, norm, feature=None, passed="other"), device)


@pytest.mark.parametrize("memory", ["rows", "planes"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("feature", [3, None])
@pytest.mark.usefixtures("small_blocks")
def test_masks_and_separate_scores(
    memory: str, masked: bool, feature: int | None, device: torch.device
) -> None:
    check(Case(4, 21, 8, memory, feature=feature, masked=masked, copy=True), device)
    check(Case(2, 21, 40, memory, torch.float16, 1, feature, masked, skip=1), device)


@pytest.mark.parametrize("memory", ["rows", "planes"])
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning"
)  # in the score's column, which is dropped
def test_charges_at_their_limits(memory: str, device: torch.device) -> None:
    """No electron, nothing else, huge and tiny scores, and tokens that sit on the nucleus."""
    case = Case(4, 9, 5, memory)
    values = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(0))
    values[0, :, 0] = values[0, :, 0].abs()
    values[1, :, 0] = -values[1, :, 0].abs() - 60
    values[2, :, 0] = torch.tensor([1e30, -1e30, 1e-9, -1e-9, 0, 30, -30, 0.5, -0.5])
    values[3, :, 1:] = 0
    source = case.arrange(values)
    reading = Reading(case.layout(), 0, 2)
    count = torch.full((4,), 9.0)
    tokens = Tokens(source.to(device), None, None, count.to(device), reading)
    _, charge, table, mean_direction = kernels.read_atoms(tokens)
    exact = Tokens(source.double(), None, None, count.double(), reading)
    expected = plain.read_atoms(exact)[1:3]
    for value, other in zip((charge, table), expected, strict=True):
        assert relative(value, other) < VALUE
    assert torch.equal(charge.sign().cpu(), expected[0].sign().float())
    assert not mean_direction[0].any()
    assert not mean_direction[3].any()
    known = Known(table, mean_direction)
    grad, _ = kernels.atoms_gradient(tokens, known, None, torch.ones_like(table))
    assert grad.isfinite().all()


@pytest.mark.parametrize("features", [20, 40])  # at once, or in chunks
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_rows_of_other_than_electrons_are_read_once(
    masked: bool, features: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first look their scores are enough: whatever else they hold by then."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(3, 41, features, generator=generator).to(device)
    mask = (torch.rand(3, 41, generator=generator) < 0.8).to(device) if masked else None
    reading = Reading(Layout("channels_last"), 0, 2)
    tokens = Tokens(source, None, mask, count_tokens(source, mask), reading)
    expected = kernels.read_atoms(tokens)
    poisoned = source.clone()
    poisoned[:, :, 1:][source[:, :, 0] >= 0] = torch.nan

    def plan(*kind: object) -> forward._Plan:
        made = found(*kind)
        assert made.radius is not None
        radius = made.radius
        return made._replace(radius=lambda tensors: radius((poisoned, *tensors[1:])))  # type: ignore[arg-type]

    found = forward._plan
    monkeypatch.setattr(forward, "_plan", plan)
    for value, other in zip(kernels.read_atoms(tokens)[1:], expected[1:], strict=True):
        assert torch.equal(value, other)
    _, _, table, mean_direction = expected
    passed, arriving = torch.randn_like(source), torch.randn_like(table)
    rest = Known(table, mean_direction), passed, arriving
    before, _ = kernels.atoms_gradient(tokens, *rest)
    after, _ = kernels.atoms_gradient(tokens._replace(source=poisoned), *rest)
    assert before.isfinite().all()
    assert torch.equal(before, after)


@pytest.mark.parametrize("features", [20, 40])
@pytest.mark.parametrize("memory", ["rows", "planes"])
@pytest.mark.usefixtures("small_blocks")
def test_the_same_bits_every_time(memory: str, features: int, device: torch.device) -> None:
    case = Case(3, 33, features, memory)
    values = torch.randn(3, 33, features, generator=torch.Generator().manual_seed(0))
    source = case.arrange(values).to(device)
    reading = Reading(case.layout(), 0, 2)
    count = torch.full((3,), 33.0, device=device)
    tokens = Tokens(source, None, None, count, reading)
    first, second = kernels.read_atoms(tokens), kernels.read_atoms(tokens)
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize(("tokens", "features"), [(33, 17), (49, 64), (41, 20)])
@pytest.mark.parametrize("memory", ["rows", "planes", "length_first"])
@pytest.mark.parametrize("small", [False, True])
def test_equal_samples_are_equal_atoms(
    memory: str,
    tokens: int,
    features: int,
    small: bool,
    device: torch.device,
    request: pytest.FixtureRequest,
) -> None:
    """To the bit, in one program per sample and in many tiles."""
    if small:
        request.getfixturevalue("small_blocks")
    case = Case(5, tokens, features, memory)
    sample = torch.randn(1, tokens, features, generator=torch.Generator().manual_seed(0))
    source = case.arrange(sample.expand(5, -1, -1).contiguous()).to(device)
    count = torch.full((5,), float(tokens), device=device)
    tokens_of = Tokens(source, None, None, count, Reading(case.layout(), 0, 2))
    _, *found = kernels.read_atoms(tokens_of)
    for value in found:
        assert torch.equal(value, value[:1].expand_as(value))


LARGE = [
    Case(3, tokens, features, memory, dtype, norm, masked=masked, copy=masked)
    for tokens in (17, 1023)
    for features in (255, 256, 288, 768, 1536)
    for memory, dtype, norm, masked in (
        ("rows", torch.float32, 2, False),
        ("planes", torch.float32, 1, True),
        ("rows", torch.bfloat16, 1, True),
        ("planes", torch.bfloat16, 2, False),
    )
]
LARGE += [Case(3, 40, 4096), Case(3, 70, 4096, "rows", torch.bfloat16, 1, masked=True)]
LARGE += [Case(3, 70, 4100), Case(2, 70, 4100, "rows", torch.bfloat16, masked=True)]


@on_gpu
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_shapes(case: Case, device: torch.device) -> None:
    check(case, device)


@on_gpu
@pytest.mark.parametrize("memory", ["rows", "planes", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_of_networks(memory: str, dtype: torch.dtype, device: torch.device) -> None:
    check(Case(24, 3136, 256, memory, dtype, copy=True), device)
    check(Case(64, 1024, 64, memory, dtype), device)
    check(Case(16, 196, 1024, memory, dtype), device)
    check(Case(16, 49, 2048, memory, dtype, norm=1), device)
    check(Case(300, 7, 50, memory, dtype), device)
    check(Case(3, 70, 5000, memory, dtype), device)


@on_gpu
@pytest.mark.parametrize("axes", ["channels_last", "channels_first"])
def test_more_numbers_than_32_bits_count(axes: str, device: torch.device) -> None:
    """The last of many samples comes out as it does alone, by other kernels where it is one."""
    if torch.cuda.get_device_properties(device).total_memory < 3 << 33:
        pytest.skip("takes 24 GB of GPU memory")
    shape = (9000, 1024, 256) if axes == "channels_last" else (9000, 256, 1024)
    source = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_()
    reading = Reading(Layout(axes), 0, 2)  # type: ignore[arg-type]
    count = torch.full((9000,), 1024.0, device=device)
    tokens = Tokens(source, None, None, count, reading)
    _, charge, table, direction = kernels.read_atoms(tokens)
    arriving = torch.randn_like(table)
    grad, _ = kernels.atoms_gradient(tokens, Known(table, direction), source, arriving)
    alone = Tokens(source[-1:].clone(), None, None, count[-1:], reading)
    expected = kernels.read_atoms(alone)
    # s is held against the sum of its weights, as in `check`: directions cancel
    scales = None, None, expected[2][:, 1].double().cpu() / 1024
    for value, other, scale in zip((charge, table, direction), expected[1:], scales, strict=True):
        assert relative(value[-1:], other.double().cpu(), scale) < 1e-6
    expected_grad, _ = kernels.atoms_gradient(
        alone, Known(*expected[2:]), alone.source, arriving[-1:]
    )
    assert relative(grad[-1:], expected_grad.double().cpu()) < 1e-4
