"""Metrics on answers: F1 and exact match after normalisation, letters, percentages, orders.

Each function scores one prediction, as the named evaluator does, quirks included.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """SQuAD's normalisation (SCROLLS metrics/f1.py): lower case, ASCII punctuation deleted with
    no blank in its place, the words a, an, the dropped, blanks collapsed. So "(A) x" equals "x",
    but "(B) x" doesn't, and "state-of-the-art" is one word."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normalize_ascii(text: str) -> str:
    """ZeroSCROLLS' normalisation: the same, then unidecode. Coming last it turns curly quotes
    and dashes into ASCII punctuation that stays inside the words."""
    from unidecode import unidecode

    return unidecode(normalize(text))


def f1(prediction: str, references: Sequence[str]) -> float:
    """Best F1, in 0…1, of the bags of words over references. Two empty bags score 0."""
    given = normalize(prediction)
    return max(_bag_f1(given, normalize(reference)) for reference in references)


def f1_ascii(prediction: str, references: Sequence[str]) -> float:
    """`f1` with ZeroSCROLLS' normalisation."""
    given = normalize_ascii(prediction)
    return max(_bag_f1(given, normalize_ascii(reference)) for reference in references)


def _bag_f1(prediction: str, reference: str) -> float:
    found, wanted = Counter(prediction.split()), Counter(reference.split())
    shared = (found & wanted).total()
    return 2 * shared / (found.total() + wanted.total()) if shared else 0.0


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if a reference is the same after normalisation. Two empty answers match."""
    return float(any(normalize(prediction) == normalize(reference) for reference in references))


def letter(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction's first A, B, C or D that stands alone is the reference (ZeroSCROLLS
    quality). Case counts: "A good answer is B" answers A."""
    found = re.search(r"\b[A-D]\b", prediction)
    return float(found is not None and found[0] in references)


def exp_similarity(prediction: str, references: Sequence[str]) -> float:
    """0.5 ** (|difference| / 10) of the first percentages, 0 without one (ZeroSCROLLS
    space_digest). A reference without a percentage raises ValueError."""

    def percentage(text: str) -> float | None:
        found = re.search(r"\d+\.?\d*%", text)
        return float(found[0][:-1]) if found else None

    given = percentage(prediction)
    wanted = [value for value in map(percentage, references) if value is not None]
    if len(wanted) < len(references):
        raise ValueError(f"reference without a percentage: {references}")
    if given is None:
        return 0.0
    return max(math.pow(0.5, abs(given - value) / 10) for value in wanted)


def concordance_index(prediction: str, references: Sequence[str]) -> float:
    """Share of pairs in the right order; 0 unless the ids are the reference's (ZeroSCROLLS
    book_sum_sort). Brackets are deleted, so "[2][1]" reads 21. One id alone has no pairs and
    raises ZeroDivisionError, as in the official code."""

    def ids(text: str) -> list[int]:
        return [int(i) for i in re.sub(r"[^\d\s,]", "", text).replace(",", " ").split()]

    def concordance(given: list[int], wanted: list[int]) -> float:
        if sorted(given) != sorted(wanted):
            return 0.0
        place = {item: at for at, item in enumerate(given)}
        pairs = [(a, b) for at, a in enumerate(wanted) for b in wanted[at + 1 :]]
        return sum(place[a] < place[b] for a, b in pairs) / len(pairs)

    given = ids(prediction)
    return max(concordance(given, ids(reference)) for reference in references)


def last_number(prediction: str) -> int:
    """The last run of digits, -1 without one (LongEval lines): "42,527" reads 527."""
    found = re.findall(r"\d+", prediction)
    return int(found[-1]) if found else -1


def last_number_match(prediction: str, references: Sequence[int | str]) -> float:
    """1 if the prediction's last number is the reference."""
    return float(last_number(prediction) == int(references[0]))


def contains(prediction: str, references: Sequence[str]) -> float:
    """1 if a reference's words stand in the prediction side by side after normalisation. An
    offline stand-in for LongEval's judge of topics, with a name of its own: it doesn't know
    synonyms, and takes an answer that lists all topics."""
    said = f" {normalize(prediction)} "
    return float(any(f" {normalize(reference)} " in said for reference in references))


def judged_line(line: str) -> tuple[str, str]:
    """(label, prediction) that LongEval's topic judge reads from its own log line. It splits at
    commas, so an answer with a comma is cut there, and a leading apostrophe stays."""
    label, prediction = line.split(",")[:2]
    return label.split("Label: ")[1], prediction.split("Predict: [")[1].removesuffix("']")


def argmax_match(scores: Sequence[float], references: Sequence[int]) -> float:
    """1 if the highest score, the first of equals, is the label's (LRA)."""
    return float(max(range(len(scores)), key=scores.__getitem__) == references[0])


def class_match(prediction: str | Sequence[float], references: Sequence[str | int]) -> float:
    """1 if the class is the label: a class number as text, or the scores of all classes (LRA)."""
    if isinstance(prediction, str):
        return float(prediction.strip() == str(references[0]))
    return argmax_match(prediction, [int(references[0])])


def strict_match(prediction: str, references: Sequence[str]) -> float:
    """1 if a reference is the very same text (KILT accuracy)."""
    return float(prediction in references)
