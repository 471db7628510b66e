"""Hugging Face's Trainer, unchanged, on a model that adds the atom loss to its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import WEIGHT
from tiny_texts import (
    MODELS,
    Texts,
    arguments,
    groups,
    llama,
    make_trainer,
    task_and_atom,
    train_by_hand,
)
from torch import nn

import atomsep


def attached(
    kind: str, *, learned: bool = False, group: str | None = "world"
) -> tuple[Any, atomsep.Attachment]:
    """A model that adds the loss, with learned maps as a part of it if asked."""
    make, layer = MODELS[kind]
    model = make()
    if learned:
        model.atom = atomsep.AtomLoss(charge=nn.Linear(16, 1, bias=False)).double()
    criterion = model.atom if learned else atomsep.AtomLoss(group=group)
    return model, atomsep.attach(model, layer, criterion, weight=WEIGHT, add_to="loss")


def logged(trainer: Any) -> list[float]:
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def assert_equal(model: Any, expected: Any) -> None:
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(expected.named_parameters()), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_ten_steps_equal_a_loop_by_hand(kind: str, accumulation: int, tmp_path: Path) -> None:
    model, _ = attached(kind)
    trainer = make_trainer(model, kind, arguments(tmp_path, accumulation))
    trainer.train()
    steps = groups(trainer.recorder.batches, accumulation)
    expected, losses = train_by_hand(kind, steps, trainer)
    assert_equal(model, expected)
    assert logged(trainer) == pytest.approx(losses, abs=1e-4)


def test_mixed_precision(tmp_path: Path) -> None:
    model, _ = attached("llama")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = make_trainer(model.float(), "llama", arguments(tmp_path, 4, max_steps=2, bf16=True))
    trainer.train()
    expected, _ = train_by_hand("llama", groups(trainer.recorder.batches, 4)[:2], trainer)
    for name, value in expected.state_dict().items():
        moved, difference = value - start[name], model.state_dict()[name] - value
        assert difference.abs().max() < 2e-2 * moved.abs().max(), name


@pytest.mark.parametrize("scaled", [False, True])
def test_a_trainer_may_say_itself_who_divides(scaled: bool, tmp_path: Path) -> None:
    """The atom loss is a mean either way; the task's follows the Trainer."""
    model, _ = attached("bert")
    trainer = make_trainer(model, "bert", arguments(tmp_path, 4, max_steps=3))
    if not hasattr(trainer, "loss_is_scaled_for_ga"):
        pytest.skip("this version of the Trainer always decides itself")
    trainer.loss_is_scaled_for_ga = scaled
    trainer.train()
    steps = groups(trainer.recorder.batches, 4)[:3]
    expected, _ = train_by_hand("bert", steps, trainer, divided=not scaled)
    assert_equal(model, expected)


def test_a_resumed_run_equals_the_unbroken_one_with_learned_maps(tmp_path: Path) -> None:
    args = arguments(tmp_path, 2, save_strategy="steps", save_steps=5)
    unbroken, _ = attached("llama", learned=True)
    start = unbroken.atom.charge.weight.detach().clone()
    make_trainer(unbroken, "llama", args).train()
    assert not torch.equal(unbroken.atom.charge.weight, start)

    resumed, _ = attached("llama", learned=True)
    nn.init.zeros_(resumed.atom.charge.weight)
    make_trainer(resumed, "llama", args).train(str(tmp_path / "checkpoint-5"))
    # but for the last bit: the first forward hands on a copy, which adds up in another order
    states = dict(unbroken.state_dict()), dict(resumed.state_dict())
    torch.testing.assert_close(*states, rtol=1e-12, atol=1e-14)


def test_logs_have_the_parts_and_evaluation_has_no_atom_loss(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    from atomsep.integrations.transformers import AtomCallback

    model, attachment = attached("bert")
    writer = SummaryWriter(str(tmp_path / "board"))
    callbacks = [AtomCallback(attachment, writer), TensorBoardCallback(writer)]
    args = arguments(tmp_path, 1, max_steps=2, eval_strategy="steps", eval_steps=1)
    trainer = make_trainer(model, "bert", args, eval_dataset=Texts("bert"), callbacks=callbacks)
    trainer.train()
    writer.close()

    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert {"atom/energy", "atom/neutrality", "atom/occupancy"} <= history[0].keys()
    assert not any("atom/energy" in e for e in trainer.state.log_history if "eval_loss" in e)
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    [first, second] = [event.value for event in board.Scalars("train/atom/energy")]
    assert [first, second] == pytest.approx([entry["atom/energy"] for entry in history])
    assert len(board.Images("atom/importance")) == 2

    task = [task_and_atom(model.eval(), trainer.data_collator([row]))[0] for row in Texts("bert")]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(torch.stack(task).mean().item())


class Site:
    """Weights & Biases, as far as it is used."""

    Image = list  # rows of pixels

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)


