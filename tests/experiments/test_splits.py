"""The split: stratified, disjoint, complete, and the same for every run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.splits import stratified


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.sampled_from([0.1, 0.2, 0.5]))
def test_every_class_gives_its_share(labels: list[int], share: float) -> None:
    counts = Counter(labels)
    if max(counts.values()) < 2:
        with pytest.raises(ExperimentError, match="no class has two samples"):
            stratified(labels, share, "test")
        return
    stay, out = stratified(labels, share, "test")
    assert sorted(stay + out) == list(range(len(labels)))
    for label, count in counts.items():
        held = sum(labels[index] == label for index in out)
        assert held == (0 if count == 1 else max(1, round(share * count)))
        assert held < count


def test_the_purpose_decides_which() -> None:
    labels = [0, 1] * 50
    assert stratified(labels, 0.2, "test") == stratified(labels, 0.2, "test")
    assert stratified(labels, 0.2, "test") != stratified(labels, 0.2, "validation")
