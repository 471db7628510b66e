"""attach(add_to=): the model returns its own loss with the atom loss in it."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from by_hand import WEIGHT, assert_same, bert, bert_batch, gradients, plain_loss
from small_models import batch, hooks_of
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import atomsep
from atomsep import AtomWarning

Pair = namedtuple("Pair", ["logits", "loss"])


@dataclass
class Result:
    logits: Tensor
    loss: Tensor | None


PACKED = {
    "mapping": (lambda logits, loss: {"logits": logits, "loss": loss}, "loss"),
    "object": (Result, "loss"),
    "named tuple": (Pair, "loss"),
    "tuple": (lambda logits, loss: (loss, logits), "loss"),
    "list": (lambda logits, loss: [loss, logits], "loss"),
    "index": (lambda logits, loss: (logits, loss), 1),
    "itself": (lambda logits, loss: loss, "loss"),
}


class Classifier(nn.Module):
    """A model that returns its own loss, packed in one of the usual ways."""

    def __init__(self, packed: str = "mapping") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.packed = packed
        self.tokens = nn.Linear(3, 8)
        self.head = nn.Linear(40, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.tokens(x).relu().flatten(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return PACKED[self.packed][0](logits, loss)


def loss_in(output: Any, packed: str = "mapping") -> Any:
    """The loss, as a trainer would find it."""
    if packed == "itself":
        return output
    if packed in ("tuple", "list"):
        return output[0]
    if packed == "index":
        return output[1]
    return output["loss"] if packed == "mapping" else output.loss


LABELS = torch.tensor([0, 1, 1, 0, 1, 0])


def by_hand(model: Any) -> Tensor:
    """The sum of both losses by the plain formulas."""
    latent = model.tokens(batch())
    task = nn.functional.cross_entropy(model.head(latent.relu().flatten(1)), LABELS)
    return task + WEIGHT * plain_loss(latent)


@pytest.mark.parametrize("packed", PACKED)
def test_the_term_is_in_the_loss_however_the_model_returns_it(packed: str) -> None:
    model = Classifier(packed)
    plain = model(batch(), LABELS)
    expected = by_hand(model)
    wanted = gradients(model, expected)
    atomsep.attach(model, "tokens", weight=WEIGHT, add_to=PACKED[packed][1])
    output = model(batch(), LABELS)
    assert type(output) is type(plain)
    torch.testing.assert_close(loss_in(output, packed), expected)
    assert_same(gradients(model, loss_in(output, packed)), wanted, rtol=1e-5)


def test_nothing_is_added_in_evaluation_without_gradients_paused_or_detached() -> None:
    model = Classifier()
    plain = model(batch(), LABELS)["loss"]
    attachment = atomsep.attach(model, "tokens", weight=WEIGHT, add_to="loss")
    model.eval()
    assert model(batch(), LABELS)["loss"] == plain
    model.train()
    with torch.no_grad():
        assert model(batch(), LABELS)["loss"] == plain
    with attachment.paused():
        assert model(batch(), LABELS)["loss"] == plain
    assert model(batch(), LABELS)["loss"] != plain
    attachment.detach()
    assert model(batch(), LABELS)["loss"] == plain
    assert hooks_of(model) == 0


def test_the_output_of_the_model_itself_is_not_changed() -> None:
    """Somebody may have kept it."""
    kept = {}

    class Keeper(Classifier):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            kept["output"] = super().forward(x, labels)
            kept["loss"] = kept["output"]["loss"]
            return kept["output"]

    model = Keeper()
    atomsep.attach(model, "tokens", add_to="loss")
    output = model(batch(), LABELS)
    assert output is not kept["output"]
    assert kept["output"]["loss"] is kept["loss"]


def test_loss_says_that_it_was_added() -> None:
    model = Classifier()
    attachment = atomsep.attach(model, "tokens", add_to="loss")
    model(batch(), LABELS)
    with pytest.raises(RuntimeError, match="add_to=, so its loss is already part"):
        attachment.loss()


def test_a_number_without_a_gradient_is_no_loss() -> None:
    class Accurate(Classifier):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            return torch.tensor(0.5), super().forward(x, labels)["loss"]

    model = Accurate()
    plain = model(batch(), LABELS)[1]
    attachment = atomsep.attach(model, "tokens", add_to="loss")
    with pytest.warns(AtomWarning, match="has no gradient.*pass the name or index of the loss"):
        accuracy, _ = model(batch(), LABELS)
    assert accuracy == 0.5
    attachment.detach()
    attachment = atomsep.attach(model, "tokens", add_to=1)
    assert not torch.equal(model(batch(), LABELS)[1], plain)  # warnings are errors


@pytest.mark.parametrize("packed", ["mapping", "object", "tuple"])
def test_a_training_forward_without_labels_says_so_once(packed: str) -> None:
    model = Classifier(packed)
    attachment = atomsep.attach(model, "tokens", weight=WEIGHT, add_to="loss")
    with pytest.warns(AtomWarning, match="no atom loss was added; call the model with labels"):
        model(batch())
    torch.testing.assert_close(attachment.loss(), WEIGHT * plain_loss(model.tokens(batch())))
    model(batch())  # a second warning would be an error
    attachment.loss()


@pytest.mark.parametrize("packed", ["mapping", "object", "named tuple"])
def test_a_misspelt_name_is_listed_with_those_present(packed: str) -> None:
    model = Classifier(packed)
    atomsep.attach(model, "tokens", add_to="los")
    with pytest.warns(AtomWarning, match="without 'los', but with 'logits', 'loss'.*add_to='loss'"):
        model(batch(), LABELS)


def test_an_index_into_a_mapping_is_no_name() -> None:
    model = Classifier()
    atomsep.attach(model, "tokens", add_to=1)
    with pytest.warns(AtomWarning, match="a dict without 1, but with .*; pass add_to='loss', or"):
        model(batch(), LABELS)


def test_an_output_that_is_no_loss_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Flatten(), nn.Linear(40, 2))
    atomsep.attach(model, "0", add_to="loss")
    with pytest.warns(AtomWarning, match=r"returned a Tensor of shape \(6, 2\)"):
        model(batch())


@pytest.mark.parametrize("wrong", [True, 1.5, ["loss"]])
def test_add_to_is_a_name_or_an_index(wrong: Any) -> None:
    model = Classifier()
    with pytest.raises(TypeError, match="add_to must be the name or index of the model's loss"):
        atomsep.attach(model, "tokens", add_to=wrong)
    assert hooks_of(model) == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_adds_its_own_term(copied: Any) -> None:
    model = Classifier()
    atomsep.attach(model, "tokens", weight=WEIGHT, add_to="loss")
    other = copied(model)
    model.tokens.weight.data.zero_()
    torch.testing.assert_close(other(batch(), LABELS)["loss"], by_hand(other))
    torch.testing.assert_close(model(batch(), LABELS)["loss"], by_hand(model))
    [attachment] = atomsep.attachments(other)
    attachment.detach()
    assert hooks_of(other) == 0
    assert hooks_of(model) > 0


def test_autocast_leaves_the_sum_in_float32() -> None:
    model = Classifier().to(torch.bfloat16)
    atomsep.attach(model, "tokens", weight=WEIGHT, add_to="loss")
    x = batch().bfloat16()
    total = model(x, LABELS)["loss"]
    assert total.dtype == torch.float32
    latent = model.tokens(x)
    expected = model.head(latent.relu().flatten(1))
    task = nn.functional.cross_entropy(expected, LABELS)
    torch.testing.assert_close(total, task.float() + WEIGHT * plain_loss(latent.float()))


def test_a_compiled_model_adds_the_term_and_is_compiled_once() -> None:
    model = Classifier()
    attachment = atomsep.attach(model, "tokens", weight=WEIGHT, add_to="loss")
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    wanted = gradients(model, by_hand(model))
    for weight in (WEIGHT, 2 * WEIGHT):
        attachment.weight = weight
        loss = compiled(batch(), LABELS)["loss"]
        extra = (weight - WEIGHT) * plain_loss(model.tokens(batch()))
        torch.testing.assert_close(loss, by_hand(model) + extra)
    assert counter.frame_count == 1
    attachment.weight = WEIGHT
    assert_same(gradients(model, compiled(batch(), LABELS)["loss"]), wanted, rtol=1e-5)


def test_hugging_face_outputs_and_the_padding_mask() -> None:
    model, words = bert(), bert_batch()
    out = model(**words, output_hidden_states=True)
    expected = out.loss + WEIGHT * plain_loss(out.hidden_states[1], words["attention_mask"].bool())
    wanted = gradients(model, expected)
    atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT, add_to="loss")
    output = model(**words)
    torch.testing.assert_close(output.loss, expected)
    assert output["loss"] is output.loss
    assert output.to_tuple()[0] is output.loss
    assert_same(gradients(model, output.loss), wanted)
    torch.testing.assert_close(model(**words, return_dict=False)[0], expected)


def test_lora_after_attaching() -> None:
    from peft import LoraConfig, get_peft_model

    model, words = bert(), bert_batch()
    atomsep.attach(model, "bert.encoder.layer.0", weight=WEIGHT, add_to="loss")
    wrapped = get_peft_model(
        model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"], lora_dropout=0.0)
    )
    wrapped.train()
    total = wrapped(**words).loss
    [attachment] = atomsep.attachments(wrapped)
    with attachment.paused():
        out = wrapped(**words, output_hidden_states=True)
    mask = words["attention_mask"].bool()
    expected = out.loss + WEIGHT * plain_loss(out.hidden_states[1], mask)
    torch.testing.assert_close(total, expected)
    assert_same(gradients(wrapped, total), gradients(wrapped, expected))


def test_a_number_of_items_without_a_trainer_is_refused() -> None:
    """The number of micro-batches is then unknown."""

    class Summed(Classifier):
        def forward(self, x: Tensor, labels: Tensor | None = None, **others: Any) -> Any:
            return super().forward(x, labels)

    model = Summed()
    atomsep.attach(model, "tokens", add_to="loss")
    with pytest.raises(RuntimeError, match="only transformers.Trainer says how many there are"):
        model(batch(), LABELS, num_items_in_batch=28)
