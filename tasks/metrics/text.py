"""Metrics of short answers: F1 and exact match after normalisation, letters, percentages, orders.

Each function scores one prediction as the named evaluator does, including its quirks.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """SQuAD's normalisation (SCROLLS metrics/f1.py): lower case, ASCII punctuation deleted (not
    replaced by blanks), the words a, an, the removed, blanks collapsed. So "(A) x" equals "x", but
    "(B) x" doesn't, and "state-of-the-art" is one word."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normalize_ascii(text: str) -> str:
    """ZeroSCROLLS' normalisation: the same, then unidecode. Curly quotes and dashes become ASCII
    punctuation that remains in the words."""
    from unidecode import unidecode

    return unidecode(normalize(text))


def f1(prediction: str, references: Sequence[str]) -> float:
    """F1 of the bags of words in 0…1, the best over references. Two empty bags score 0."""
    text = normalize(prediction)
    return max(_bag_f1(text, normalize(reference)) for reference in references)


def f1_ascii(prediction: str, references: Sequence[str]) -> float:
    """`f1` with ZeroSCROLLS' normalisation."""
    text = normalize_ascii(prediction)
    return max(_bag_f1(text, normalize_ascii(reference)) for reference in references)


def _bag_f1(prediction: str, reference: str) -> float:
    predicted, wanted = Counter(prediction.split()), Counter(reference.split())
    shared = (predicted & wanted).total()
    return 2 * shared / (predicted.total() + wanted.total()) if shared else 0.0


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if a reference is equal after normalisation. Two empty answers match."""
    return float(any(normalize(prediction) == normalize(reference) for reference in references))


def letter(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction's first A, B, C or D that is a separate word is the reference
    (ZeroSCROLLS quality). Case-sensitive: "A good answer is B" answers A."""
    match = re.search(r"\b[A-D]\b", prediction)
    return float(match is not None and match[0] in references)


def exp_similarity(prediction: str, references: Sequence[str]) -> float:
    """0.5 ** (|difference| / 10) of the first percentages, 0 without one (ZeroSCROLLS
    space_digest). Raises ValueError for a reference without a percentage."""

    def percentage(text: str) -> float | None:
        match = re.search(r"\d+\.?\d*%", text)
        return float(match[0][:-1]) if match else None

    predicted = percentage(prediction)
    wanted = [value for value in map(percentage, references) if value is not None]
    if len(wanted) < len(references):
        raise ValueError(f"reference without a percentage: {references}")
    if predicted is None:
        return 0.0
    return max(math.pow(0.5, abs(predicted - value) / 10) for value in wanted)


def concordance_index(prediction: str, references: Sequence[str]) -> float:
    """Share of pairs in the right order; 0 unless the ids are the reference's (ZeroSCROLLS
    book_sum_sort). Brackets are deleted, so "[2][1]" is read as 21. A single id has no pairs and
    raises ZeroDivisionError, as in the official code."""

    def ids(text: str) -> list[int]:
        return [int(i) for i in re.sub(r"[^\d\s,]", "", text).replace(",", " ").split()]

    def concordance(predicted: list[int], wanted: list[int]) -> float:
        if sorted(predicted) != sorted(wanted):
            return 0.0
        place = {item: at for at, item in enumerate(predicted)}
        pairs = [(a, b) for at, a in enumerate(wanted) for b in wanted[at + 1 :]]
        return sum(place[a] < place[b] for a, b in pairs) / len(pairs)

    predicted = ids(prediction)
    return max(concordance(predicted, ids(reference)) for reference in references)


def last_number(prediction: str) -> int:
    """The last run of digits, -1 without one (LongEval lines): "42,527" is read as 527."""
    numbers = re.findall(r"\d+", prediction)
    return int(numbers[-1]) if numbers else -1


def last_number_match(prediction: str, references: Sequence[int | str]) -> float:
    """1 if the prediction's last number is the reference. Raises ValueError for a reference that
    isn't a whole number; it may have commas."""
    try:
        right = int(str(references[0]).replace(",", ""))
    except ValueError:
        raise ValueError(f"reference {references[0]!r:.60} is no whole number") from None
    return float(last_number(prediction) == right)


def contains(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction contains a reference's words, adjacent and in order, after normalisation.
    An offline substitute for LongEval's topic judge, under another name: it doesn't recognise
    synonyms, and accepts an answer that lists all topics."""
    text = f" {normalize(prediction)} "
    return float(any(f" {normalize(reference)} " in text for reference in references))


def auto_eval_pair(label: str, prediction: str) -> tuple[str, str]:
    """The label and the answer that LongEval's auto_topic_eval.py shows its judge. It splits the
    line of its log, "Label: …, Predict: ['…'], …", at commas: the text after the first comma of an
    answer is lost, and so are two characters before that comma."""
    # In an official output file, an answer already is such a list.
    logged = prediction if prediction[:2] in ("['", '["') else str([prediction])
    first, second, *_ = f"Label: {label}, Predict: {logged},".split(",")
    return first.replace("Label: ", ""), second.replace("Predict: ", "")[2:-2]


def contains_auto_eval(prediction: str, references: Sequence[str]) -> float:
    """`contains`, applied to the text that LongEval's judge is shown."""
    label, answer = auto_eval_pair(references[0], prediction)
    return contains(answer, [label])


def argmax_match(scores: Sequence[float], references: Sequence[int]) -> float:
    """1 if the highest score, the first of equal ones, is the label's (LRA)."""
    return float(max(range(len(scores)), key=scores.__getitem__) == references[0])


def class_match(prediction: str | Sequence[float], references: Sequence[str | int]) -> float:
    """1 if the class is the label; a prediction is a class number as text, or the scores of all
    classes (LRA)."""
    if isinstance(prediction, str):
        return float(prediction.strip() == str(references[0]))
    return argmax_match(prediction, [int(references[0])])


def strict_match(prediction: str, references: Sequence[str]) -> float:
    """1 if a reference is the identical text (KILT accuracy)."""
    return float(prediction in references)
