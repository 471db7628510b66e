"""The backend in plain PyTorch: it runs everywhere, and the kernels must agree with it."""

from atomsep.core.plain.atoms import atoms_gradient, read_atoms
from atomsep.core.plain.pairs import pair_loss, pair_loss_of_rows

__all__ = ["atoms_gradient", "pair_loss", "pair_loss_of_rows", "read_atoms"]
