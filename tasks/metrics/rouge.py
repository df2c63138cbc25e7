"""ROUGE in the four variants that the benchmarks use, which differ by several points.

scrolls      rouge_score, no stemmer; R1, R2, RL
stemmed      rouge_score with stemmer and rougeLsum, the closest to ROUGE-1.5.5's ROUGE-L
package      the package `rouge` 1.0.1 (KILT): case-sensitive sets of words, split at full stops
package_stemmed   the same on Porter-stemmed words (ELI5)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

TYPES = ("rouge1", "rouge2", "rougeL")


@functools.cache
def _scorer(types: tuple[str, ...], stem: bool) -> Any:
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(types, use_stemmer=stem)


# A row is scored twice, for the official figures and for the interval, and ROUGE-L is slow.
@functools.lru_cache(maxsize=4096)
def _best(
    types: tuple[str, ...], stem: bool, prediction: str, references: tuple[str, ...]
) -> dict[str, float]:
    scores = [_scorer(types, stem).score(reference, prediction) for reference in references]
    return {kind: 100 * max(score[kind].fmeasure for score in scores) for kind in types}


def scrolls(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """R1, R2, RL F-measures in 0…100 without stemming, each the best over references, so R1 and R2
    may come from different references (SCROLLS metrics/rouge.py).

    The official code first puts every sentence on a separate line. That affects only rougeLsum,
    which isn't part of the score, so no sentence splitter is needed here. Every character except
    [a-z0-9] separates words: accented and CJK text scores 0 against itself.
    """
    return dict(_best(TYPES, False, prediction, tuple(references)))


def stemmed(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """R1, R2, RL and RLsum F-measures in 0…100 with Porter stemming. A line is a sentence."""
    return dict(_best((*TYPES, "rougeLsum"), True, prediction, tuple(references)))


def package(prediction: str, reference: str) -> dict[str, dict[str, float]]:
    """{rouge-1, rouge-2, rouge-l: {r, p, f}} in 0…1 as computed by `rouge` 1.0.1: of sets of
    n-grams, and for rouge-l of the union of longest common subsequences over sentences. All 0 for
    texts without words, on which the package fails."""
    predicted, wanted = _sentences(prediction), _sentences(reference)
    figures = {}
    for order in (1, 2):
        ours, right = _grams(predicted, order), _grams(wanted, order)
        figures[f"rouge-{order}"] = _rpf(len(ours & right), len(right), len(ours))
    shared: set[str] = set()
    for sentence in wanted:
        for other in predicted:
            shared |= set(_common(sentence.split(" "), other.split(" ")))
    figures["rouge-l"] = _rpf(len(shared), len(_grams(wanted, 1)), len(_grams(predicted, 1)))
    return figures


def longbench(prediction: str, references: Sequence[str]) -> float:
    """`package`'s F of rouge-l, the best over references (LongBench metrics.py)."""
    return max(package(prediction, answer)["rouge-l"]["f"] for answer in references)


def package_stemmed(prediction: str, reference: str) -> dict[str, dict[str, float]]:
    """`package` after NLTK's Porter stemmer on words split at blanks (ELI5's
    model_code/compute_rouge.py)."""
    return package(_stem(prediction), _stem(reference))


@functools.cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


def _stem(text: str) -> str:
    return " ".join(_stemmer().stem(word) for word in text.split())


def _sentences(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(".") if part]


def _grams(sentences: list[str], order: int) -> set[tuple[str, ...]]:
    words = [word for sentence in sentences for word in sentence.split(" ")]
    return {tuple(words[at : at + order]) for at in range(len(words) - order + 1)}


def _rpf(shared: int, wanted: int, predicted: int) -> dict[str, float]:
    recall = shared / wanted if wanted else 0.0
    precision = shared / predicted if predicted else 0.0
    f = 2 * (precision * recall / (precision + recall + 1e-8))
    return {"r": recall, "p": precision, "f": f}


def _common(left: list[str], right: list[str]) -> list[str]:
    """A longest common subsequence; of several, the one that `rouge` finds by backtracking."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left, start=1):
        for j, b in enumerate(right, start=1):
            table[i][j] = (
                table[i - 1][j - 1] + 1 if a == b else max(table[i - 1][j], table[i][j - 1])
            )
    words, i, j = [], len(left), len(right)
    while i and j:
        if left[i - 1] == right[j - 1]:
            words.append(left[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words[::-1]
