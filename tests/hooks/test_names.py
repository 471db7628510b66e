"""Misspelt attributes of an attachment are refused."""

from __future__ import annotations

import copy
import pickle

import pytest
from small_models import batch, mlp

import atomsep
from atomsep import AtomLoss, Attachment
from atomsep.hooks.arguments import Conduct


def test_a_misspelt_setting_is_refused_with_the_right_name() -> None:
    attachment = atomsep.attach(mlp(), "0")
    with pytest.raises(AttributeError, match=r"'watch_gradient'; did you mean 'watch_gradients'\?"):
        attachment.watch_gradient = True  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"did you mean 'weight'\?"):
        attachment.wieght = 2  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Attachment has no attribute 'zzz'. It has active, "):
        attachment.zzz = 2  # type: ignore[attr-defined]
    attachment.watch_gradients, attachment.weight = True, 0.5
    assert (attachment.watch_gradients, attachment.weight) == (True, 0.5)


def test_copies_pickles_and_subclasses() -> None:
    class Named(Attachment):
        title: str

    model = mlp()
    attachment = atomsep.attach(model, "0")
    for copied in (copy.deepcopy(attachment), pickle.loads(pickle.dumps(attachment))):
        copied.weight = 3.0
        copied.model(batch())
        assert copied.loss() > 0
        with pytest.raises(AttributeError, match="did you mean 'weight'"):
            copied.wieght = 2
    mine = Named(mlp(), AtomLoss(), 0.1, Conduct())
    mine.title, mine.other = "first", 2  # type: ignore[attr-defined]
    assert (mine.title, mine.weight) == ("first", 0.1)
