"""Predictions of one method, sent to the supervisor batch by batch, which stores them.

A task's references never enter the process in which a method runs, and no method's process writes
into the folder of results. Another process scores the stored predictions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from bench.execution import arms, worker
from bench.host import linux
from bench.measure import integrity
from bench.measure.perturbed_inputs import Input
from bench.models.base import Decoding, Family
from bench.models.conversing import Conversing
from bench.models.decoder import DecoderFamily
from bench.request.cell import Cell
from bench.rows import columns
from methods.base import Method, SequenceInfo
from tasks.base import Encoded, Row, Task
from tasks.generated import GeneratedRow
from tasks.loading import prompts
from tasks.loading.continuation import Continued

if TYPE_CHECKING:
    from bench.engines.family import EngineFamily


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """Answers each row of the cell that isn't in `done` for its setting, 0. Returns the tokens of a
    row before and after truncation, and as `scored` the longest answered texts with the method's
    first logits for them."""
    cell = Cell.from_json(request["cell"])
    family, asked = loaded(cell, arms.method_of(cell))
    task, encoded, texts = asked.task, asked.encoded, len(asked.rows)
    arms.check_left_out(cell, family, encoded)
    missing = asked.missing(request["done"][0])
    load_ns, answer_ns, prefill_ns = int(linux.age_s() * 1e9), 0, list[int]()
    prefill = patch.object(family, "prefill", _timed(family.prefill, prefill_ns))
    stage, answered = request["stage"], texts - len(missing)
    stored = stored_note(answered)
    report(stage, answered, texts, stored)
    scored: dict[str, Any] | None = None
    for group in arms.batches(missing, cell.batch):
        family.calls = 0
        batch = arms.collate([encoded[i] for i in group], cell.device["kind"])
        began = perf_counter_ns()
        with torch.inference_mode(), integrity.watched(family), prefill:
            if continuations := _continuations([encoded[i] for i in group]):
                tokens = torch.tensor(continuations, device=batch[0].device)
                found = likelihoods(family, batch, tokens, cell.is_baseline)
                answers = [[text] for text in found]
            elif cell.turns == 1:
                answers = [[text] for text in family.generate(*batch, task.max_new_tokens)]
            else:
                later = asked.later[group[0]]
                questions = [torch.tensor([ids], device=batch[0].device) for ids in later]
                speaking = cast(Conversing, family)
                answers = [speaking.converse(*batch, questions, task.max_new_tokens)]
        answer_ns += perf_counter_ns() - began
        integrity.check_attention_ran(family)
        pairs = zip(group, answers, strict=True)
        records = [record for i, said in pairs for record in asked.records(i, said)]
        report.send("predictions", setting=0, records=records)
        answered += len(group)
        report(stage, answered, texts, stored)
    if cell.is_engine:
        # The time of the engine's process is known once it has been waited for.
        cast("EngineFamily", family).session.close()
    if cell.plan.speed and not (cell.is_baseline or cell.is_engine):
        group = [*arms.batches(asked.by_length(range(texts)), cell.batch)][-1]
        batch = arms.collate([encoded[i] for i in group], cell.device["kind"])
        with torch.inference_mode(), integrity.watched(family):
            # Twice: the difference shows the method's own randomness.
            first = [integrity.projected(arms.first_token(family, *batch)) for _ in range(2)]
            scored = {"texts": group, "answers": first}
    tokens_in = sum(row.tokens_in for row in encoded)
    tokens_seen = sum(len(row.ids) for row in encoded)
    words = known_words(task, [first for first, *_ in asked.rows], encoded, family.tokenizer)
    return dict(words) | {
        "tokens_in_mean": tokens_in / texts,
        "tokens_in_estimated": any(row.estimated for row in encoded) or None,
        "tokens_seen_mean": tokens_seen / texts,
        "truncated_frac": 1 - tokens_seen / tokens_in,
        "quality_load_ns": load_ns,
        "quality_prefill_ns": sum(prefill_ns) or None,
        "quality_decode_ns": answer_ns - sum(prefill_ns),
        "window_layers_exact": len(family.exact_layers) or None,
        "stop": json.dumps(list(task.stop)) if task.stop else None,
        "scored": scored,
    }


@dataclass(frozen=True)
class Asked:
    """The texts and questions that a cell gives to its model.

    task     the cell's
    rows     the rows of each text, one for each question
    encoded  the texts, with their first questions
    later    token ids of the further questions on each text
    hashes   hashes of all ids that are read for a text
    """

    task: Task
    rows: Sequence[Sequence[Row]]
    encoded: Sequence[Encoded]
    later: Sequence[Sequence[Sequence[int]]]
    hashes: Sequence[str]

    @classmethod
    def of(cls, cell: Cell, task: Task, family: Family) -> Asked:
        rows, encoded = arms.inputs(cell, task, family.tokenizer)
        asked = [*arms.batches(rows, cell.turns)]
        later = [
            [prompts.question(row, family.tokenizer, task.decoder) for row in others]
            for _, *others in asked
        ]
        hashes = []
        for row, questions in zip(encoded, later, strict=True):
            after = itertools.chain(*_continuations([row]), *questions)
            ids = json.dumps([*row.ids, *after])
            hashes.append(hashlib.sha256(ids.encode()).hexdigest()[:16])
        return cls(task, asked, encoded, later, hashes)

    def missing(self, done: Iterable[Sequence[Any]]) -> list[int]:
        """Numbers of the texts with a row that isn't `done`, by length."""
        found = {tuple(each) for each in done}
        return self.by_length(
            i
            for i, turns in enumerate(self.rows)
            if any((row.id, self.hashes[i]) not in found for row in turns)
        )

    def by_length(self, texts: Iterable[int]) -> list[int]:
        """Shortest texts first: those of similar length share a batch, to keep padding small."""
        return sorted(texts, key=lambda i: len(self.encoded[i].ids))

    def records(self, text: int, answers: Sequence[str], **more: Any) -> list[dict[str, Any]]:
        """The predictions of one text, an answer to each of its questions."""
        encoded = self.encoded[text]
        return [
            {
                "id": row.id,
                "input_sha256": self.hashes[text],
                "tokens_in": encoded.tokens_in,
                "prediction": self.task.spell(row, self.task.ended(answer)),
                # The right answers are in the process that scores.
                **({"removed": removed} if (removed := encoded.removed) else {}),
                **more,
            }
            for row, answer in zip(self.rows[text], answers, strict=True)
        ]


