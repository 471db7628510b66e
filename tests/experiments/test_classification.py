"""What a second view leaves alone."""

from __future__ import annotations

import torch
from torch import nn

from atomsep.experiments.classification import untouched_statistics


def test_a_second_view_is_normalised_by_its_batch_and_updates_nothing() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    images = 5 + torch.randn(8, 3)
    with untouched_statistics(norm):
        output = norm(images)
    assert torch.equal(norm.running_mean, torch.zeros(3))
    assert int(norm.num_batches_tracked) == 0
    torch.testing.assert_close(output, norm(images))
    assert not torch.equal(norm.running_mean, torch.zeros(3))
