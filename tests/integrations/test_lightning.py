"""The Lightning callback on an unchanged LightningModule, against loops written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from by_hand import WEIGHT, plain_loss
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional as F

import atomsep
from atomsep.integrations.lightning import AtomModeling

pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*fork.*:DeprecationWarning",
)

BATCHES, SIZE = 11, 4


class Module(lightning.LightningModule):
    """As anybody writes it: nothing here knows about atom modeling."""

    def __init__(self, returned: str = "tensor") -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2)
        self.net = nn.Sequential(*layers).double()
        self.returned = returned
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, labels = batch
        loss = F.cross_entropy(self.net(x), labels)
        return loss if self.returned == "tensor" else {"loss": loss, "batch_idx": batch_idx}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, labels = batch
        self.log("val_loss", F.cross_entropy(self.net(x), labels))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def data() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES * SIZE, 5, 3, generator=random, dtype=torch.float64)
    return list(zip(x, (x.sum((1, 2)) > 0).long(), strict=True))


def loader(batches: int = BATCHES) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(data()[: batches * SIZE], batch_size=SIZE)  # type: ignore[arg-type]


def trainer(folder: Path, *callbacks: Any, **others: Any) -> lightning.Trainer:
    settings = {
        "accelerator": "cpu", "devices": 1, "max_steps": 10, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False,
        "enable_checkpointing": False, "default_root_dir": str(folder), **others,
    }  # fmt: skip
    return lightning.Trainer(callbacks=list(callbacks), **settings)


def learned(group: str | None = "world") -> atomsep.AtomLoss:
    torch.manual_seed(2)
    return atomsep.AtomLoss(charge=nn.Linear(8, 1), group=group).double()


def train_by_hand(
    steps: list[list[Any]], divisor: int, criterion: Any = None, *, epoch_steps: int = 10
) -> tuple[nn.Module, list[float]]:
    """The network after these steps, and the loss of each micro-batch."""
    net = Module().net
    maps = [] if criterion is None else list(criterion.parameters())
    charge = 0 if criterion is None else criterion.charge
    optimizer = torch.optim.SGD([*net.parameters(), *maps], lr=0.1, momentum=0.9)
    losses = []
    for number, batches in enumerate(steps):
        if number and number % epoch_steps == 0:  # the scheduler's, once per epoch
            optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.zero_grad()
        for x, labels in batches:
            latent = net[0](x)
            atom = plain_loss(latent, charge=charge)
            loss = F.cross_entropy(net[1:](latent), labels) + WEIGHT * atom
            (loss / divisor).backward()
            losses.append(loss.item())
        optimizer.step()
    return net, losses


@pytest.mark.parametrize("returned", ["tensor", "mapping"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_ten_steps_equal_a_loop_by_hand(returned: str, accumulation: int, tmp_path: Path) -> None:
    """With validation, and with the sanity check before training."""
    module = Module(returned)
    attachment = atomsep.attach(module, "net.0", weight=WEIGHT)
    fit = trainer(tmp_path, AtomModeling(attachment), accumulate_grad_batches=accumulation)
    fit.fit(module, loader(), loader())
    batches = list(loader())
    in_epoch = [batches[start : start + accumulation] for start in range(0, BATCHES, accumulation)]
    # Lightning divides by the full number of micro-batches, also in a shorter last step.
    net, losses = train_by_hand((in_epoch * 4)[:10], accumulation, epoch_steps=len(in_epoch))
    torch.testing.assert_close(dict(module.net.state_dict()), dict(net.state_dict()))
    assert module.losses == pytest.approx([loss / accumulation for loss in losses])
    assert "training_step" not in vars(module)


def test_validation_has_no_atom_loss(tmp_path: Path) -> None:
    module = Module()
    attachment = atomsep.attach(module, "net.0", weight=WEIGHT)
    fit = trainer(tmp_path, AtomModeling(attachment), max_steps=BATCHES)
    fit.fit(module, loader(), loader())
    with torch.no_grad():
        task = [F.cross_entropy(module.net(x), labels) for x, labels in loader()]
    torch.testing.assert_close(fit.callback_metrics["val_loss"], torch.stack(task).mean())
    assert fit.validate(module, loader(), verbose=False) == [
        {"val_loss": pytest.approx(torch.stack(task).mean().item())}
    ]


@pytest.mark.parametrize(
    ("precision", "kept", "computed"),
    [
        ("64-true", torch.float64, torch.float64),
        ("32-true", torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("bf16-true", torch.bfloat16, torch.bfloat16),
    ],
)
def test_every_precision(precision: str, kept: Any, computed: Any, tmp_path: Path) -> None:
    """Weights are kept in one precision, and layers compute in another; float16 needs a GPU."""
    module = Module().to(kept)
    attachment = atomsep.attach(module, "net.0", weight=WEIGHT)
    fit = trainer(tmp_path, AtomModeling(attachment), precision=precision, max_steps=3)
    single = [(x.to(kept), labels) for x, labels in loader()]
    fit.fit(module, torch.utils.data.DataLoader(single, batch_size=None))  # type: ignore[arg-type]
    net = Module().net.to(kept)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x, labels in single[:3]:
        with torch.autocast("cpu", computed, enabled="mixed" in precision):
            latent = net[0](x)
            task = F.cross_entropy(net[1:](latent), labels)
        optimizer.zero_grad()
        wide = latent if computed.itemsize > 2 else latent.float()
        (task + WEIGHT * plain_loss(wide)).backward()
        optimizer.step()
    # the gradient of a narrow latent is rounded in both, once as a sum
    tolerance = {4: 1e-5, 8: 1e-12}.get(computed.itemsize, 2e-2)
    torch.testing.assert_close(
        dict(module.net.state_dict()), dict(net.state_dict()), rtol=tolerance, atol=tolerance / 10
    )


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_learned_maps_are_trained_saved_and_resumed(tmp_path: Path) -> None:
    """Two epochs of five steps, and the second one again from the checkpoint of the first."""

    def fit(checkpoint: Path | None = None) -> tuple[Any, atomsep.Attachment]:
        module = Module()
        attachment = atomsep.attach(module, "net.0", learned(), weight=WEIGHT)
        folder = tmp_path / ("first" if checkpoint is None else "again")
        saver = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
        run = trainer(
            tmp_path, AtomModeling(attachment), saver, enable_checkpointing=True,
            max_epochs=2, max_steps=-1,
        )  # fmt: skip
        run.fit(module, loader(5), ckpt_path=checkpoint)
        return module, attachment

    module, attachment = fit()
    steps = [[batch] for batch in loader(5)] * 2
    net, _ = train_by_hand(steps, 1, criterion := learned(), epoch_steps=5)
    torch.testing.assert_close(dict(module.net.state_dict()), dict(net.state_dict()))
    torch.testing.assert_close(dict(attachment.state_dict()), dict(criterion.state_dict()))

    again, again_attachment = fit(tmp_path / "first" / "epoch=0.ckpt")
    # but for the last bit: the first forward hands on a copy, which adds up in another order
    for one, other in (module.net, again.net), (attachment, again_attachment):
        states = dict(one.state_dict()), dict(other.state_dict())
        torch.testing.assert_close(*states, rtol=1e-13, atol=1e-15)
    # the module's own part of the checkpoint is as without the callback
    saved = torch.load(tmp_path / "first" / "epoch=0.ckpt", weights_only=False)["state_dict"]
    assert saved.keys() == Module().state_dict().keys()


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


def test_what_cannot_work_is_refused_when_the_fit_starts(tmp_path: Path) -> None:
    manual = Manual()
    callback = AtomModeling(atomsep.attach(manual, "net.0"))
    with pytest.raises(ValueError, match="Manual optimises manually .* add attachment.loss()"):
        trainer(tmp_path, callback).fit(manual, loader())
    callback = AtomModeling(atomsep.attach(Module(), "net.0"))
    with pytest.raises(ValueError, match="the attached Module is not part of Module"):
        trainer(tmp_path, callback).fit(Module(), loader())
    module = Module()
    callback = AtomModeling(atomsep.attach(module, "net.0", add_to="loss"))
    with pytest.raises(ValueError, match="leave out add_to= or AtomModeling"):
        trainer(tmp_path, callback).fit(module, loader())


def test_the_callback_takes_an_attachment() -> None:
    with pytest.raises(TypeError, match=r"AtomModeling takes what .* not Module; write AtomModel"):
        AtomModeling(Module())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not Module; write"):
        AtomModeling(Module)  # type: ignore[arg-type]


def test_a_loss_that_is_added_twice_is_named(tmp_path: Path) -> None:
    class Both(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            [attachment] = atomsep.attachments(self)
            return super().training_step(batch, batch_idx) + attachment.loss()

    module = Both()
    callback = AtomModeling(atomsep.attach(module, "net.0"))
    with pytest.raises(RuntimeError, match=r"training_step calls attachment.loss\(\), and AtomMod"):
        trainer(tmp_path, callback).fit(module, loader())


def test_a_step_without_the_layer_is_not_taken_for_a_loss_added_twice(tmp_path: Path) -> None:
    class Skipping(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 0:
                return super().training_step(batch, batch_idx)
            return self.net[3](torch.ones(4, 40, dtype=torch.float64)).sum()

    module = Skipping()
    callback = AtomModeling(atomsep.attach(module, "net.0"))
    with pytest.raises(RuntimeError, match="has no new forward"):
        trainer(tmp_path, callback).fit(module, loader())


def test_a_failed_fit_gives_the_training_step_back(tmp_path: Path) -> None:
    class Failing(Module):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            raise RuntimeError("as told")

    module = Failing()
    attachment = atomsep.attach(module, "net.0")
    with pytest.raises(RuntimeError, match="as told"):
        trainer(tmp_path, AtomModeling(attachment)).fit(module, loader())
    assert "training_step" not in vars(module)


class Gallery(CSVLogger):
    """A logger that takes images as Weights & Biases does."""

    shown: dict[tuple[str, int | None], Any]

    def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
        [image] = images
        self.__dict__.setdefault("shown", {})[key, step] = image


def test_loggers_get_the_parts_and_the_importance(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    module = Module()
    attachment = atomsep.attach(module, "net.0", weight=WEIGHT)
    board, gallery = TensorBoardLogger(tmp_path), Gallery(tmp_path)
    fit = trainer(
        tmp_path, AtomModeling(attachment, images=3), logger=[board, gallery],
        log_every_n_steps=2, max_steps=BATCHES, accumulate_grad_batches=2, max_epochs=2,
    )  # fmt: skip
    fit.fit(module, loader(), loader())
    board.finalize("success")
    events = EventAccumulator(board.log_dir).Reload()
    assert [event.step for event in events.Scalars("atom/energy")] == [1, 3, 5, 7, 9]
    assert {"atom/loss", "atom/neutrality", "atom/occupancy"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Images("atom/importance")] == [6]
    [image] = gallery.shown.values()
    assert image.shape == (3 * 8, 5 * 8, 3)  # three samples of five tokens


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("second", ["net.0", "net.1"])
def test_two_attachments(second: str, tmp_path: Path) -> None:
    """Each has its own maps in the checkpoint, and its own names in the logs."""

    def make() -> tuple[Module, list[AtomModeling]]:
        module = Module()
        module.net[1] = nn.Tanh()
        callbacks = []
        for name, weight in ("net.0", 0.1), (second, 0.3):
            attachment = atomsep.attach(module, name, learned(), weight=weight)
            callbacks.append(AtomModeling(attachment))
        return module, callbacks

    module, callbacks = make()
    one, other = (callback.attachment for callback in callbacks)
    gallery = Gallery(tmp_path)
    saver = ModelCheckpoint(tmp_path / "saved", "last")
    fit = trainer(
        tmp_path, *callbacks, saver, logger=[gallery], log_every_n_steps=1, max_steps=3,
        enable_checkpointing=True,
    )  # fmt: skip
    fit.fit(module, loader(), loader())
    assert "training_step" not in vars(module)
    shown = f"atom/{second}/" if second != "net.0" else "atom/net.0:2/"
    columns = set(gallery.experiment.metrics_keys)
    assert {"atom/net.0/energy", f"{shown}energy", "atom/net.0/loss", f"{shown}loss"} <= columns
    assert "atom/energy" not in columns

    # by hand
    plain = Module().net
    plain[1] = nn.Tanh()
    maps = [learned(), learned()]
    optimizer = torch.optim.SGD(
        [p for part in (plain, *maps) for p in part.parameters()], lr=0.1, momentum=0.9
    )
    for x, labels in list(loader())[:3]:
        first = plain[0](x)
        latents = first, first if second == "net.0" else plain[1](first)
        loss = F.cross_entropy(plain[2:](plain[1](first)), labels)
        for latent, criterion, weight in zip(latents, maps, (0.1, 0.3), strict=True):
            loss = loss + weight * criterion(latent)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(dict(module.net.state_dict()), dict(plain.state_dict()))
    for attachment, criterion in zip((one, other), maps, strict=True):
        torch.testing.assert_close(dict(attachment.state_dict()), dict(criterion.state_dict()))

    again, loaded = make()
    saver_too = ModelCheckpoint(tmp_path / "again")
    fit = trainer(tmp_path, *loaded, saver_too, enable_checkpointing=True, max_steps=3)
    fit.fit(again, loader(), ckpt_path=saver.best_model_path)
    for callback, attachment in zip(loaded, (one, other), strict=True):
        states = dict(callback.attachment.state_dict()), dict(attachment.state_dict())
        torch.testing.assert_close(*states, rtol=0, atol=0)


class Saver(lightning.Callback):
    """Leaves the batches and the results of a process in a file."""

    def __init__(self, attachment: Any, folder: Path) -> None:
        self.attachment, self.folder, self.batches = attachment, folder, []  # type: ignore[var-annotated]

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *rest: Any) -> None:
        self.batches.append(batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        states = pl_module.net.state_dict(), self.attachment.state_dict()
        torch.save((*states, self.batches), self.folder / f"rank{trainer.global_rank}")


def test_two_processes_average_the_model_and_the_learned_maps(tmp_path: Path) -> None:
    module = Module()
    attachment = atomsep.attach(module, "net.0", learned(group=None), weight=WEIGHT)
    callbacks = AtomModeling(attachment), Saver(attachment, tmp_path)
    fit = trainer(tmp_path, *callbacks, strategy="ddp_fork", devices=2, max_steps=4)
    fit.fit(module, loader())
    nets, maps, batches = zip(*(torch.load(tmp_path / f"rank{r}") for r in (0, 1)), strict=True)
    # a mean over processes is a mean over micro-batches
    steps = [list(pair) for pair in zip(*batches, strict=True)]
    net, _ = train_by_hand(steps, 2, criterion := learned())
    for of_net, of_maps in zip(nets, maps, strict=True):
        torch.testing.assert_close(dict(of_net), dict(net.state_dict()))
        torch.testing.assert_close(dict(of_maps), dict(criterion.state_dict()))
