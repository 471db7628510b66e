"""Are keywords positive and function words negative, as the paper says?

    python -m benchmarks.words --model MINILM_FOLDER --data data

Fine-tunes a pretrained encoder on Poem sentiment over some seeds, without atom modeling, with it,
and with a learned charge, and reads the charge of every word of the held-out verses (official dev
and test). The encoder as it was downloaded is the control: its first feature is a charge that
nobody trained. Writes `results/words.csv`, one row per run, and `results/words_by_word.csv`.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import atomsep
from atomsep.experiments.machine import Machine, make_fabric
from atomsep.experiments.predicting import logits_of
from atomsep.experiments.registry import find_experiment, run_key
from atomsep.experiments.task import Context
from atomsep.experiments.text.data import read_poem
from atomsep.experiments.text.inputs import TextInputs
from atomsep.experiments.text.models import load_encoder
from atomsep.experiments.trained import load_run
from atomsep.experiments.training import train
from atomsep.importance.words import Word, charge_by_word, merge_words
from benchmarks.record import FOLDER, machine

EPOCHS, RATE, WEIGHT = 4, 1e-4, 1.0
KINDS = {"plain": ("plain", ()), "atom": ("atom", ()), "learned": ("atom", ("charge=learned",))}
"""Method and further settings of the runs; a learned charge is a linear map of all features."""

LEAST = 3
"""How often a word must occur to be in the table of words."""

NOT_FUNCTION_WORDS = """
    amount bill bottom computer con cry de describe detail eg etc fifteen fifty fill find fire forty
    found front full hundred ie inc interest ltd mill mine move part re serious show side sincere
    sixty system ten thick thin top twelve twenty un
"""
"""Words of scikit-learn's list that are nouns, verbs, adjectives, numbers or abbreviations."""

OLD_FUNCTION_WORDS = """
    art did does doth ere hast hath o oh shall shalt thee thine thou thy tis twas unto wilt ye
"""
"""Function words, mostly of verse, that the list lacks."""


Sentences = list[list[Word]]


def is_function_word(word: str) -> bool:
    """Whether a word in small letters is an article, a pronoun, a preposition and so on."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    listed = ENGLISH_STOP_WORDS - set(NOT_FUNCTION_WORDS.split())
    return word in listed or word in OLD_FUNCTION_WORDS.split()


def is_counted(word: str) -> bool:
    """Whether it is a word, not punctuation or the rest of one, such as the s of 's."""
    return word.isalpha() and (len(word) > 1 or word in "aio")


def charged(model: Any, inputs: TextInputs, attachment: Any, texts: Sequence[str]) -> Sentences:
    """The words of sentences with their charges."""
    seen = inputs.see(texts)
    found: dict[int, list[Word]] = {}
    model.eval()
    with torch.no_grad():
        for numbers, arguments in inputs.batches(seen, 32):
            logits_of(model, arguments)
            for row, number in enumerate(numbers):
                own = inputs.own(attachment.importance[row], seen[number])
                found[number] = merge_words(seen[number].text, seen[number].tokens, own)
    return [found[number] for number in range(len(seen))]


def measured(sentences: Sentences, frequencies: Counter[str]) -> dict[str, Any]:
    """Content words against function words, over all that occur.

    "frequency" asks whether frequent words are negative whatever their kind: the rank correlation
    of a content word's charge with how often it occurs in all verses.
    """
    from scipy.stats import spearmanr
    from sklearn.metrics import roc_auc_score

    rows = [row for row in charge_by_word(sentences) if is_counted(row.word)]
    sums: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for row in rows:
        sums[is_function_word(row.word)].append((row.mean, row.count))
    means = {
        kind: sum(mean * count for mean, count in own) / sum(count for _, count in own)
        for kind, own in sums.items()
    }
    scores = [row.mean for row in rows]
    content = [not is_function_word(row.word) for row in rows]
    counts = [row.count for row in rows]
    kept = [row for row, of_content in zip(rows, content, strict=True) if of_content]
    ranks = spearmanr([row.mean for row in kept], [frequencies[row.word] for row in kept])
    return {
        "content": round(means[False], 4),
        "function": round(means[True], 4),
        "difference": round(means[False] - means[True], 4),
        "auc": round(float(roc_auc_score(content, scores, sample_weight=counts)), 4),
        "frequency": round(float(ranks.statistic), 4),
        "content_words": sum(count for _, count in sums[False]),
        "function_words": sum(count for _, count in sums[True]),
    }


def models(options: argparse.Namespace, texts: Any) -> Iterator[tuple[str, int, str, Any]]:
    """Kind, seed and metric of all models, with what `charged` takes, one after the other."""
    poem = find_experiment("poem")
    layer, length = poem.settings.layer, poem.settings.max_length
    tokenizer, model = load_encoder(options.model, 4, texts)
    control = model, TextInputs(tokenizer, length), atomsep.attach(model, layer)
    yield "pretrained", 0, "", control
    settings = [f"model={options.model}", f"epochs={EPOCHS}", f"learning_rate={RATE}"]
    settings += [f"evaluate_every={EPOCHS}", f"weight={WEIGHT}"]
    place = Machine(options.device, data=options.data, tensorboard=False)
    for seed in range(options.seeds):
        for kind, (method, more) in KINDS.items():
            key = run_key(poem, method, seed, [*settings, *more])
            result = train(poem, key, options.runs, place)
            run = load_run(key.folder(options.runs))
            attachment = run.attachment or atomsep.attach(run.model, layer)
            yield kind, seed, f"{result['metrics']['f1']:.4f}", (run.model, run.inputs, attachment)


def study(options: argparse.Namespace) -> None:
    """Train, measure, and write both tables."""
    settings = find_experiment("poem").settings
    fabric = make_fabric(Machine("cpu"), settings.precision)
    (train_set, test), (_, dev) = (
        read_poem(Context(settings, "plain", 0, fabric, options.data, validation=validation))
        for validation in (False, True)
    )
    texts = dev.stored + test.stored
    frequencies = Counter(re.findall(r"[a-z]+", " ".join(train_set.stored + texts).lower()))
    rows, by_word = [], []
    for kind, seed, metric, charging in models(options, train_set.stored):
        sentences = charged(*charging, texts)
        rows.append({"model": kind, "seed": seed, "f1": metric, **measured(sentences, frequencies)})
        rows[-1] |= {"verses": len(texts), "machine": machine(), "torch": torch.__version__}
        by_word += [
            {"model": kind, "seed": seed, "word": row.word, "mean": round(row.mean, 4)}
            | {"count": row.count, "function": int(is_function_word(row.word))}
            for row in charge_by_word(sentences, LEAST)
            if is_counted(row.word)
        ]
        print(rows[-1], flush=True)
    write("words", rows)
    write("words_by_word", by_word)


def write(topic: str, rows: list[dict[str, Any]]) -> None:
    """Write a table; one of an earlier study is replaced."""
    with (FOLDER / f"{topic}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--model", required=True, help="folder of a pretrained encoder with its tokenizer"
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder that has poem/")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/words"))
    parser.add_argument("--device", default="auto")
    study(parser.parse_args())


if __name__ == "__main__":
    main()
