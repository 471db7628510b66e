"""What operations allocate, and what of it is still held."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """The shapes of all tensors that operations return, and the memory that they still hold."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            self.shapes.append(tuple(tensor.shape))
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def _tensors(self, result: object) -> Iterator[Tensor]:
        if isinstance(result, Tensor):
            yield result
        elif isinstance(result, (list, tuple)):
            for part in result:
                yield from self._tensors(part)

    def kept(self, but: Tensor) -> int:
        """Bytes of all storages alive but that of one tensor."""
        own = but.untyped_storage()._cdata
        return sum(
            size
            for key, (reference, size) in self._storages.items()
            if key != own and not reference.expired()
        )
