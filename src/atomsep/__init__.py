"""Atom modeling for PyTorch: separate latents, read token importance."""

from atomsep import functional
from atomsep.attach import Attachment, attach, attachments
from atomsep.loss import AtomLoss
from atomsep.watch import AtomWarning

__all__ = ["AtomLoss", "AtomWarning", "Attachment", "attach", "attachments", "functional"]
__version__ = "0.1.0"
