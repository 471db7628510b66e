"""Why a layer has no loss, no importance or no statistics, as the ends of sentences."""

from __future__ import annotations

IN_EVAL = (
    "ran with the model in eval mode, which gives no loss: call model.train() before the forward. "
    'For a step shared by training and validation, attach with in_eval="zero"'
)
WITHOUT_GRADIENTS = (
    "ran without gradients, which gives no loss: under torch.no_grad (as gradient-cached losses do "
    "first: use the loss without a cache), or inside reentrant activation checkpointing (pass "
    "use_reentrant=False to torch.utils.checkpoint)"
)
NESTED = "returned a nested tensor in training, which gives no importance, loss or stats"
TRANSFORMED = (
    "ran inside a torch.func transform or forward-mode AD, which gives no importance or stats; "
    "call loss() inside the transformed function"
)
UNMEASURED = "has importance but no stats: a sample without tokens, or a single feature"
TAKEN = (
    "has no new forward: loss() returns the loss of each forward once. Keep its value, or run the "
    "model again. If the layer is left out of some forwards (LayerDrop), attach with "
    'missing="zero"'
)
ADDED = (
    "is attached with add_to=, so its loss is already part of the model's own: do not call loss(), "
    "or leave out add_to="
)
DETACHED = "was detached, which dropped what was held of its last forward"
NEVER_RAN = (
    "has not run in this thread since it was attached. Run the model first; if it did run, the "
    "layer is not part of its forward. If it is left out of some forwards (LayerDrop), attach with "
    'missing="zero"'
)
