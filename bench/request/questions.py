"""When and how often a text is asked: `question=after` reads the question after the KV cache of the
text is made, `turns=3` asks three questions on the same cache, one after the other. No torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.errors import RequestError, unknown
from bench.models import auto
from bench.request import plugins
from tasks.base import Row, Task
from tasks.loading.prompts import Prompt

AFTER = "after"
NOT_DECODERS = {*auto.FAMILIES.values(), *auto.OWN_HEADS.values(), *auto.HUB_HEADS.values()} - {
    auto.DECODER
}


def given(request: Mapping[str, Any]) -> str:
    """What a request asks for beyond one question in the prompt, in its own words; "": nothing."""
    turns = request.get("turns") or 1
    words = [f"question={request['question']}"] if request.get("question") else []
    return " ".join([*words, *([f"turns={turns}"] if turns != 1 else [])])


def check_values(request: Mapping[str, Any]) -> None:
    """Raises RequestError for values that aren't accepted."""
    if request.get("question") not in (None, AFTER):
        raise unknown("question", request["question"], [AFTER, "null"])
    turns = request.get("turns", 1)
    if turns is None or turns < 1:
        raise RequestError(f"turns={turns} is not accepted: it must be 1 or more")
    if given(request) and request["batch"] != 1:
        raise RequestError(
            f"{given(request)} reads one row at a time, as questions differ in length: batch=1, "
            f"given: batch={request['batch']}"
        )


def check_model(request: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raises RequestError for a model that is no decoder."""
    if given(request) and model["family"] in NOT_DECODERS:
        raise RequestError(no_decoder(given(request), model["name"]))


def no_decoder(words: str, model: str) -> str:
    return (
        f"{words}: model {model} reads text and question together in its encoder; it takes a "
        "decoder, such as model=embedded-llama"
    )


def asking(task: Task, turns: int) -> Task:
    """The task with this number of questions on each text. Raises RequestError for a task that
    has one question."""
    if turns == 1:
        return task
    with contextlib.suppress(ValueError, TypeError):
        return replace(task, turns=turns)  # type: ignore[call-arg]
    raise RequestError(
        f"task {task.name} has no {turns} questions on one text: turns={turns} is for "
        f"{', '.join(_tasks_with(turns))}"
    )


def _tasks_with(turns: int) -> Sequence[str]:
    found = []
    for name, conf in plugins.usable("task").items():
        with contextlib.suppress(RequestError, ValueError, TypeError):
            replace(plugins.build(conf, Task), turns=turns)
            found.append(name)
    return found or ["none"]


def check_rows(rows: Sequence[Row], request: Mapping[str, Any]) -> None:
    """Raises RequestError for rows that can't be asked so: where a prompt's question doesn't stand
    apart at its end, or a text has too few further ones."""
    turns = request.get("turns") or 1
    for row in rows if given(request) else ():
        if not isinstance(row, Prompt) or not row.query:
            raise RequestError(
                f"{given(request)}: task {request['task']['name']} has no question of its own at "
                f"the end of its prompts (row {row.id})"
            )
        if len(row.further) < turns - 1:
            raise RequestError(
                f"turns={turns}: row {row.id} of task {request['task']['name']} has "
                f"{len(row.further) + 1} questions on its text"
            )


def asked(rows: Sequence[Row], turns: int) -> Sequence[Row]:
    """A row for each question: those of a text follow one another."""
    if turns == 1:
        return rows
    texts = [row for row in rows if isinstance(row, Prompt)]
    return [one for row in texts for one in (replace(row, further=()), *row.further)]
