"""Attach atom modeling to layers of a model."""

from __future__ import annotations

from typing import Literal

from torch import nn

from atomsep.core.layout import Axes
from atomsep.core.loss import AtomLoss
from atomsep.hooks.arguments import Absent, Runs, check_conduct, check_loss_argument, check_model
from atomsep.hooks.attachment import Attachment
from atomsep.hooks.earlier import warn_of_earlier
from atomsep.hooks.mask_hosts import MaskSource
from atomsep.hooks.reader import LayerReader
from atomsep.hooks.targets import Key, Target, find_layers


def attach(
    model: nn.Module,
    target: Target,
    loss: AtomLoss | None = None,
    *,
    weight: float = 0.1,
    layout: Axes | Literal["auto"] = "auto",
    mask: MaskSource = None,
    select: Key = None,
    skip_tokens: int | Literal["auto"] = "auto",
    watch_gradients: bool = False,
    runs: Runs | None = None,
    missing: Absent = "error",
    in_eval: Absent = "error",
    add_to: str | int | None = None,
) -> Attachment:
    """Attach atom modeling to one or several layers of a model.

    The model's code, parameters and state_dict stay as they are. Train as before and add
    `attachment.loss()` to the task's loss.

    Args:
        model: any module, also one that is compiled or wrapped in DistributedDataParallel. Its
            training mode decides whether there is a loss.
        target: a dotted name, a glob over dotted names, a module of the model, or a list of these.
        loss: the loss with its settings and learned maps; `AtomLoss()` if None. Learned maps are
            not part of the model: pass their `parameters()` to the optimiser. In data-parallel
            training it forms pairs over all processes, and averages the maps' gradients.
        weight: factor of the loss; can be changed during training.
        layout: "channels_first" for (M, C, H, W) and (M, C, L), "channels_last" for (M, L, C) and
            (M, H, W, C), "length_first" for (L, M, C), or "auto" to detect it in the first
            forward pass; `print(attachment)` then shows what was decided, and why.
        mask: None uses the `attention_mask` or `key_padding_mask` of the calls around the layer, a
            name uses the argument of that name, a callable `(args, kwargs) -> mask` computes the
            mask from the model's arguments, and False uses no mask. Masks have shape `(M, L)` or
            `(M, H, W)` and are true on real tokens; a `key_padding_mask` is true on padding. To
            pickle an attached model, define the callable at the top of a module.
        select: index, key or field name of the tensor if the layer returns a tuple, a mapping or a
            dataclass.
        skip_tokens: number of tokens in front to leave out, or "auto" for the class, distillation
            and register tokens of a vision transformer.
        watch_gradients: whether `stats` shows how strong the loss's gradient is compared with the
            task's; can be changed at any step. It costs a copy of the gradient.
        runs: which runs count if a layer runs several times before `loss()`: "last", or "mean" for
            the mean of their losses. None counts the last, and warns if an earlier one was trained.
        missing: "zero" makes the loss of a layer that did not run 0 (LayerDrop); "error" raises.
        in_eval: "zero" makes the loss 0 after a forward pass in evaluation mode, for code that
            training and validation share; "error" raises.
        add_to: None leaves it to you to add `attachment.loss()`. For a model that returns its own
            loss, the name or index of that loss in its output, usually "loss": the model then adds
            the atom loss itself in every forward pass in training, as trainers need it.

    Returns:
        The attachment, with the loss, importance and statistics of the layer.

    Raises:
        ValueError: the target matches nothing, an argument is out of range, or a lazy layer has no
            weights yet. A layout that is not certain is refused in the first forward pass, in a
            message that names the shapes.
        TypeError: an argument has the wrong type, for example a weight in the place of the loss.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
        >>> attachment = attach(model, "0", weight=0.1)
        >>> logits = model(torch.randn(4, 5, 3))
        >>> (logits.logsumexp(1).mean() + attachment.loss()).backward()
        >>> attachment.importance.shape
        torch.Size([4, 5])
        >>> attachment.detach()
    """
    check_model(model, target)
    conduct = check_conduct(runs, missing, in_eval)
    attachment = Attachment(model, check_loss_argument(loss), weight, conduct)
    attachment.watch_gradients = watch_gradients
    try:
        for name, layer in find_layers(model, target).items():
            reader = LayerReader(
                attachment.model, name, layer, layout, mask, select, skip_tokens, attachment._switch
            )
            attachment._add(reader)
            warn_of_earlier(attachment, reader)  # may raise: all hooks are known by now
        if add_to is not None:
            from atomsep.hooks.adding import LossAdder

            attachment._adder = LossAdder(attachment, add_to)
    except BaseException:
        attachment.detach()
        raise
    return attachment
