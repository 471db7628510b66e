"""Random numbers by key: SplitMix64's own, uniform, independent, and the same in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from atomsep.experiments.randomness import derive, sample_states, uniforms

COUNT = 20_000


def split_mix(state: int) -> int:
    """One output of SplitMix64 in whole numbers, from the published C code."""
    mask = 2**64 - 1
    z = state & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def draw(states: Any, number: int) -> Any:
    return uniforms(states, number, 1)[:, 0]


def test_draws_are_split_mix_s() -> None:
    """Its first outputs from the state 1234567 are published."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state = np.array([1234567], np.uint64)
    assert uniforms(state, 1, 2)[0].tolist() == [(value >> 11) / 2**53 for value in published[1:]]
    assert uniforms(state, 0, 3)[0].tolist() == [(value >> 11) / 2**53 for value in published]


def test_states_are_hashed_from_seed_purpose_and_index() -> None:
    gamma = 0x9E3779B97F4A7C15
    found = sample_states([0, 5, 10**6], 3, "augmentation", 7).tolist()
    first = derive(3, "augmentation", 7)
    assert found == [split_mix(first + (index + 1) * gamma) for index in (0, 5, 10**6)]


def test_a_sample_s_draws_do_not_depend_on_the_others() -> None:
    together = draw(sample_states(range(100), 0, "augmentation", 2), 4)
    for index in (0, 17, 99):
        assert draw(sample_states([index], 0, "augmentation", 2), 4)[0] == together[index]


@pytest.mark.parametrize("number", [0, 1, 50])
def test_draws_are_draw(number: int) -> None:
    drawn = draw(sample_states(range(COUNT), 0, "augmentation", 0), number)
    assert 0 <= drawn.min() <= drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 0.001


def test_draws_are_independent() -> None:
    """Of the next draw, sample, epoch, purpose and seed: pairs fill the square evenly."""
    states = sample_states(range(COUNT), 0, "augmentation", 0)
    one = draw(states, 0)
    others = {
        "draw": draw(states, 1),
        "sample": np.roll(one, 1),
        "epoch": draw(sample_states(range(COUNT), 0, "augmentation", 1), 0),
        "purpose": draw(sample_states(range(COUNT), 0, "second view", 0), 0),
        "seed": draw(sample_states(range(COUNT), 1, "augmentation", 0), 0),
    }
    for name, other in others.items():
        cells = np.histogram2d(one, other, bins=10, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 0.001, name
