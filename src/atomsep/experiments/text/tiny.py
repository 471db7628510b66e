"""Generated sentences for the tiny forms, and an encoder small enough for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from atomsep.experiments.randomness import generator
from atomsep.experiments.samples import Samples, Sets
from atomsep.experiments.text.data import COLA_CLASSES, POEM_CLASSES, as_samples

NOUNS = ("cat", "dog", "girl", "bird")
VERBS = (("sleeps", "sleep"), ("runs", "run"), ("sings", "sing"), ("waits", "wait"))
PLACES = ("in the garden", "near the river", "", "under a tree", "")
MOODS = (("weeping", "bitter"), ("glad", "golden"), ("grey", "wooden"))
"""Words that make a verse negative, positive or neither."""


def agreement(train: int, test: int) -> Sets:
    """Sentences about one animal or one child, whose verb agrees with it or does not."""

    def make(rng: torch.Generator) -> tuple[str, int]:
        noun, verb, place, agrees = _draw(rng, len(NOUNS), len(VERBS), len(PLACES), 2)
        words = ("the", NOUNS[noun], VERBS[verb][1 - agrees], PLACES[place])
        return " ".join(words).strip(), agrees

    return _generate(make, train, COLA_CLASSES), _generate(make, test, COLA_CLASSES, start=train)


def verses(train: int, test: int) -> Sets:
    """Verses of two moods, which are mixed if these differ; as in Poem, only in training."""

    def make(rng: torch.Generator, mixed: bool = True) -> tuple[str, int]:
        noun, verb, first, second, word = _draw(rng, len(NOUNS), len(VERBS), 3, 3, 2)
        if not mixed or 2 in (first, second):
            second = first
        label = first if first == second else POEM_CLASSES.index("mixed")
        words = ("the", MOODS[first][word], NOUNS[noun], VERBS[verb][0], MOODS[second][word])
        return " ".join(words), label

    held_out = _generate(partial(make, mixed=False), test, POEM_CLASSES, start=train)
    return _generate(make, train, POEM_CLASSES), held_out


def _draw(rng: torch.Generator, *bounds: int) -> list[int]:
    return [int(torch.randint(bound, (1,), generator=rng)) for bound in bounds]


def _generate(make: Any, count: int, classes: Sequence[str], start: int = 0) -> Samples:
    pairs = [make(generator(0, "sentence", number)) for number in range(start, start + count)]
    texts, labels = zip(*pairs, strict=True)
    return as_samples(texts, labels, classes, "generated text")


def tiny_encoder(texts: Sequence[str], classes: int) -> tuple[Any, Any]:
    """A tokenizer with the words of some texts, and a BERT with two layers of width 32.

    Example:
        >>> tokenizer, model = tiny_encoder(["a cat sleeps"], classes=2)
        >>> tokenizer("a cat flies")["input_ids"]  # [CLS] a cat [UNK] [SEP]
        [2, 4, 5, 1, 3]
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    splitter = pre_tokenizers.Whitespace()
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.2,  # at this width, the usual 0.02 is slow to train
        num_labels=classes,  # type: ignore[call-arg]
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=config.max_position_embeddings,
    )
    return wrapped, BertForSequenceClassification(config)