def loaded(cell: Cell, method: Method) -> tuple[Family, Asked]:
    """The cell's model with a method, and its questions. Raises RequestError, Unsupported."""
    arms.prepare(cell)
    task, family = cell.build_task(), arms.load(cell, method)
    arms.check_fit(cell, task, family)
    if task.stop:
        family.is_over, family.stop = lambda text: task.ended(text) != text, task.stop
    return family, Asked.of(cell, task, family)


def stored_note(answers: int) -> str:
    """A note for the progress if a run finds answers of an earlier one, or of another cell."""
    return f"({answers:,} stored before)" if answers else ""


Prefill = Callable[[Tensor, SequenceInfo], Decoding]


def _timed(prefill: Prefill, taken_ns: list[int]) -> Prefill:
    """Adds the nanoseconds of each prefill of a decoder."""

    def timed(ids: Tensor, sequence: SequenceInfo) -> Decoding:
        began = perf_counter_ns()
        decoding = prefill(ids, sequence)
        if decoding.logits.is_cuda:
            torch.cuda.synchronize()
        taken_ns.append(perf_counter_ns() - began)
        return decoding

    return timed


def known_words(
    task: Task, rows: Sequence[Row], encoded: Sequence[Encoded], tokenizer: Any
) -> columns.Row:
    """Columns on the words that the tokenizer knows; none for a task that has its own ids."""
    if task.vocabulary is not None:
        return {}
    words = sum(_words(*pair, tokenizer) for pair in zip(rows, encoded, strict=True))
    tokens_in = sum(row.tokens_in for row in encoded)
    found: columns.Row = {"tokens_per_word": tokens_in / words if words else None}
    unknown = getattr(tokenizer, "unk_token_id", None)
    # Some tokenizers without an unknown token give the id of another special token.
    if unknown is not None and unknown not in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        ids = [token for row in encoded for token in row.ids]
        found["unknown_tokens_frac"] = ids.count(unknown) / len(ids)
    return found


