"""Find the layers of a model that one can attach to, and the one to start with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from atomsep.core.layout import Axes
from atomsep.hooks.containers import entries_of, may_hold_tokens
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.recommendation import Recommendation
from atomsep.hooks.targets import unwrap
from atomsep.hooks.watch import AtomWarning

_SIGNED = 0.25
"""Share of the negative values' magnitude from which a layer counts as signed.

After a GELU or SiLU of normalised values it is under 0.2, after a ReLU 0.
"""


_SHOWN = 5
"""Refused layers that are named."""


_ONE_FEATURE = (
    "layer {!r} gives shape {}: its tokens have only one feature, which the default charge uses, "
    "so nothing is left for the position; pass maps of your own: AtomLoss(charge=, position=)"
)


@dataclass(frozen=True)
class Layer:
    """A layer that `attach` accepts.

    Attributes:
        name: its dotted name, the target for `attach`.
        kind: the class of the module.
        shape: the shape of its output.
        layout: where its tokens are.
        tokens: number of tokens per sample, without the skipped ones.
        features: number of features per token.
        skipped: class and register tokens in front that `attach` leaves out.
        signed: False if (almost) nothing is negative, as after ReLU, GELU or SiLU.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layout: Axes
    tokens: int
    features: int
    skipped: int
    signed: bool


@dataclass(frozen=True)
class Layers:
    """The layers that `attach` accepts, in the order in which they end; see `layers`.

    Attributes:
        found: the layers.
        refused: for layers that `attach` refuses without further arguments, a sentence by name;
            most need `layout=` or `select=`.
        recommended: the layer to start with; None if there is none.
        reason: why that one.
    """

    found: list[Layer] = field(repr=False)
    refused: dict[str, str] = field(repr=False)
    recommended: str | None
    reason: str

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, name: str) -> Layer:
        for layer in self.found:
            if layer.name == name:
                return layer
        raise KeyError(self.refused.get(name, f"no layer {name!r} with tokens ran"))

    def __str__(self) -> str:
        rows = [COLUMNS, *(row(layer) for layer in self.found)]
        widths = [max(len(cells[column]) for cells in rows) for column in range(len(COLUMNS))]
        table = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]
        refused = [f"{self.needing_arguments}; .refused says which"] if self.refused else []
        first = f"recommended: {self.recommended} ({self.reason})"
        return "\n".join([first, *table, *refused])

    @property
    def needing_arguments(self) -> str:
        """How many layers are refused, and the first of them."""
        names = list(self.refused)
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        return f"layers that need arguments to attach: {len(names)} ({shown})"


COLUMNS = ("layer", "output", "layout", "tokens", "features", "skipped", "signs")


def row(layer: Layer) -> tuple[str, ...]:
    """The cells of a layer in a table."""
    return (
        layer.name,
        "(" + ", ".join(map(str, layer.shape)) + ")",
        layer.layout,
        str(layer.tokens),
        str(layer.features),
        str(layer.skipped or ""),
        "signed" if layer.signed else "rectified",
    )


def layers(model: nn.Module, example_batch: Any) -> Layers:
    """Find every layer that `attach` accepts, and recommend one to start with.

    Runs the model once in eval mode and decides for each layer as `attach` does. Mode, buffers
    and random numbers of the model are the same afterwards; lazy modules are initialised.

    The recommendation follows the paper: the layer nearest to the data. In a generator (an image
    made from a vector) that is the last hidden layer before its activation. In all other models
    it is the first block, or the last signed layer within it where its output is rectified.

    Args:
        model: any module.
        example_batch: what the model is called with: a tensor, a tuple of positional arguments or
            a mapping of keyword arguments. Use at least two samples, a batch size that differs
            from all other sizes, and the padding mask if training has one.

    Returns:
        The layers; `print` shows the recommendation and a table.

    Raises:
        ValueError: no layer of the model has tokens.

    Example:
        >>> cnn = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10)
        ... )
        >>> print(layers(cnn, torch.randn(4, 3, 14, 14)))
        recommended: 1 (the layer before the first activation, nearest to the data)
        layer  output          layout          tokens  features  skipped  signs
        0      (4, 8, 12, 12)  channels_first  144     8                  signed
        1      (4, 8, 12, 12)  channels_first  144     8                  signed
        2      (4, 8, 12, 12)  channels_first  144     8                  rectified
    """
    model = unwrap(model)
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        with _unchanged(model), torch.no_grad():
            _call(model, example_batch)  # which gives lazy modules their shapes
    search = _Search(model)
    with warnings.catch_warnings(), search.hooked(), _unchanged(model), torch.enable_grad():
        warnings.simplefilter("ignore", AtomWarning)  # a layer's, which nobody has attached to yet
        output = _call(model, example_batch)
    if not search.found:
        raise ValueError(f"no layer of this {type(model).__name__} {search.why_none(output)}")
    advice = Recommendation(model, search.started, search.signed, search.found)
    name, reason = advice(generator=_is_generator(example_batch, output))
    return Layers(list(search.found.values()), search.refused, name, reason)


