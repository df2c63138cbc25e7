"""The three generated tasks of InfiniteBench (Zhang et al., 2024, arXiv:2402.13718): a pass key, a
number with repeated digits, and a value in a JSON object.

After data/construct_synthetic_dataset.py; its random state is unseeded, while here it is the row's.
Official rows ({context, input, answer}) that are too long lose their middle, which may contain the
answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from tasks.base import Row
from tasks.generated import Generated, Sample
from tasks.generators import filler
from tasks.loading import prompts, records

HIDDEN = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I "
    "will quiz you about the important information there.\n\n"
)
KEY = "The pass key is {0}. Remember it. {0} is the pass key."
NUMBER = "The sequence of digits is {0}. Remember it. {0} is the sequence of digits."
ASKED = {"passkey": "What is the pass key?", "number_string": "What is the sequence of digits?"}
ENDING = {"passkey": "\n\nThe pass key is", "number_string": "\n\nThe sequence of digits is"}
JSON = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
)


@dataclass(frozen=True)
class InfiniteBench(Generated):
    """`member` is passkey, number_string or kv_retrieval. The official prompts contain the
    beginning of an answer only for a base model. In a chat it follows the header of the assistant's
    turn, so that the few new tokens continue it."""

    begins_answer: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("member", (*ASKED, "kv_retrieval"))

    def generate(self, rng: Random, split: str, length: int) -> Sample:
        if self.member == "kv_retrieval":
            return _key_value(rng)
        if self.member == "passkey":
            hidden, fact = filler.number(rng, 5), KEY
        else:
            hidden, fact = _repeating(rng), NUMBER
        depth = rng.random()

        def document(units: int) -> str:
            lines = [filler.NOISE] * units
            lines.insert(round(depth * units), fact.format(hidden))
            return HIDDEN + "\n".join(lines)

        asked = "\n\n" + ASKED[self.member]
        return Sample(document, asked, (hidden,), ENDING[self.member])

    def official_row(self, record: dict[str, Any], where: str, at: int) -> Row:
        context, asked = (records.text(record, name, where) for name in ("context", "input"))
        head = JSON if self.member == "kv_retrieval" else HIDDEN
        return prompts.Prompt(
            id=records.spelled(record.get("id", at), "id", where),
            query=f"\n\n{asked}",
            document=head + context,
            references=self.right_answers(record, "answer", where),
            ending=ENDING.get(self.member, ""),
            begins_answer=True,
        )


def _repeating(rng: Random) -> str:
    """Ten digits, each of which may repeat the previous one."""
    digits = [rng.choice("0123456789")]
    while len(digits) < 10:
        digits.append(digits[-1] if rng.random() < 0.5 else rng.choice("0123456789"))
    return "".join(digits)


def _key_value(rng: Random) -> Sample:
    """The value of one of the keys of an object of UUIDs."""
    ids = filler.different(lambda: filler.identifier(rng), set())
    others = filler.Endless(lambda: f"{json.dumps(next(ids))}: {json.dumps(next(ids))}")
    key, value, depth = next(ids), next(ids), rng.random()

    def document(units: int) -> str:
        pairs = others.first(units)
        pairs.insert(round(depth * units), f"{json.dumps(key)}: {json.dumps(value)}")
        return f"{JSON}{{{', '.join(pairs)}}}"

    asked = f'\n\nKey: "{key}"\nCorresponding value: '
    return Sample(document, asked, (value,))
