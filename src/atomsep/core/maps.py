"""How learned maps are run: in eval mode for a look, and again for a checkpoint.

Maps belong to the loss, not to the model, so `model.eval()` does not reach them. And autograd
differentiates them by itself, so what they save is saved outside of the loss's own node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atomsep.checks import transforms_active
from atomsep.core.saving import inside_checkpoint

_ONE_THREAD = threading.RLock()
"""A mode belongs to a module, and so to all threads that run it."""


class Running:
    """A context in which one thread runs maps.

    Args:
        maps: the modules.
        training: False puts them in eval mode until the end.
    """

    def __init__(self, maps: Iterable[nn.Module], training: bool = True) -> None:
        self.modules = [module for each in maps for module in each.modules()]
        self.training = training
        self.turned: list[nn.Module] = []

    def __enter__(self) -> None:
        if self.modules and not torch.compiler.is_compiling():
            _ONE_THREAD.acquire()
        if not self.training:
            self.turned = [module for module in self.modules if module.training]
            for module in self.turned:
                module.training = False

    def __exit__(self, *exc: object) -> None:
        for module in self.turned:
            module.training = True
        if self.modules and not torch.compiler.is_compiling():
            _ONE_THREAD.release()


class Repeatable:
    """A function of the tokens that a checkpoint around it repeats as it was.

    What a checkpoint recomputes belongs to some forward, not necessarily to the last one, and it
    does not say which. So inside of one, the function has a checkpoint of its own, which keeps the
    function, with the mask and the draw of this forward, and has only the tokens recomputed.

    Args:
        function: what to call.
        module: whose buffers (the statistics of batch norms) change in the first call alone.
    """

    def __init__(self, function: Callable[[Tensor], Any], module: nn.Module) -> None:
        self.function, self.module, self.called = function, module, False

    def __call__(self, tokens: Tensor) -> Any:
        """The function's result, now or when it is recomputed."""
        if not self.called:
            self.called = True
            return self.function(tokens)
        with buffers_kept(self.module):
            return self.function(tokens)

    def run(self, tokens: Tensor) -> Any:
        """The function's result, inside of a checkpoint of its own where there is one around it."""
        plain = torch.compiler.is_compiling() or transforms_active() or not torch.is_grad_enabled()
        if plain or not inside_checkpoint():
            return self.function(tokens)
        return checkpoint(self, tokens, use_reentrant=False)


@contextmanager
def buffers_kept(module: nn.Module) -> Iterator[None]:
    """A context after which a module's buffers are as they were."""
    buffers = list(module.buffers())
    before = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.data.copy_(value)  # `data`: other graphs may have saved the buffer
