"""Predictions of one method, sent to the supervisor batch by batch, which stores them.

A task's references never enter the process in which a method runs, and no method's process writes
into the folder of results. Another process scores the stored predictions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, cast

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.host import linux
from bench.measure import finite, integrity, likelihood
from bench.measure.perturbed_inputs import Input
from bench.models.base import Decoding, Family
from bench.models.conversing import Conversing
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows import columns
from methods.base import SequenceInfo
from tasks.base import Encoded, Row, Task
from tasks.generated import GeneratedRow
from tasks.loading import prompts
from tasks.loading.continuation import Continued


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """Answers each row of the cell that isn't `done`: pairs of a row's id and the hash of its
    input. Returns the tokens of a row before and after truncation, and as `scored` the longest
    answered texts with the first logits that the method gave for them."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    task, family = cell.build_task(), arms.load(cell, arms.method_of(cell))
    arms.check_fit(cell, task, family)
    if task.stop:
        family.is_over = lambda text: task.ended(text) != text
    rows, encoded = arms.inputs(cell, task, family.tokenizer)
    arms.check_left_out(cell, family, encoded)
    asked = [*arms.batches(rows, cell.turns)]
    later = [
        [prompts.question(row, family.tokenizer, task.decoder) for row in others]
        for _, *others in asked
    ]
    hashes = [_input_hash(*each) for each in zip(encoded, later, strict=True)]
    done = {tuple(each) for each in request["done"]}
    missing = [
        i for i, turns in enumerate(asked) if any((row.id, hashes[i]) not in done for row in turns)
    ]
    # Rows of similar length share a batch, to keep padding small.
    missing.sort(key=lambda i: len(encoded[i].ids))
    load_ns, answer_ns, prefill_ns = int(linux.age_s() * 1e9), 0, list[int]()
    stage, answered = request["stage"], len(asked) - len(missing)
    report(stage, answered, len(asked))
    scored: dict[str, Any] | None = None
    groups = [*arms.batches(missing, cell.batch)]
    for group in groups:
        family.calls = 0
        batch = arms.collate([encoded[i] for i in group], cell.device["kind"])
        began = perf_counter_ns()
        with torch.inference_mode(), finite.watched(family), _timed_prefill(family, prefill_ns):
            if continuations := _continuations([encoded[i] for i in group]):
                tokens = torch.tensor(continuations, device=batch[0].device)
                is_vanilla = cell.method["name"] == BASELINE
                found = likelihood.predictions(family, batch, tokens, is_vanilla)
                answers = [[text] for text in found]
            elif cell.turns == 1:
                answers = [[text] for text in family.generate(*batch, task.max_new_tokens)]
            else:
                answers = [_converse(family, batch, later[group[0]], task.max_new_tokens)]
        answer_ns += perf_counter_ns() - began
        if group is groups[-1] and request["keeps_first"]:
            with torch.inference_mode(), finite.watched(family):
                # Twice: by how much they differ is the method's own randomness.
                first = [integrity.projected(arms.first_token(family, *batch)) for _ in range(2)]
                scored = {"texts": group, "answers": first}
        integrity.check_attention_ran(family)
        records = [
            {
                "id": row.id,
                "input_sha256": hashes[i],
                "tokens_in": encoded[i].tokens_in,
                "prediction": task.spell(row, task.ended(text)),
                # The process that scores has the answers.
                **({"removed": removed} if (removed := encoded[i].removed) else {}),
            }
            for i, texts in zip(group, answers, strict=True)
            for row, text in zip(asked[i], texts, strict=True)
        ]
        report.send("predictions", records=records)
        answered += len(group)
        report(stage, answered, len(asked))
    tokens_in = sum(row.tokens_in for row in encoded)
    tokens_seen = sum(len(row.ids) for row in encoded)
    texts = [first for first, *_ in asked]
    words = known_words(task, texts, encoded, family.tokenizer)
    return dict(words) | {
        "tokens_in_mean": tokens_in / len(asked),
        "tokens_in_estimated": any(row.estimated for row in encoded) or None,
        "tokens_seen_mean": tokens_seen / len(asked),
        "truncated_frac": 1 - tokens_seen / tokens_in,
        "quality_load_ns": load_ns,
        "quality_prefill_ns": sum(prefill_ns) or None,
        "quality_decode_ns": answer_ns - sum(prefill_ns),
        "window_layers_exact": len(family.exact_layers) or None,
        "stop": json.dumps(list(task.stop)) if task.stop else None,
        "scored": scored,
    }


@contextmanager
def _timed_prefill(family: Family, taken_ns: list[int]) -> Iterator[None]:
    """Inside, adds the nanoseconds of each prefill of a decoder."""
    prefill = family.prefill

    def timed(ids: Tensor, sequence: SequenceInfo) -> Decoding:
        began = perf_counter_ns()
        decoding = prefill(ids, sequence)
        if decoding.logits.is_cuda:
            torch.cuda.synchronize()
        taken_ns.append(perf_counter_ns() - began)
        return decoding

    family.prefill = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del family.prefill  # the class's own again


def known_words(
    task: Task, rows: Sequence[Row], encoded: Sequence[Encoded], tokenizer: Any
) -> columns.Row:
    """How well the tokenizer knows the rows' words; no columns for a task that has its own ids."""
    if task.vocabulary is not None:
        return {}
    words = sum(_words(*pair, tokenizer) for pair in zip(rows, encoded, strict=True))
    tokens_in = sum(row.tokens_in for row in encoded)
    found: columns.Row = {"tokens_per_word": tokens_in / words if words else None}
    unknown = getattr(tokenizer, "unk_token_id", None)
    # Some tokenizers without unknown tokens give another special one's id.
    if unknown is not None and unknown not in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        ids = [token for row in encoded for token in row.ids]
        found["unknown_tokens_frac"] = ids.count(unknown) / len(ids)
    return found


def _words(row: Row, encoded: Encoded, tokenizer: Any) -> int:
    """The words of a row; of one that is written or cut for a length, those that are read."""
    if isinstance(row, GeneratedRow) or isinstance(encoded, Continued):
        return len(tokenizer.decode(encoded.ids, skip_special_tokens=True).split())
    return len(row.query.split()) + len(row.document.split())


def _continuations(encoded: Sequence[Encoded]) -> list[Sequence[int]]:
    """Those that the model reads after the prompts; none where it generates answers."""
    return [row.continuation for row in encoded if isinstance(row, Continued)]


def _input_hash(encoded: Encoded, later: Sequence[Sequence[int]]) -> str:
    after = [*_continuations([encoded]), *later]
    ids = [*encoded.ids, *itertools.chain.from_iterable(after)]
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


def _converse(
    family: Family, batch: Input, later: Sequence[Sequence[int]], max_new_tokens: int
) -> list[str]:
    """The answers to a prompt and to the questions after it."""
    questions = [torch.tensor([ids], device=batch[0].device) for ids in later]
    return cast(Conversing, family).converse(*batch, questions, max_new_tokens)
