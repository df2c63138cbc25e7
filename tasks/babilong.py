"""BABILong (Kuratov et al., 2024, arXiv:2406.10149): bAbI facts at random places in long prose.

`data=embedded` simulates the first ten kinds (tasks.generators.babi) between the project's own
prose; `data=local` takes the official rows ({input, question, target}, one file a kind and length).
The prompt has instructions and the format of the answer, without the official examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from tasks.base import DataError, Row
from tasks.generated import Generated, Sample, spread
from tasks.generators import babi, filler
from tasks.loading import prompts, records
from tasks.metrics.retrieval import References

INTRO = (
    "I will give you context with the facts hidden in some random text and a question. You need to "
    "answer the question based only on the information from the facts.\n\n<context>\n"
)
CLOSING = "\n</context>\n\nQuestion: {}\nAnswer with {} only."
FORMATS = {
    "qa5": "one name or one object",
    "qa6": "'yes' or 'no'",
    "qa7": "'none', 'one', 'two' or 'three'",
    "qa8": "the objects, separated by commas, or 'nothing'",
    "qa9": "'yes' or 'no'",
    "qa10": "'yes', 'no' or 'maybe'",
}


@dataclass(frozen=True)
class BabiLong(Generated):
    """One kind: `member` is one of qa1 … qa10."""

    kinds: ClassVar = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("member", babi.LABELS)

    def generate(self, rng: Random, split: str, length: int) -> Sample:
        facts, question, answer = babi.sample(self.member, rng)
        sentences = filler.prose(rng)
        state = rng.random()

        def document(units: int) -> str:
            text = spread(Random(f"{state}"), facts, sentences.first(units))
            return INTRO + " ".join(text)

        return Sample(
            document, self._closing(question), self._answers(question, answer), "\nAnswer:"
        )

    def perfect(self, row: Row) -> str:
        return row.references[0]

    def official_row(self, record: dict[str, Any], where: str, at: int) -> Row:
        text, question, target = (
            records.text(record, name, where) for name in ("input", "question", "target")
        )
        labels = babi.LABELS[self.member]
        accepted = {label.lower() for label in labels}
        if not {part.strip() for part in target.lower().split(",")} <= accepted:
            raise DataError(
                f"{where}: column 'target' holds {target!r:.40}, which {self.member} doesn't ask "
                f"for; accepted: {', '.join(labels)}"
            )
        return prompts.Prompt(
            id=f"{at:04d}",
            query=self._closing(question),
            document=INTRO + text,
            references=self._answers(question, target),
            ending="\nAnswer:",
        )

    def _closing(self, question: str) -> str:
        return CLOSING.format(question, FORMATS.get(self.member, "the place"))

    def _answers(self, question: str, answer: str) -> References:
        return References((answer,), question, babi.LABELS[self.member])
