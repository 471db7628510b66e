"""Finding layers by name, and tensors inside outputs."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from atomsep.hooks.targets import find_layers, pick_tensor, put_tensor


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return torchvision.models.resnet18()


def test_names_globs_modules_and_lists(resnet: nn.Module) -> None:
    assert list(find_layers(resnet, "layer1.1.bn2")) == ["layer1.1.bn2"]
    assert list(find_layers(resnet, "layer[12].*.bn2")) == [
        "layer1.0.bn2", "layer1.1.bn2", "layer2.0.bn2", "layer2.1.bn2",
    ]  # fmt: skip
    assert list(find_layers(resnet, resnet.layer3)) == ["layer3"]
    assert list(find_layers(resnet, ["bn1", resnet.layer1[0].bn2])) == ["bn1", "layer1.0.bn2"]
    assert list(find_layers(resnet, resnet)) == ["ResNet"]


def test_a_layer_named_twice_is_found_once(resnet: nn.Module) -> None:
    assert list(find_layers(resnet, ["bn1", "bn1", "bn?"])) == ["bn1"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("layr1.1.bn2", r"layer 'layr1.1.bn2' matches nothing; did you mean 'layer1.1.bn2'"),
        (["bn1", "layer9.*"], r"layer 'layer9.\*' matches nothing"),
        ("qqqq", "the model's layers are: avgpool, bn1"),
        ([], "empty list"),
    ],
)
def test_what_matches_nothing_is_named_with_the_nearest(
    resnet: nn.Module, target: str | list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        find_layers(resnet, target)


def test_a_module_of_another_model(resnet: nn.Module) -> None:
    with pytest.raises(ValueError, match="this Linear is not a module of the model"):
        find_layers(resnet, nn.Linear(1, 1))


OTHER = torch.zeros(2, 3, 3)
TOKENS, POOLED, INDEX = torch.zeros(2, 3, 4), torch.zeros(2, 4), torch.zeros(2, 3, 4).long()
Named = namedtuple("Named", "pooled tokens")
PACKED = pack_padded_sequence(TOKENS, torch.tensor([3, 2]), batch_first=True)


@dataclass(frozen=True)
class Fields:
    pooled: Tensor
    tokens: Tensor | None = None


@pytest.mark.parametrize(
    ("output", "key"),
    [
        (TOKENS, None),
        ((POOLED, TOKENS, INDEX), 1),
        ([TOKENS], 0),
        (OrderedDict(pooled=POOLED, tokens=TOKENS), "tokens"),
        (Named(POOLED, TOKENS), 1),
        (Fields(POOLED, TOKENS), "tokens"),
        ((TOKENS, OTHER), 0),  # the hidden state comes first, then attention weights or states
        ((TOKENS, (OTHER, OTHER)), 0),
        (OrderedDict(tokens=TOKENS, other=OTHER), "tokens"),
        (OrderedDict(other=OTHER, last_hidden_state=TOKENS), "last_hidden_state"),
    ],
)
def test_the_hidden_state_is_picked_and_put_back(output: object, key: object) -> None:
    found, tensor = pick_tensor(output, None, "layer")
    assert found == key
    assert tensor is TOKENS
    other = torch.ones(2, 3, 4)
    changed = put_tensor(output, found, other)
    assert type(changed) is type(output)
    assert pick_tensor(changed, None, "layer")[1] is other
    assert pick_tensor(output, None, "layer")[1] is TOKENS  # the given one is left alone


def test_select_by_index_negative_index_and_key() -> None:
    assert pick_tensor((TOKENS, POOLED), -1, "layer") == (1, POOLED)
    mapping = OrderedDict(a=TOKENS, b=POOLED)
    assert pick_tensor(mapping, "b", "layer") == ("b", POOLED)
    assert pick_tensor(mapping, 1, "layer") == ("b", POOLED)


def test_select_by_the_name_of_a_field() -> None:
    assert pick_tensor(Named(POOLED, TOKENS), "tokens", "layer") == (1, TOKENS)
    assert pick_tensor(Fields(OTHER, TOKENS), "tokens", "layer") == ("tokens", TOKENS)
    assert pick_tensor(Fields(OTHER, TOKENS), 1, "layer") == ("tokens", TOKENS)


@pytest.mark.parametrize(
    ("output", "select", "message"),
    [
        ([TOKENS, TOKENS], None, r"a list with 0: \(2, 3, 4\), 1: \(2, 3, 4\); pass select="),
        ((POOLED, TOKENS, TOKENS), None, "a tuple with 0: .* pass select="),
        ((POOLED,), None, r"a tuple with 0: \(2, 4\). Nothing in it is a .* attach to a module"),
        ({"a": [TOKENS, TOKENS]}, None, r"a dict with 'a': list. Nothing .* nn.Identity\(\)"),
        (
            {"a": [TOKENS, TOKENS]},
            ("a", 1),
            "select=.* finds no tensor .* 'a': list. Nothing in it",
        ),
        ([TOKENS], ["a", 1], r"select=\['a', 1\] finds no tensor"),
        (Named(TOKENS, TOKENS), "token", r"select='token' .* 'pooled': \(2, 3, 4\), 'tokens'"),
        ((PACKED, TOKENS), None, "'layer' returns a PackedSequence.* after pad_packed_sequence"),
        ((PACKED, TOKENS), 0, "returns a PackedSequence"),
        (PACKED, None, "returns a PackedSequence"),
        ((TOKENS,), 3, "select=3 finds no tensor"),
        ({"a": TOKENS, "n": None}, "n", "select='n' finds no tensor .* 'n': NoneType"),
        (TOKENS, 0, "returns a single tensor; leave it out"),
        ("text", None, r"returns a str, but must return a tensor, .* nn.Identity\(\)"),
        ((), None, "tuple with nothing"),
    ],
)
def test_outputs_that_leave_doubt(output: object, select: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pick_tensor(output, select, "layer")  # type: ignore[arg-type]


def test_the_last_state_after_a_packed_sequence_can_be_selected() -> None:
    assert pick_tensor((PACKED, TOKENS), 1, "layer") == (1, TOKENS)
