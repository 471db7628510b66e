"""Notice training runs of a layer that the loss leaves out."""

from __future__ import annotations

from torch import Tensor

from atomsep.hooks.handed_on import Run
from atomsep.hooks.held import Held

PATIENCE = 50
"""Training forwards without a loss, or losses without a forward, before a warning."""

_USUAL = 10
"""Times as many runs as any loss was taken over, before a warning."""

LEFT_OUT = (
    "ran more than once in training since the last loss(), and only the last run counts. Call "
    'loss() after each forward, or attach with runs="mean" to take the mean over all runs, or with '
    'runs="last" if this is what you want'
)
UNUSED = (
    f"ran {PATIENCE} times in training, but loss() was never called, so atom modeling trains "
    "nothing: add attachment.loss() to the loss"
)
PILED = (
    'is attached with runs="mean", which keeps the graph of every run until loss() is called, and '
    "holds {} of them now: call loss() in every step, and use torch.no_grad() for forwards that "
    "train nothing"
)


def keep_earlier(held: Held, depth: int) -> None:
    """Let the last run count besides the one that comes, unless a backward has freed its graph.

    Of a graph that is freed, the loss could have no gradient any more.
    """
    if held.statistics is None:
        return
    earlier = held.earlier if held.depth == depth else ()
    runs = (*earlier, Run(held.statistics, held.handed_on))
    held.earlier = tuple([run for run in runs if not run.spent()])


def piled(held: Held) -> bool:
    """Whether far more runs wait for a loss than ever did."""
    return len(held.earlier) >= max(PATIENCE, _USUAL * held.most)


def note_left_out(held: Held) -> None:
    """Find out whether the run that is about to be replaced trains the model.

    It does if a backward pass has come through it, or will. One whose output is detached, such as
    the generator's in a step of the critic, does not.
    """
    node = None if held.statistics is None else held.statistics.table.grad_fn
    if held.left_out or held.depth or node is None or held.losses > PATIENCE:
        return
    try:
        if getattr(node, "_raw_saved_tensors", None) is None:
            return  # of a compiled graph, which does not tell
    except RuntimeError:  # freed by a backward pass
        held.left_out = True
        return

    def note(gradient: object) -> None:
        held.left_out = True

    passed = None if held.handed_on is None else held.handed_on.tensor
    if passed is None:  # the node hands it on as its last output
        node.register_prehook(lambda gradients: note(0) if _arrives(gradients) else None)
    elif passed.requires_grad:
        passed.register_hook(note)


def _arrives(gradients: tuple[Tensor | None, ...]) -> bool:
    return gradients[-1] is not None
