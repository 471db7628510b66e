"""Charges of a padded sentence: which of them belong to its own tokens."""

from __future__ import annotations

from typing import Any


def without_padding(charges: Any, count: int) -> Any:
    """The charges of a sentence's own tokens, whichever side its padding is on.

    Padding has charge 0, so the side that holds another number is not padding.

    Args:
        charges: `(L,)`, an array.
        count: number of the sentence's tokens.

    Raises:
        ValueError: there are fewer charges than tokens, or neither side is surely padding.

    Example:
        >>> import numpy as np
        >>> without_padding(np.array([0.0, 0.0, 0.5, -0.5]), 2)
        array([ 0.5, -0.5])
    """
    surplus = len(charges) - count
    if surplus < 0:
        raise ValueError(f"there are {count} tokens, but only {len(charges)} charges")
    if not surplus or not charges.any():
        return charges[:count]
    in_front, behind = not charges[:surplus].any(), not charges[count:].any()
    if in_front == behind:
        zero = "are 0" if in_front else "include one that is not 0"
        raise ValueError(
            f"there are {len(charges)} charges for {count} tokens, and it is not certain on which "
            f"side the padding is: both the first {surplus} charges and the last {surplus} {zero}. "
            f"Pass the charges of the sentence's own tokens, for example "
            f"charges[attention_mask.bool()]"
        )
    return charges[surplus:] if in_front else charges[:count]
