"""Text classification: every method trains, seeds decide, folders of models are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import run, train_and_check

from atomsep.experiments.errors import ExperimentError
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.predicting import logits_of
from atomsep.experiments.registry import run_key
from atomsep.experiments.settings import override
from atomsep.experiments.task import Context, Experiment
from atomsep.experiments.text.build import without_decay_of_vectors
from atomsep.experiments.text.experiments import COLA, OWN_TEXT, POEM, TEXTS
from atomsep.experiments.text.models import load_encoder
from atomsep.experiments.text.tiny import agreement, tiny_encoder, verses

PAIRS = [(experiment, method) for experiment in TEXTS for method in experiment.methods]
METRICS = {
    "cola": {"mcc", "accuracy", "ece", "nll"},
    "poem": {"f1", "f1_micro", "f1_weighted", "f1_macro_all", "ece", "nll"},
    "own-text": {"accuracy", "mcc", "f1", "ece", "nll"},
}


def make_context(method: str = "plain", **changes: Any) -> Context:
    settings = override(run_key(COLA, method, 0, tiny=True).settings, changes)
    fabric = make_fabric(Machine(device="cpu"), "32-true")
    return Context(settings, method, 0, fabric, Path("data"), tiny=True)


@pytest.mark.parametrize(
    ("experiment", "method"), PAIRS, ids=lambda value: getattr(value, "name", value)
)
def test_every_method_trains_in_tiny_form(
    experiment: Experiment, method: str, tmp_path: Path
) -> None:
    scores = train_and_check(experiment, method, tmp_path)
    assert set(scores) == METRICS[experiment.name]
    assert scores.pop("nll") >= 0
    assert all(-1 <= score <= 1 for score in scores.values())
    assert scores[experiment.metric] > 0.3  # the sentences are easy


def test_a_seed_repeats_and_another_differs(tmp_path: Path) -> None:
    first, _ = run(COLA, "mixcse", tmp_path / "a")
    again, _ = run(COLA, "mixcse", tmp_path / "b")
    other, _ = run(COLA, "mixcse", tmp_path / "a", seed=1)
    for part in ("cross-entropy", "method"):
        assert first["last_epoch"][part] == again["last_epoch"][part] != other["last_epoch"][part]
    assert first["metrics"] == again["metrics"]


def test_methods_start_from_the_same_weights_and_see_the_same_sentences() -> None:
    plain, atom = COLA.build(make_context()), COLA.build(make_context("atom"))
    states = [task.parts()["model"].state_dict() for task in (plain, atom)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for one, other in zip(plain.batches(1, 3), atom.batches(1, 3), strict=True):
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])


def test_a_learned_charge_is_trained(tmp_path: Path) -> None:
    task: Any = COLA.build(make_context("atom", charge="learned", weight=1.0))
    charge = task.on_layer.method.criterion.charge
    assert charge.in_features == 32
    before = charge.weight.detach().clone()
    task.step(next(iter(task.batches(0, 0))), 0.5)
    assert not torch.equal(before, charge.weight)
    learned, _ = run(COLA, "atom", tmp_path, "charge=learned")
    feature, _ = run(COLA, "atom", tmp_path)
    assert learned["last_epoch"]["method"] != feature["last_epoch"]["method"]
    assert run(COLA, "plain", tmp_path, "charge=learned")[0]["metrics"]  # has none


def test_the_layer_is_the_first_of_the_encoder() -> None:
    task: Any = COLA.build(make_context("atom"))
    assert list(task.on_layer.binding.attachment.layers) == ["bert.encoder.layer.0"]


def test_decay_spares_biases_and_norms() -> None:
    _, model = tiny_encoder(["a b"], 2)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, spared = without_decay_of_vectors(make_context("plain"), model).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    assert len(decayed["params"]) + len(spared["params"]) == len(names)
    assert {id(p) for p in spared["params"]} == {
        number for number, name in names.items() if name.endswith("bias") or "LayerNorm" in name
    }


def test_padding_has_no_influence_on_the_methods_loss() -> None:
    """The model's mask reaches the method: the same sentences in a wider batch cost the same."""
    task: Any = COLA.build(make_context("atom", weight=1.0))
    task.model.train()
    for module in task.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):  # transformers 4 keeps that of attention here
            module.dropout_prob = 0.0
    batch = next(iter(task.batches(0, 0)))
    wide = {
        name: torch.nn.functional.pad(value, (0, 5), value=0)
        for name, value in batch.inputs.items()
    }
    losses = []
    for inputs in (batch.inputs, wide):
        logits_of(task.model, inputs)
        losses.append(task.on_layer.loss(batch.labels))
    assert torch.allclose(losses[0], losses[1], atol=1e-6)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder and its tokenizer in a folder, as `save_pretrained` writes them."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(5)
    tokenizer, model = tiny_encoder(agreement(50, 1)[0].stored, classes=7)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def test_a_folder_is_read_without_a_word(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The encoder's weights are taken; a classifier of another width is fresh."""
    from transformers import AutoModel

    capfd.readouterr()
    tokenizer, model = load_encoder(str(saved), 3, [])
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert model.classifier.out_features == 3
    there = AutoModel.from_pretrained(saved, local_files_only=True)
    assert torch.equal(
        model.bert.encoder.layer[0].output.dense.weight,
        there.encoder.layer[0].output.dense.weight,
    )
    assert tokenizer("the cat")["input_ids"][0] == 2


def test_a_folder_trains_and_its_seeds_differ(saved: Path, tmp_path: Path) -> None:
    changes = (f"model={saved}", "epochs=1")
    first, _ = run(POEM, "atom", tmp_path, *changes)
    other, _ = run(POEM, "atom", tmp_path, *changes, seed=1)
    assert first["last_epoch"]["cross-entropy"] != other["last_epoch"]["cross-entropy"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("some-model-nobody-has", "fetch it with --download, or name a folder"),
        ("{empty}", "does not hold a model with its tokenizer"),
        ("{empty}/nothing", "cannot be loaded"),
    ],
)
def test_models_that_are_not_there(model: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        load_encoder(model.format(empty=tmp_path), 2, [])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_without_padding_is_refused(saved: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, model = load_encoder(str(saved), 2, [])
    model.save_pretrained(tmp_path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).pad_token is None
    with pytest.raises(ExperimentError, match="has no padding token"):
        load_encoder(str(tmp_path), 2, [])


def test_generated_sentences() -> None:
    train, test = agreement(40, 20)
    assert train.stored[:3] == agreement(3, 1)[0].stored  # always the same
    assert train.stored[:20] != test.stored
    for text, label in zip(train.stored, train.labels, strict=True):
        assert text.split()[2].endswith("s") == bool(label)
    poem, held_out = verses(60, 30)
    assert set(poem.labels) == {0, 1, 2, 3}
    assert 3 not in held_out.labels  # as in Poem's own test set


def test_own_text_shows_accuracy_first() -> None:
    assert (OWN_TEXT.metric, COLA.metric, POEM.metric) == ("accuracy", "mcc", "f1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["layer=*encoder.layer.9"], "layer '*encoder.layer.9' matches nothing; did you mean"),
        (["charge=lerned"], "no choice 'lerned' for charge; did you mean 'learned'?"),
        (["max_length=1"], "max_length must be at least 4, not 1"),
        (["modle=x"], "no setting 'modle'; did you mean 'model'?"),
    ],
)
def test_bad_settings_are_refused(changes: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        run(COLA, "atom", tmp_path, *changes)
    assert message in str(caught.value)
