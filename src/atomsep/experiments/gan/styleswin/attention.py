"""Attention within windows, whose bias depends on the relative position of the tokens.

Tokens are `(M, H, W, C)`. Each window of the image attends to itself. A shifted branch moves the
image by half a window first, so that its windows cover the borders of the others; a mask keeps
those apart that only the move has made neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

APART = -100.0
"""Added to the scores of tokens that are not to see each other."""


class WindowAttention(nn.Module):
    """Attention within the windows of an image.

    Args:
        side: height and width of the image in tokens.
        window: height and width of a window.
        shift: by how many tokens the image is moved.
        heads: number of heads.
    """

    mask: Tensor | None

    def __init__(self, side: int, window: int, shift: int, heads: int) -> None:
        super().__init__()
        self.window, self.shift, self.heads = window, shift, heads
        table = torch.empty((2 * window - 1) ** 2, heads)
        self.relative_position_bias_table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))
        mask = shift_mask(side, window, shift) if shift else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, qkv: Tensor) -> Tensor:
        """The heads' outputs `(M, H, W, C)` for queries, keys and values `(M, H, W, 3, C)`."""
        if self.shift:
            qkv = qkv.roll((-self.shift, -self.shift), (1, 2))
        size, side, window, heads = len(qkv), qkv.shape[1], self.window, self.heads
        count = side // window
        split = qkv.reshape(size, count, window, count, window, 3, heads, -1)
        split = split.permute(5, 0, 1, 3, 6, 2, 4, 7)
        # Windows count as heads: as samples they would be too many for the grid of a GPU's kernel.
        query, key, value = split.reshape(3, size, count * count * heads, window * window, -1)
        out = scaled_dot_product_attention(query, key, value, attn_mask=self.bias(count * count))
        out = out.reshape(size, count, count, heads, window, window, -1)
        out = out.permute(0, 1, 4, 2, 5, 3, 6).reshape(size, side, side, -1)
        return out.roll((self.shift, self.shift), (1, 2)) if self.shift else out

    def bias(self, windows: int) -> Tensor:
        """What is added to the scores, `(1, windows * heads, tokens, tokens)`, mask included."""
        bias = relative_bias(self.relative_position_bias_table, self.window)
        bias = bias.expand(windows, -1, -1, -1)
        if self.mask is not None:
            bias = bias + self.mask.unsqueeze(1)
        return bias.reshape(1, windows * self.heads, *bias.shape[2:])


def relative_bias(table: Tensor, window: int) -> Tensor:
    """The bias of each pair of tokens of a window, `(heads, tokens, tokens)`.

    Row `(2 w - 1) (dy + w - 1) + dx + w - 1` of the table is that of a query which lies dy below
    and dx right of its key. As windows onto the table, the pairs need no index.

    Args:
        table: `((2 w - 1)^2, heads)`.
        window: w.
    """
    grid = table.T.reshape(-1, 2 * window - 1, 2 * window - 1)
    pairs = grid.unfold(1, window, 1).unfold(2, window, 1).flip(3, 4)
    return pairs.reshape(-1, window * window, window * window)


def shift_mask(side: int, window: int, shift: int) -> Tensor:
    """Scores to add in a moved image, `(windows, tokens, tokens)`: 0, or `APART`.

    What was moved over the edge of the image lies beside the opposite edge.
    """
    place = torch.arange(side)
    part = (place >= side - window).int() + (place >= side - shift).int()
    region = 3 * part.unsqueeze(1) + part
    count = side // window
    split = region.reshape(count, window, count, window).transpose(1, 2).reshape(count**2, -1)
    return (split.unsqueeze(1) != split.unsqueeze(2)) * APART
