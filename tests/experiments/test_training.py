"""Training: pairing by seed, repeatability, and that the atom loss is what differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atomsep.experiments import training
from atomsep.experiments.training import METHODS, Setting, Trained, fresh_model, held_out, train

TOY = Setting(epochs=2, train_samples=200, test_samples=500)


def same(first: Trained, second: Trained) -> bool:
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return first.accuracy == second.accuracy and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_repeats_bit_for_bit(method: str) -> None:
    first = train(TOY, 1, method)
    torch.rand(17)  # the global random state has no say
    assert same(first, train(TOY, 1, method))
    assert not same(first, train(TOY, 2, method))


def test_methods_differ_by_the_atom_loss_alone() -> None:
    """At weight 0 both see the same weights, samples and order: not a bit differs."""
    plain = train(TOY, 1, "cross-entropy")
    assert same(plain, train(replace(TOY, weight=0.0), 1, "atom modeling"))
    assert not same(plain, train(TOY, 1, "atom modeling"))


def test_methods_see_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {method: [] for method in METHODS}
    entropy = torch.nn.functional.cross_entropy

    def watched(method: str):
        def call(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            seen[method].append(labels)
            return entropy(logits, labels)

        return call

    for method in METHODS:
        monkeypatch.setattr(training.nn.functional, "cross_entropy", watched(method))
        train(TOY, 4, method)
    first, second = (torch.cat(seen[method]) for method in METHODS)
    assert len(first) == TOY.epochs * TOY.train_samples
    assert torch.equal(first, second)


def test_streams_of_a_seed_are_apart() -> None:
    states = {
        training.stream(seed, name).initial_seed()
        for seed in range(200)
        for name in training.STREAMS
    }
    assert len(states) == 200 * len(training.STREAMS)


def test_no_hook_and_no_random_draw_stays_behind() -> None:
    before = torch.get_rng_state()
    trained = train(TOY, 1, "atom modeling")
    assert torch.equal(before, torch.get_rng_state())
    assert not trained.model.embed._forward_hooks


def test_training_learns() -> None:
    setting = replace(TOY, epochs=10, train_samples=1000)
    samples = held_out(1, setting)
    untrained = training.accuracy(fresh_model(1), samples)
    assert untrained < 0.7
    for method in METHODS:
        assert train(setting, 1, method).accuracy > 0.9


def test_options_of_a_setting_change_the_training() -> None:
    plain = train(TOY, 1, "cross-entropy")
    for changes in ({"optimiser": "adam"}, {"decay": True}, {"activation": "relu"}):
        assert not same(plain, train(replace(TOY, **changes), 1, "cross-entropy")), changes