def test_the_reporters_of_the_trainer_get_the_parts_of_two_attachments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import TrainerCallback
    from transformers.integrations import TensorBoardCallback

    from atomsep.integrations.transformers import AtomCallback

    class SiteCallback(TrainerCallback):
        """As `WandbCallback`, which cannot be made without the library."""

        def __init__(self) -> None:
            self._wandb = Site()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **o: Any) -> None:
            self._wandb.log(dict(logs))

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    model, first = attached("bert")
    second = atomsep.attach(model, "bert.encoder.layer.1", weight=WEIGHT, add_to="loss")
    site = SiteCallback()
    args = arguments(
        tmp_path, 1, max_steps=2, eval_strategy="steps", eval_steps=1, report_to="tensorboard"
    )
    trainer = make_trainer(
        model, "bert", args, eval_dataset=Texts("bert"),
        callbacks=[site, AtomCallback(first), AtomCallback(second)],
    )  # fmt: skip
    kinds = [type(each) for each in trainer.callback_handler.callbacks]
    assert kinds.index(TensorBoardCallback) < kinds.index(AtomCallback)
    trainer.train()

    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    for attachment in first, second:
        [layer] = attachment.layers
        energy = [entry[f"atom/{layer}/energy"] for entry in history]
        shown = [event.value for event in board.Scalars(f"train/atom/{layer}/energy")]
        assert shown == pytest.approx(energy)
        assert len(board.Images(f"atom/{layer}/importance")) == 2
        logged = [entry for entry in site._wandb.logged if f"atom/{layer}/energy" in entry]
        assert len(logged) == 2
        images = [entry for entry in site._wandb.logged if f"atom/{layer}/importance" in entry]
        assert [entry["train/global_step"] for entry in images] == [1, 2]
    assert first.layers != second.layers


def test_the_callback_takes_an_attachment() -> None:
    from atomsep.integrations.transformers import AtomCallback

    with pytest.raises(TypeError, match="AtomCallback takes what atomsep.attach returned, not Lin"):
        AtomCallback(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_loss_computed_outside_the_model_is_named(tmp_path: Path) -> None:
    """The Trainer then keeps the labels from the model, which returns no loss."""
    model, _ = attached("bert")
    trainer = make_trainer(
        model, "bert", arguments(tmp_path, 1, max_steps=1),
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: (
            nn.functional.cross_entropy(outputs.logits, labels)
        ),
    )  # fmt: skip
    with pytest.warns(atomsep.AtomWarning, match="no atom loss was added"):
        trainer.train()


def train_in_process(rank: int, folder: Path) -> None:
    from accelerate.state import AcceleratorState, PartialState

    port = int((folder / "port").read_text())
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    model, _ = attached("llama", group=None)
    args = arguments(folder, 2, max_steps=3, ddp_backend="gloo", average_tokens_across_devices=True)
    trainer = make_trainer(model, "llama", args)
    trainer.train()
    results = model.state_dict(), trainer.recorder.batches, trainer.totals
    torch.save(results, folder / f"rank{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_items_counted_over_two_processes(tmp_path: Path) -> None:
    """The Trainer multiplies the loss by the number of processes; the atom loss stays a mean."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    torch.multiprocessing.start_processes(
        train_in_process, args=(tmp_path,), nprocs=2, start_method="fork"
    )
    states, batches, totals = zip(
        *(torch.load(tmp_path / f"rank{rank}") for rank in (0, 1)), strict=True
    )
    # micro-batches 0 and 1 of both processes, then 2 and 3
    micro = [[*first, *second] for first, second in zip(*map(in_twos, batches), strict=True)]
    trainer = make_trainer(llama(), "llama", arguments(tmp_path, 4))
    trainer.totals = [total for pair in in_twos(totals[0]) for total in 2 * pair]
    expected, _ = train_by_hand("llama", micro, trainer)
    for state in states:
        torch.testing.assert_close(state, dict(expected.state_dict()), rtol=1e-6, atol=1e-8)


def in_twos(values: list[Any]) -> list[list[Any]]:
    return [values[start : start + 2] for start in range(0, 6, 2)]