def _words(row: Row, encoded: Encoded, tokenizer: Any) -> int:
    """The words of a row; if it is generated or cut for a length, only the words that are read."""
    if isinstance(row, GeneratedRow) or isinstance(encoded, Continued):
        return len(tokenizer.decode(encoded.ids, skip_special_tokens=True).split())
    return len(row.query.split()) + len(row.document.split())


def _continuations(encoded: Sequence[Encoded]) -> list[Sequence[int]]:
    """Token ids that the model reads after each prompt; none if it generates answers."""
    return [row.continuation for row in encoded if isinstance(row, Continued)]


# The likelihood of given texts that a model reads after a prompt, through a method's cache.
# Shapes: B batch, N tokens after the prompt, V vocabulary.


def likelihoods(family: Family, prompts: Input, tokens: Tensor, is_vanilla: bool) -> list[str]:
    """For each prompt the likelihood of its tokens [B, N], in the form of tasks.metrics.likelihood.
    A method reads the prompt and then the tokens through its cache; vanilla reads all in one pass,
    also as the reference of a method's predictions: about the cost of one more prefill for each
    row. Raises NotFiniteError, IntegrityError."""
    exact = exact_log_p(family, prompts, tokens)
    if is_vanilla:
        return _json(nll=_nll(exact, tokens))
    attended, decoding = family.calls, family.prefill(*prompts)
    found = decoding.driven(read_text(family, decoding, tokens, exact))
    integrity.check_attention_ran(family, attended)
    return found


def exact_log_p(family: Family, prompts: Input, tokens: Tensor) -> Tensor:
    """[B, N, V]: vanilla's log-probabilities for each of the tokens [B, N]."""
    own, family.method = family.method, arms.vanilla()
    try:
        return family.logits(*prompts, tokens).float().log_softmax(-1)
    finally:
        family.method = own


def read_text(
    family: Family, decoding: Decoding, tokens: Tensor, exact: Tensor, *, is_vanilla: bool = False
) -> Generator[Tensor, None, list[str]]:
    """Reads tokens [B, N] after a prompt: in one pass if the method's cache gives the same logits
    as for single tokens, else by yielding the next [B, 1] to read. Returns the predictions,
    compared with vanilla's from `exact_log_p`. Raises NotFiniteError."""
    if is_vanilla:
        return _json(nll=_nll(exact, tokens))
    first, at_once = decoding.logits[:, None], None
    if isinstance(family, DecoderFamily):
        at_once = family.read_at_once(decoding, tokens[:, :-1])
    if at_once is not None:
        logits = torch.cat((first, at_once), 1)
    else:
        steps = [first]
        for token in tokens[:, :-1].split(1, 1):
            yield token
            steps.append(decoding.logits[:, None])
        logits = torch.cat(steps, 1)
    integrity.check_logits(logits)
    log_p = logits.float().log_softmax(-1)
    kl = (exact.exp() * (exact - log_p)).sum(-1).clamp_min(0)
    equal = (exact.argmax(-1) == log_p.argmax(-1)).int()
    return _json(nll=_nll(log_p, tokens), kl=kl, equal=equal)


def _nll(log_p: Tensor, tokens: Tensor) -> Tensor:
    """[B, N]"""
    return -log_p.gather(-1, tokens[..., None]).squeeze(-1)


def _json(**values: Tensor) -> list[str]:
    """An object for each row of values [B, N], numbers to six digits."""
    named = {name: x.tolist() for name, x in values.items()}
    return [
        json.dumps({name: [float(f"{x:.6g}") if isinstance(x, float) else x for x in rows[i]]
                    for name, rows in named.items()}, separators=(",", ":"))
        for i in range(len(next(iter(named.values()))))
    ]  # fmt: skip
