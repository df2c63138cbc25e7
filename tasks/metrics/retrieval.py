"""Metrics of the long-context suites whose answers are hidden in the input: RULER, GraphWalks,
BABILong, LongBench and InfiniteBench.

Each function scores one prediction as the named evaluator does, including its quirks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence


class References(tuple[str, ...]):
    """The right answers of a row, with further data that a metric needs.

    question  the question, if labels that it names don't count
    labels    all possible answers, if they are few
    """

    question: str
    labels: tuple[str, ...]

    def __new__(
        cls, answers: Iterable[str], question: str = "", labels: Sequence[str] = ()
    ) -> References:
        made = super().__new__(cls, answers)
        made.question, made.labels = question, tuple(labels)
        return made


def context(references: Sequence[str]) -> References:
    return references if isinstance(references, References) else References(references)


# --- RULER (scripts/eval/evaluate.py, scripts/eval/synthetic/constants.py) ------------------------


def _cleaned(prediction: str) -> str:
    return re.sub(r"[\x00-\x1f]", "\n", prediction.strip()).strip().lower()


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """The share of the references that are in the prediction, also inside longer words or numbers.
    Extra answers aren't penalised: repeating the whole input scores 1."""
    text = _cleaned(prediction)
    return sum(reference.lower() in text for reference in references) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """1 if any reference is in the prediction, also inside a longer word."""
    text = _cleaned(prediction)
    return float(any(reference.lower() in text for reference in references))


def words_match_all(prediction: str, references: Sequence[str]) -> float:
    """`string_match_all` restricted to whole words and numbers; RULER's metric isn't."""
    text = _cleaned(prediction)
    found = (re.search(rf"(?<!\w){re.escape(one.lower())}(?!\w)", text) for one in references)
    return sum(match is not None for match in found) / len(references)


# --- GraphWalks (dataset card) --------------------------------------------------------------------


def set_f1(prediction: str, references: Sequence[str]) -> float:
    """F1 of the set in the brackets of "Final Answer: [a, b]" in the very last line; without it the
    set is empty. If the right set is empty, "Final Answer: []" scores 1, any other answer 0."""
    found = re.search(r"Final Answer:\s*\[(.*)\]", prediction.split("\n")[-1])
    answers = {node for part in found[1].split(",") if (node := part.strip())} if found else set()
    right = set(references)
    if not right:
        return float(found is not None and not answers)
    shared = len(answers & right)
    return 2 * shared / (len(answers) + len(right)) if shared else 0.0


# --- BABILong (babilong/metrics.py) ---------------------------------------------------------------


def label_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the labels in the first sentence, except those named in the question, are the target:
    one label, or several joined by commas. Labels are also found inside words: "none" contains
    "one", so the right answer "none" is always wrong, as in the official code."""
    given = context(references)
    text = prediction.lower().split(".")[0].split("<context>")[0].split("<example>")[0]
    labels = {label.lower() for label in given.labels}
    named = {label for label in labels if label in given.question.lower()}
    found = {label for label in labels if label in text} - named
    target = references[0].lower()
    wanted = target.split(",") if "," in target and len(target) > 3 else [target]
    return float(len(found) == len(wanted) and all(label in found for label in wanted))


# --- LongBench (metrics.py, eval.py), LongBench v2 (pred.py) --------------------------------------


def of_first_line(
    score: Callable[[str, Sequence[str]], float],
) -> Callable[[str, Sequence[str]], float]:
    """The metric applied to the answer up to where it continues a few-shot prompt with examples."""

    def scored(prediction: str, references: Sequence[str]) -> float:
        return score(prediction.lstrip("\n").split("\n")[0], references)

    return scored


def _share_of_numbers(prediction: str, right: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(right) / len(numbers) if numbers else 0.0


def count(prediction: str, references: Sequence[str]) -> float:
    """The share of the right number among all numbers of the answer."""
    return max(_share_of_numbers(prediction, reference) for reference in references)


def retrieval(prediction: str, references: Sequence[str]) -> float:
    """`count` of the number in a reference "Paragraph 3". Raises ValueError for one without it."""

    def number(reference: str) -> str:
        if not (found := re.search(r"(?:Paragraph |段落)(\d+)", reference)):
            raise ValueError(f"reference {reference!r} names no paragraph")
        return found[1]

    return count(prediction, [number(reference) for reference in references])


def classification(prediction: str, references: Sequence[str]) -> float:
    """1 / the number of classes in the answer if the right one is among them, else 0; a class that
    is a part of the right one doesn't count. The official code removes classes from a list while it
    loops over it, so the class after each removed one is skipped and stays."""
    given, text = context(references), prediction

    def score(right: str) -> float:
        found = [label for label in given.labels if label in text]
        for label in found:  # as in the official code: the list shrinks during the loop
            if label in right and label != right:
                found.remove(label)
        return 1 / len(found) if right in found else 0.0

    return max(map(score, references))


def edit_similarity(prediction: str, references: Sequence[str]) -> float:
    """fuzzywuzzy's ratio, to whole percent, of the first line of code: the first without a
    backquote, # or //."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((x for x in lines if not re.search("`|#|//", x)), "")
    ratios = (difflib.SequenceMatcher(None, line, right).ratio() for right in references)
    return max(round(100 * ratio) / 100 for ratio in ratios)


def choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the letter after "The correct answer is", in brackets or not, is the reference."""
    text = prediction.replace("*", "")
    found = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(
        r"The correct answer is ([A-D])", text
    )
    return float(found is not None and found[1] in references)


# --- InfiniteBench (src/compute_scores.py) --------------------------------------------------------


def first_int(prediction: str, references: Sequence[str]) -> float:
    """1 if the first run of digits is the reference, as text."""
    found = re.search(r"\d+", prediction)
    return float(found is not None and found[0] == references[0])


def word_in(prediction: str, references: Sequence[str]) -> float:
    """1 if the reference is a word of the prediction, after punctuation is replaced by blanks."""
    return float(references[0] in re.sub(r"[\n:\"'.,?!{}]", " ", prediction).split())


# --- MRCR (dataset card) --------------------------------------------------------------------------


def similarity(prediction: str, references: Sequence[str]) -> float:
    """difflib's ratio after the required beginning of the answer; 0 if the answer doesn't begin
    with it."""
    given = context(references)
    start, *_ = given.labels or ("",)
    if not prediction.startswith(start):
        return 0.0
    answer, right = (text.removeprefix(start) for text in (prediction, references[0]))
    return difflib.SequenceMatcher(None, answer, right).ratio()
