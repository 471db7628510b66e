"""Latents of all kinds, and their two passes against the plain path in float64."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from atomsep.checks import count_tokens
from atomsep.core import kernels, plain
from atomsep.core.layout import Layout
from atomsep.core.statistics import Known, Reading, Tokens

GRADIENT = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
CHARGE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
VALUE = 1e-5  # of sums, which are float32 whatever the latent is


class Case(NamedTuple):
    """A latent and all that goes into both passes."""

    samples: int
    tokens: int
    features: int
    memory: str = "rows"
    dtype: torch.dtype = torch.float32
    norm: int = 2
    feature: int | None = 0
    masked: bool = False
    skip: int = 0
    copy: bool = False
    passed: str | None = "alike"

    def layout(self) -> Layout:
        axes = {"rows": "channels_last", "sliced": "channels_last", "length_first": "length_first"}
        return Layout(axes.get(self.memory, "channels_first"), self.skip)  # type: ignore[arg-type]

    def arrange(self, tokens: Tensor) -> Tensor:
        """Tokens `(M, N, h)` as the layer's output that they are read from."""
        samples, length, features = tokens.shape
        if self.memory == "rows":
            return tokens.contiguous()
        if self.memory == "sliced":  # rows of a wider tensor
            wide = tokens.new_empty(samples, length, features + 3)
            wide[..., 2:-1] = tokens
            return wide[..., 2:-1]
        if self.memory == "length_first":
            return tokens.transpose(0, 1).contiguous()
        planes = tokens.transpose(1, 2).contiguous()
        if self.memory == "planes":
            return planes
        image = planes.unflatten(2, (1, length))
        if self.memory == "channels_last":
            return image.contiguous(memory_format=torch.channels_last)
        assert self.memory == "image"
        return image

    def __str__(self) -> str:
        named = [f"{k}={v}" for k, v in self._asdict().items() if v != self._field_defaults.get(k)]
        return ",".join(named).replace("torch.", "")


def relative(value: Tensor, expected: Tensor, scale: Tensor | None = None) -> float:
    """‖value - expected‖ / ‖expected‖, or of something that does not cancel."""
    assert value.shape == expected.shape
    difference = (value.double().cpu() - expected).norm()
    size = (expected if scale is None else scale).norm()
    return float(difference / size) if size > 0 else float(difference)


def check(case: Case, device: torch.device) -> None:
    """Forward and backward of one case."""
    layout = case.layout()
    generator = torch.Generator().manual_seed(crc32(str(case).encode()))

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    length = case.tokens + case.skip
    mask = None
    values = draw(case.samples, length, case.features, dtype=case.dtype) + 0.3
    if case.masked:
        mask = torch.rand(case.samples, case.tokens, generator=generator) < 0.7
        mask[:, 0] = True
        values[:, case.skip :][~mask] = torch.nan
    source = case.arrange(values)
    scores = None
    if case.feature is None:
        scores = draw(case.samples, case.tokens, dtype=case.dtype)
        if mask is not None:
            scores[~mask] = torch.nan
    reading = Reading(layout, case.feature, case.norm)  # type: ignore[arg-type]
    count = count_tokens(layout.tokens(source), mask)
    wide = source.double()
    wide_scores = None if scores is None else scores.double()

    moved = source.to(device), _to(scores, device), _to(mask, device), count.to(device)
    tokens = Tokens(*moved, reading)
    assert kernels.supports(tokens)
    copied, charge, table, mean_direction = kernels.read_atoms(tokens, case.copy)
    exact = Tokens(wide, wide_scores, mask, count.double(), reading)
    _, expected_charge, expected, _ = plain.read_atoms(exact)

    assert (copied is not None) == case.copy
    if copied is not None:
        torch.testing.assert_close(copied, moved[0], rtol=0, atol=0, equal_nan=True)
        assert copied.data_ptr() != moved[0].data_ptr()
    assert charge.dtype == case.dtype
    assert relative(charge, expected_charge) < CHARGE[case.dtype]
    assert table.dtype == torch.float32
    charged = expected[:, 0] + expected[:, 1]
    for column in range(5):
        assert relative(table[:, column], expected[:, column], charged) < VALUE
    assert relative(table[:, 5:], expected[:, 5:]) < VALUE
    weights = charge_weights(expected_charge, count)
    s = mean_of_directions(layout.tokens(wide), expected[:, 5:], weights, mask, reading)
    assert relative(mean_direction, s, weights.sum(1)) < VALUE

    # Upstream gradients as autograd may send them: in another memory format, or missing.
    # Those of radius and nucleus so large that every token's share of them is to be seen.
    grad_table = draw(*reversed(expected.shape)).T.to(device)
    grad_table[:, 4:] *= case.tokens
    grad_passed = None
    if case.passed is not None:
        arriving = draw(case.samples, length, case.features, dtype=case.dtype)
        grad_passed = case.arrange(arriving)
        if case.passed == "other":
            grad_passed = grad_passed.transpose(0, -1).contiguous().transpose(0, -1)
    grad_source, grad_scores = kernels.atoms_gradient(
        *(tokens, Known(table, mean_direction), _to(grad_passed, device), grad_table)
    )
    expected_source, expected_scores = plain.atoms_gradient(
        *(exact, Known(expected)),
        *(None if grad_passed is None else grad_passed.double(), grad_table.double().cpu()),
    )
    tolerance = GRADIENT[case.dtype]
    assert grad_source.dtype == case.dtype
    assert relative(grad_source, expected_source) < tolerance
    if scores is None:
        assert grad_scores is None
    else:
        assert grad_scores is not None
        assert expected_scores is not None
        assert relative(grad_scores, expected_scores) < tolerance
    untouched = torch.zeros(case.samples, length, dtype=torch.bool)
    untouched[:, : case.skip] = True
    if mask is not None:
        untouched[:, case.skip :] = ~mask
    whole = Layout(layout.axes)
    got = whole.tokens(grad_source).cpu()[untouched]
    want = 0 * got if grad_passed is None else whole.tokens(grad_passed)[untouched]
    assert torch.equal(got, want)  # padding and skipped tokens get what arrived, to the bit


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def charge_weights(charge: Tensor, count: Tensor) -> Tensor:
    """(1/N) max(-q, 0)."""
    return torch.relu(-charge) / count.double().unsqueeze(1)


def mean_of_directions(
    tokens: Tensor, nucleus: Tensor, weights: Tensor, mask: Tensor | None, reading: Reading
) -> Tensor:
    """The vector s of the closed form, by its definition."""
    positions = tokens
    if reading.feature is not None:
        kept = torch.arange(tokens.shape[-1]) != reading.feature % tokens.shape[-1]
        positions = tokens[..., kept]
    if mask is not None:
        positions = positions.masked_fill(~mask.unsqueeze(-1), 0)
    offset = positions - nucleus.unsqueeze(1)
    unit = torch.sign(offset)
    if reading.norm == 2:
        unit = torch.nn.functional.normalize(offset, dim=-1)
    return (weights.unsqueeze(-1) * unit).sum(1)
