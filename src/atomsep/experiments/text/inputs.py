"""Sentences that a trained classifier is asked about, and its tokenizer on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atomsep.experiments.atoms_file import Token
from atomsep.experiments.files import CONTINUES, writing
from atomsep.experiments.predicting import Inputs
from atomsep.experiments.text.data import as_samples
from atomsep.experiments.text.feed import tokenise
from atomsep.experiments.text.models import quiet

ENCODER = "encoder"
"""Folder of a run that holds its tokenizer and its model's configuration."""

SPECIAL = -1
"""The number of the word that special tokens belong to."""


@dataclass(frozen=True)
class Sentence:
    """A sentence as the model sees it.

    Attributes:
        text: the sentence.
        tokens: its tokens, special ones included; what was cut off is missing.
    """

    text: str
    tokens: list[Token]


class TextInputs(Inputs):
    """Sentences as token ids, padded to the longest of a batch.

    Args:
        tokenizer: the model's tokenizer.
        length: the largest number of tokens; longer sentences are cut.
    """

    kind = "sentences"

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length

    def see(self, samples: Sequence[Any]) -> list[Sentence]:
        """Sentences with their tokens."""
        texts = [samples] if isinstance(samples, str) else list(samples)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a sentence must be a text, not {type(text).__name__}")
        return [Sentence(text, self._tokens(text)) for text in texts]

    def _tokens(self, text: str) -> list[Token]:
        """Tokens by a fast tokenizer; a slow one does not tell where they are."""
        fast = getattr(self.tokenizer, "is_fast", False)
        rows = self.tokenizer(
            text,
            truncation=True,
            max_length=min(self.length, self.tokenizer.model_max_length),
            return_offsets_mapping=fast,
            return_special_tokens_mask=True,
        )
        pieces = self.tokenizer.convert_ids_to_tokens(rows["input_ids"])
        words = rows.word_ids() if fast else range(len(pieces))
        places = rows["offset_mapping"] if fast else [(-1, -1)] * len(pieces)
        marks = rows["special_tokens_mask"]
        return [
            Token(piece, SPECIAL if special or word is None else word, *place)
            for piece, special, word, place in zip(pieces, marks, words, places, strict=True)
        ]

    def batches(self, seen: Sequence[Sentence], size: int) -> Iterator[tuple[Sequence[int], Any]]:
        """Token ids, the shortest sentences first, as they are evaluated."""
        if not seen:
            return
        texts = as_samples([each.text for each in seen], [0] * len(seen), (), "text")
        tokens = tokenise(texts, self.tokenizer, self.length, torch.device("cpu"))
        for part in tokens.lengths.argsort(stable=True).split(size):
            yield part.tolist(), tokens.batch(part).inputs

    def own(self, charges: Tensor, seen: Sentence) -> Tensor:
        """Charges of the sentence's own tokens, without padding."""
        count = len(seen.tokens)
        return charges[-count:] if self.tokenizer.padding_side == "left" else charges[:count]

    def columns(self, seen: Sequence[Sentence]) -> dict[str, Any]:
        """The sentences, their tokens and lengths."""
        import numpy as np

        return {
            "sentences": [each.text for each in seen],
            "tokens": [each.tokens for each in seen],
            "lengths": np.asarray([len(each.tokens) for each in seen]),
        }

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write the tokenizer and the model's configuration, as Transformers reads them."""
        place = folder / ENCODER
        with writing(place, then=CONTINUES), quiet():
            self.tokenizer.save_pretrained(str(place))
            model.config.save_pretrained(str(place))  # type: ignore[union-attr, operator]
