"""Atom modeling for PyTorch: separate latents, read token importance."""

from atomsep import functional
from atomsep.attachment import Attachment, attach, attachments
from atomsep.kernels.switch import use_kernels
from atomsep.loss import AtomLoss
from atomsep.watch import AtomWarning

__all__ = [
    "AtomLoss",
    "AtomWarning",
    "Attachment",
    "attach",
    "attachments",
    "functional",
    "use_kernels",
]
__version__ = "0.1.0"