class _Search:
    """One forward with a hook on every module but the model itself."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {name: module for name, module in model.named_modules() if name}
        self.model = model
        self.started: list[str] = []
        self.signed: dict[str, bool] = {}
        self.found: dict[str, Layer] = {}
        self.refused: dict[str, str] = {}
        self.vectors: list[tuple[int, ...]] = []

    @contextmanager
    def hooked(self) -> Iterator[None]:
        readers: list[LayerReader] = []
        try:
            for name, module in self.modules.items():
                reader = LayerReader(self.model, name, module, skip_tokens="auto")
                readers.append(reader)
                reader.listen(
                    lambda _, args, output, reader=reader: self.look(reader, args, output)
                )
                start = module.register_forward_pre_hook(
                    lambda _, __, name=name: self.started.append(name)
                )
                reader.handles.append(start)
            yield
        finally:
            for reader in readers:
                reader.remove()

    def look(self, reader: LayerReader, args: Any, output: Any) -> None:
        """Decide about a layer's output as `attach` would."""
        name = reader.name
        known: tuple[dict[str, Any], ...] = (self.found, self.refused, self.signed)
        for record in known:
            record.pop(name, None)  # the last run counts, and its place in the order
        if not _has_tokens(output):
            self.vectors += _vectors(output)
            return
        try:
            _, latent = reader.pick(output)
            self.signed[name] = _is_signed(latent.detach())
            layout = reader.layout(latent, args)
            reader.mask(layout, latent)
        except (TypeError, ValueError, RuntimeError) as error:
            self.refused[name] = str(error)
            return
        _, tokens, features = layout.sizes(latent)
        if tokens < 2:
            return
        if features < 2:
            self.refused[name] = _ONE_FEATURE.format(name, tuple(latent.shape))
            return
        self.found[name] = Layer(
            name=name,
            kind=type(reader.layer).__name__,
            shape=tuple(latent.shape),
            layout=layout.axes,
            tokens=tokens,
            features=features,
            skipped=layout.skip,
            signed=self.signed[name],
        )

    def why_none(self, output: Any) -> str:
        """The end of a sentence about a model of which no layer was found."""
        for sentence in self.refused.values():
            return f"can be attached to without further arguments; {sentence}"
        vectors = self.vectors or _vectors(output)
        example = f", such as {vectors[0]}" if vectors else ""
        return (
            f"has tokens: the outputs are one vector per sample{example}, without a token axis. "
            f"Atom modeling needs several tokens per sample: (M, L, C), (M, C, H, W) or similar"
        )


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Run a model in eval mode, and leave its modes, buffers and random numbers as they were."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(b, b.clone(), b._version) for b in model.buffers() if not is_lazy(b)]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, before, version in buffers:
                if buffer._version != version:
                    buffer.copy_(before)


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _tensors(value: Any) -> list[Tensor]:
    entries = entries_of(value)
    values = [value] if entries is None else entries.values()
    return [each for each in values if isinstance(each, Tensor)]


def _vectors(value: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in _tensors(value) if tensor.dim() == 2]


def _is_signed(values: Tensor) -> bool:
    negative = values.clamp(max=0).abs().sum(dtype=torch.float64)
    return bool(negative >= _SIGNED * values.abs().sum(dtype=torch.float64))


def _has_tokens(output: Any) -> bool:
    return any(map(may_hold_tokens, _tensors(output)))


def _is_generator(batch: Any, output: Any) -> bool:
    """Whether vectors came in and maps went out."""
    maps = [t for t in _tensors(output) if t.dim() == 4 and t.shape[2] * t.shape[3] > 1]
    inputs = [t for t in _tensors(batch) if t.is_floating_point()]
    return bool(maps and inputs) and all(t[0].numel() == max(t[0].shape) for t in inputs if t.dim())
