"""Any task with prompts and answers, defined only by a YAML: a template over the columns of a
record, the column of the answers, an existing metric.

    target: tasks.prompted:Prompted
    prompt: "{context}\\n\\nQuestion: {question}\\nAnswer:"
    query: question
    answers_in: answers
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tasks.base import DataError, Row
from tasks.loading import prompts, records
from tasks.loading.reader import Reader
from tasks.metrics.retrieval import References

TRUNCATED = ("end", "middle")


@dataclass(frozen=True)
class Prompted(Reader):
    """Rows that are complete prompts.

    prompt      the template; {column} is a column's text. {a.b} is b of the object in column a,
                {a.0} the first of a list; a list's texts become lines
    query       the column of the question, whose tokens are the VIP tokens. "": none
    answers_in  the column of the right answer, or of a list of them
    answer_after  the text before the right answer in that column, such as ####. "": none
    id_in       the column of a row's id; "": rows are numbered
    labels_in   the column of all possible answers; some metrics need it
    truncate    the part that a prompt that is too long loses: the end of the text before the query,
                or the middle of the prompt
    default_split  "": test, or if it has no files the first split that has some
    texts       the text for a value of a column, such as of a class number: column → value →
                text
    """

    prompt: str = ""
    query: str = ""
    answers_in: str = "answer"
    answer_after: str = ""
    id_in: str = ""
    labels_in: str = ""
    truncate: str = "end"
    texts: Mapping[str, Mapping[Any, str]] = field(default_factory=dict, hash=False)
    default_split: str = ""

    has_embedded: ClassVar = False
    kinds: ClassVar = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.default_split:
            split = "test" if "test" in self.files else next(iter(self.files), "test")
            object.__setattr__(self, "default_split", split)
        self.check_choice("truncate", TRUNCATED)
        if self.prompt and self.query and self.query not in self._columns():
            raise ValueError(
                f"{self.name}: query={self.query} is no column of its prompt; "
                f"accepted: {', '.join(self._columns()) or 'none'}"
            )

        if self.answers_in in self._columns():
            raise ValueError(
                f"{self.name}: its prompt has the column of the right answer, {self.answers_in}"
            )

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        values = {name: self._text(record, name, where) for name in self._columns()}
        before, asked, after = self.template().partition(f"{{{self.query}}}")
        if not self.query:
            before, asked, after = self.template(), "", ""
        labels = records.texts(record, self.labels_in, where) if self.labels_in else ()
        if self.labels_in and not labels:
            raise DataError(f"{where}: column '{self.labels_in}' is empty, expected all answers")
        if self.answers_in in self.texts:
            value = records.column(record, self.answers_in, where)
            listed = value if isinstance(value, list) else [] if value is None else [value]
            record = {self.answers_in: [self._spelled(self.answers_in, v, where) for v in listed]}
        answers = self.right_answers(record, self.answers_in, where)
        if self.answer_after:
            answers = tuple(self._after(answer, where) for answer in answers)
        row_id = f"{at:05d}"
        if self.id_in:
            row_id = records.spelled(records.column(record, self.id_in, where), self.id_in, where)
        return prompts.Prompt(
            id=row_id,
            query=values.get(self.query, "") if asked else "",
            document=_filled(before, values),
            references=References(answers, values.get(self.query, ""), labels),
            ending=_filled(after, values),
        )

    def template(self) -> str:
        return self.prompt

    @property
    def cut(self) -> str:
        return self.truncate

    def _columns(self) -> list[str]:
        """The columns in the template, in order. Raises ValueError for a broken template."""
        try:
            parts = list(string.Formatter().parse(self.template()))
        except ValueError as error:
            raise ValueError(f"{self.name}: prompt {self.template()!r:.60}: {error}") from None
        return list(dict.fromkeys(name for _, name, _, _ in parts if name))

    def _text(self, record: dict[str, Any], name: str, where: str) -> str:
        value = records.column(record, name, where)
        if name in self.texts:
            return self._spelled(name, value, where)
        listed = value if isinstance(value, list) else [value]
        return "\n".join(records.spelled(one, name, where) for one in listed)

    def _spelled(self, name: str, value: Any, where: str) -> str:
        """The text of a value, from `texts`."""
        by_value = {_key(key): text for key, text in self.texts[name].items()}
        if (key := _key(value)) not in by_value:
            known = ", ".join(by_value)
            raise DataError(f"{where}: column '{name}' holds {value!r:.40}; texts has {known}")
        return str(by_value[key])

    def _after(self, answer: str, where: str) -> str:
        _, mark, right = answer.rpartition(self.answer_after)
        if not mark:
            raise DataError(
                f"{where}: column '{self.answers_in}' holds {answer!r:.60} without "
                f"answer_after={self.answer_after}"
            )
        return right.strip()


def _key(value: Any) -> str:
    """A value as text, with true and false as in JSON: Python and YAML write them differently."""
    text = str(value)
    return text.lower() if text in ("True", "False") else text


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its columns filled in; {{ and }} are braces."""
    parts = string.Formatter().parse(template)
    return "".join(text + (values[name] if name else "") for text, name, _, _ in parts)
