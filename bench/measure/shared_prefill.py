"""Predictions of several methods that differ in their KV cache: each prompt is read once for all of
them, and their answers are decoded as one batch (bench.models.batched_rows).

A pool holds the rows of some prompts. Most answers are short and a few are long: the next prompt is
read when fewer than `FULL_BATCH` rows are left. A step reads the model's weights once, and costs
little more for that many rows than for one.

Attention outputs are not checked for finite values here: logits are, and a setting whose logits
aren't finite is answered by its cell's own run, which names the layer.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from bench.errors import RunError
from bench.execution import arms, worker
from bench.execution.cell_group import FULL_BATCH
from bench.host import linux
from bench.measure import integrity, quality
from bench.measure.quality import Asked
from bench.models.base import Family
from bench.models.batched_rows import Row
from bench.models.decoder import DecoderFamily
from bench.request.cell import Cell
from methods.base import Method, Unsupported, refusal
from tasks.base import Encoded
from tasks.loading.continuation import Continued

ROOM = 2
"""Bytes of a row as a multiple of its full keys and values: there may be a second layout, and
copies while a cache grows."""


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """Answers for each of `cells`, which differ only in their method, the texts that aren't `done`
    (for each cell, pairs of a row's id and the hash of its input). Returns the number of each cell
    whose method failed, with the reason: it lacks predictions for some texts; and as `spent`
    columns of the time, of all cells together."""
    cells = [Cell.from_json(text) for text in request["cells"]]
    cell = cells[0]
    family, asked = quality.loaded(cell, arms.vanilla())
    if not isinstance(family, DecoderFamily):
        raise RunError(f"{cell.model['name']} is no decoder, whose prefill could be shared")
    missing = [asked.missing(done) for done in request["done"]]
    total, left = len(cells) * len(asked.rows), sum(map(len, missing))
    stored = quality.stored_note(total - left)

    def tell(begun: int) -> None:
        report(request["stage"], total - left, total, f"({begun} begun)" if begun else stored)

    def send(setting: int, text: int, answers: Sequence[str]) -> None:
        nonlocal left
        records = asked.records(text, answers, batched=True)
        report.send("predictions", setting=setting, records=records)
        left -= 1
        tell(0)

    tell(0)
    most = _rows_that_fit(cell, request["memory_bytes"], family, asked)
    new_tokens = asked.task.max_new_tokens
    pool = Pool(family, asked, cell.device["kind"], new_tokens, send, most, tell=tell)
    pool.vanilla = {i for i, each in enumerate(cells) if each.is_baseline}
    for setting, each in enumerate(cells):
        try:
            pool.methods[setting] = checked_method(each, family, asked.encoded)
        except Exception as error:
            pool.drop(setting, error)
    pool.queue = [
        (text, setting)
        for text in asked.by_length(set().union(*missing))
        for setting in pool.methods
        if text in missing[setting]
    ]
    began = perf_counter_ns()
    with torch.inference_mode():
        pool.run()
    taken_ns = perf_counter_ns() - began
    spent = {"quality_prefill_ns": pool.read_ns, "quality_decode_ns": taken_ns - pool.read_ns}
    return {"dropped": pool.dropped, "spent": spent}


def checked_methods(
    cells: Sequence[Cell], family: Family
) -> tuple[dict[int, Method], dict[int, str]]:
    """The methods of cells that differ only in them, by number, without vanilla; and the reasons
    why some can't be measured. If there is only one cell, its reason is raised."""
    cell = cells[0]
    texts = arms.timed_texts(cell)
    encoded = arms.inputs(cell, cell.build_task(), family.tokenizer, texts).encoded
    found: dict[int, Method] = {}
    dropped: dict[int, str] = {}
    for number, each in enumerate(cells):
        if not each.is_baseline:
            try:
                found[number] = checked_method(each, family, encoded)
            except Exception as error:
                drop(dropped, number, error, len(cells))
    return found, dropped


def drop(dropped: dict[int, str], number: int, error: Exception, cells: int) -> None:
    """Adds the reason why a cell can't be measured; raises it if there is only one cell."""
    if cells == 1:
        raise error
    dropped[number] = f"{type(error).__name__}: {error}"


def checked_method(cell: Cell, family: Family, encoded: Sequence[Encoded]) -> Method:
    """The cell's method. Raises Unsupported if it can't read the longest text, or leaves nothing
    of it out."""
    method = arms.method_of(cell)
    if reason := refusal(method, family.workload(cell.length, cell.batch)):
        raise Unsupported(reason)
    own, family.method = family.method, method
    try:
        arms.check_left_out(cell, family, encoded)
    finally:
        family.method = own
    return method


def _rows_that_fit(cell: Cell, limit: int | None, family: DecoderFamily, asked: Asked) -> int:
    """The number of rows whose caches fit in half of the bytes that this process may still
    allocate; the other half is left for reading a prompt. `limit` is that of the process on the
    CPU; None: no limit."""
    if cell.device["kind"] == "cuda":
        free = torch.cuda.mem_get_info()[0]
    elif limit is None:
        return sys.maxsize
    else:
        free = limit - linux.status_bytes("VmData")
    new = asked.task.max_new_tokens
    later = max(sum(len(ids) + new for ids in texts) for texts in asked.later)
    read = (len(row.continuation) for row in asked.encoded if isinstance(row, Continued))
    longest = max(len(row.ids) for row in asked.encoded) + max(read, default=new) + later
    row_bytes = ROOM * longest * family.workload(longest, 1).bytes_per_entry()
    return max(1, free // 2 // row_bytes)


@dataclass
class _Answering:
    """A row that answers a text for a setting: `wanted` [1, t] are the tokens that it reads next,
    `answers` the result of `conversation` at its end."""

    setting: int
    text: int
    row: Row
    conversation: Generator[Tensor, None, list[str]]
    wanted: Tensor | None = None
    answers: list[str] | None = None

    def advance(self) -> None:
        """Raises NotFiniteError for logits of the next token that aren't finite."""
        integrity.check_logits(self.row.logits)
        try:
            self.wanted = next(self.conversation)
        except StopIteration as end:
            self.answers = end.value


@dataclass
class Pool:
    """Rows that decode together.

    send     called with the numbers of a setting and a text, and the answers
    most     rows at a time; halved where memory runs out
    methods  methods of the settings, by number
    vanilla  settings that are vanilla
    dropped  settings whose method failed, with the reason
    queue    texts to read, each with a setting; those of a text follow one another
    active   the rows
    reading  number of rows whose text is being read
    read_ns  time of reading texts
    tell     called with the number of rows when a text has been read
    """

    family: DecoderFamily
    asked: Asked
    device: str
    max_new_tokens: int
    send: Callable[[int, int, Sequence[str]], None]
    most: int
    methods: dict[int, Method] = field(default_factory=dict)
    vanilla: set[int] = field(default_factory=set)
    dropped: dict[int, str] = field(default_factory=dict)
    queue: list[tuple[int, int]] = field(default_factory=list)
    active: list[_Answering] = field(default_factory=list)
    reading: int = 0
    read_ns: int = 0
    tell: Callable[[int], object] = lambda _: None

    def run(self) -> None:
        while self.queue or self.active:
            failed = None
            try:
                self._read_texts()
                self._step()
            except Exception as error:
                if worker.memory_status(error) is None:
                    raise
                failed = error.with_traceback(None)  # would keep the tensors of the failed call
            if failed:
                self._split(failed)

    def drop(self, setting: int, error: Exception) -> None:
        """Leaves a setting out from now on."""
        self.dropped[setting] = f"{type(error).__name__}: {error}"
        self.methods.pop(setting, None)
        self.active = [each for each in self.active if each.setting != setting]
        self.queue = [pair for pair in self.queue if pair[1] != setting]

    def _split(self, error: Exception) -> None:
        """Empties the pool and halves the number of rows at a time. The texts are read again. A
        setting is dropped if a single row of it doesn't fit."""
        count = len(self.active) + self.reading
        pairs = sorted((each.text, each.setting) for each in self.active)
        self.active, self.queue = [], pairs + self.queue
        if count == 1:
            self.drop(self.queue[0][1], error)
        self.most, self.reading = max(1, count // 2), 0

    def _read_texts(self) -> None:
        """Reads texts until the batch is full."""
        while self.queue:
            text, pairs = next(itertools.groupby(self.queue, key=itemgetter(0)))
            settings = [setting for _, setting in pairs][: self.most]
            full = len(self.active) >= FULL_BATCH
            if self.active and (full or len(self.active) + len(settings) > self.most):
                return
            self.reading, began = len(settings), perf_counter_ns()
            read = self._read(text, settings)
            self.reading, self.read_ns = 0, self.read_ns + perf_counter_ns() - began
            del self.queue[: len(settings)]
            self.active += read
            self.tell(len(self.active))
            self._advance(read)

    def _read(self, text: int, settings: Sequence[int]) -> list[_Answering]:
        family, encoded = self.family, self.asked.encoded[text]
        prompt = arms.collate([encoded], self.device)
        rows = family.prefill_each(*prompt, [self.methods[i] for i in settings])
        later = [torch.tensor([each], device=self.device) for each in self.asked.later[text]]
        if isinstance(encoded, Continued):
            tokens = torch.tensor([encoded.continuation], device=self.device)
            exact = quality.exact_log_p(family, prompt, tokens)
        answering = []
        for setting, row in zip(settings, rows, strict=True):
            if isinstance(encoded, Continued):
                is_vanilla = setting in self.vanilla
                said = quality.read_text(family, row, tokens, exact, is_vanilla=is_vanilla)
            else:
                said = family.conversation(row, later, self.max_new_tokens)
            answering.append(_Answering(setting, text, row, said))
        return answering

    def _step(self) -> None:
        """Reads the next token of each row, all together, or the next question."""
        tokens: dict[int, Tensor] = {}
        for i, each in enumerate(self.active):
            assert each.wanted is not None
            if each.wanted.shape[1] == 1:
                tokens[i] = each.wanted
            else:
                each.row.attempt(partial(each.row.step, each.wanted))
        if tokens:
            ids = torch.cat(list(tokens.values()))
            self.family.step_each([self.active[i].row for i in tokens], ids)
        self._advance(self.active)

    def _advance(self, rows: Sequence[_Answering]) -> None:
        """Chooses the next tokens of rows. Those that have ended leave the pool; one that has
        failed drops its setting. Raises the error of one that ran out of memory."""
        for each in rows:
            each.row.attempt(each.advance)
            if each.answers is not None:
                self.send(each.setting, each.text, each.answers)
        self.active = [each for each in self.active if each.answers is None]
        for each in rows:
            if each.row.error is not None:
                if worker.memory_status(each.row.error):
                    raise each.row.error
                self.drop(each.setting, each.row.error)
