"""Set-up of child processes: threads and seeds, a model with a method in it, and batches of inputs,
which may be filled up to a length. The cell's parent has loaded the model, with vanilla in it, and
the encoded inputs for the processes that are forked from it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils import deterministic
from transformers import CONFIG_MAPPING, AutoConfig

from bench.engines.base import Engine
from bench.errors import RequestError, described, raised_at
from bench.execution.cell_run import inputs_key, model_key
from bench.execution.spawn import run_in_fork
from bench.execution.worker import memory_status
from bench.host import linux
from bench.models import auto, own_parameters
from bench.models.base import Family, Spec
from bench.models.conversing import Conversing
from bench.request import parameters, plugins
from bench.request.cell import Cell
from bench.request.schema import AFTER, BASELINE
from methods.base import Method, SequenceInfo, Unsupported, refusal
from tasks.base import ANSWERS, Encoded, Row, Task

T = TypeVar("T")
INPUTS = 4
"""Number of batches, which timed calls use in turns."""
COUNTED = ("_layers", "_heads")
"""Suffixes of the fields of a config.json that are counts, which transformers doesn't check."""


# The objects that a cell's parent (bench.execution.fork_server) has loaded for the processes that
# are forked from it.


class Inputs(NamedTuple):
    """The rows of a cell without their right answers, one for each question, and the encoded inputs
    of its first texts."""

    rows: Sequence[Row]
    encoded: Sequence[Encoded]


@dataclass(frozen=True)
class Loaded:
    cell: Cell
    family: Family
    inputs: Inputs | None = None


parent: Loaded | None = None
"""The objects loaded by this process, or by the one from which it was forked."""


def loaded_inputs(cell: Cell, count: int | None) -> Inputs | None:
    """The loaded inputs, if they are the cell's and include those of its first `count` texts (None:
    of all texts)."""
    if parent is None or parent.inputs is None or inputs_key(parent.cell) != inputs_key(cell):
        return None
    found, texts = parent.inputs, -(-len(parent.inputs.rows) // cell.turns)
    if len(found.encoded) < texts and (count is None or len(found.encoded) < count):
        return None
    return found if count is None else Inputs(found.rows, found.encoded[:count])


# The set-up of a process.


def prepare(cell: Cell, timed: bool = False, costs: bool = False) -> None:
    """Set the threads and seeds of this process from the cell. A `timed` process is pinned to one
    core per thread; other processes may run in parallel and are left to the scheduler. Where time
    or memory is measured (`timed` or `costs`), uninitialized tensors aren't filled: torch's
    deterministic mode writes NaN to all of them, at the cost of time and resident pages. Elsewhere
    they are, so that a method that reads such memory answers NaN and not something random."""
    torch.set_num_threads(cell.threads)
    if timed:
        # OpenMP binds each of its further threads to a separate core (OMP_PROC_BIND).
        os.sched_setaffinity(0, linux.spread_cpus(cell.threads)[:1])
    torch.manual_seed(cell.seed)
    torch.use_deterministic_algorithms(cell.device["kind"] == "cpu")
    memory: Any = deterministic
    memory.fill_uninitialized_memory = not (timed or costs)
    if cell.device["kind"] == "cuda" and not torch.cuda.is_available():
        raise RequestError(
            f"device={cell.device['name']}: torch {torch.__version__} sees no CUDA GPU"
        )


def method_of(cell: Cell) -> Method:
    """The cell's method. Raises RequestError if its class or parameters don't make one."""
    return cast(Method, plugins.build(dict(cell.method), Method))


def vanilla() -> Method:
    return cast(Method, plugins.build(plugins.conf("method", BASELINE)))


def load(cell: Cell, method: Method, training: bool = False, start: Path | None = None) -> Family:
    """The cell's model with the method in it; the parent's, if the parent has loaded it. With
    `start`, the untrained model of a recipe in float32: the checkpoint in this folder, or random
    weights of the cell's size. Raises RequestError when the folder holds no such model, Unsupported
    with the method's reason."""
    model, folder = cell.model, start or Path(cell.model["path"])
    config = None if "training" in model and start is None else model.get("config")
    dtype = cell.dtype if start is None else "float32"
    spec = Spec(model["name"], folder, config, cell.seed, tuple(model.get("marks", ())))
    on_cpu = cell.device["kind"] == "cpu"
    is_loaded = parent is not None and model_key(parent.cell) == model_key(cell)
    try:
        if isinstance(method, Engine):
            from bench.engines.family import EngineFamily

            answer = max(cell.new_tokens or 1, cell.build_task().max_new_tokens or 1)
            tokens = cell.length + answer
            family: Family = EngineFamily.started(spec, method, tokens, cell.threads)
        elif parent and is_loaded and start is None:
            family = parent.family
            family.method, family.drawn = method, ()
            if config is None:
                workload = family.workload(1, 1)
                family.drawn = own_parameters.restore(family.model, method, workload, folder)
        else:
            if config is None:
                _check_config(folder)
            family = plugins.load(model["family"]).load(spec, method, dtype, cell.device["kind"])
    except (OSError, ValueError) as error:
        raise RequestError(str(error).splitlines()[0]) from error
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        if memory_status(error) or raised_at(error, cell.method["target"]) or not on_cpu:
            raise
        raise RequestError(f"{folder}: no model can be made of it: {described(error)}") from error
    if config is None:
        _check_tokens(folder, family)
    if training:
        family.model.train()
    if asks := parameters.question_words(vars(cell)):
        if not isinstance(family, Conversing):
            raise RequestError(parameters.no_decoder(asks, model["name"]))
        family.question_after = cell.question == AFTER
    reason = refusal(method, family.workload(cell.length, cell.batch))
    if cell.new_tokens and family.answers != "text":
        raise RequestError(
            f"model {model['name']} answers with {ANSWERS[family.answers]} and decodes no tokens: "
            "leave new_tokens and measure=decoding"
        )
    if family.drawn and not training:
        lacking = f"these weights lack {len(family.drawn)}, first {family.drawn[0]}"
        reason = reason or f"has parameters of its own: {lacking}; a recipe trains them"
    if reason:
        raise Unsupported(reason)
    return family


def _check_config(folder: Path) -> None:
    """Raises RequestError for a config.json that the class of its model_type rejects: the family's
    own error would name the first file that is read with this configuration."""
    path = folder / "config.json"
    config = auto.read_config(folder)
    if config.get("model_type") in CONFIG_MAPPING:
        try:
            AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # its validators raise any type
            raise RequestError(f"{path}: {' '.join(str(error).split())}") from error
    for name, value in config.items():
        if isinstance(value, int | float) and ("dropout" in name or name.endswith(COUNTED)):
            most, takes = (1.0, "0 to 1") if "dropout" in name else (math.inf, "0 or more")
            if not 0 <= value <= most:
                raise RequestError(f"{path}: {name} is {value}; it takes {takes}")


def _check_tokens(folder: Path, family: Family) -> None:
    """Raises RequestError for a checkpoint whose files lack a value that the first token needs."""
    longest = getattr(family.tokenizer, "model_max_length", 0)
    if not isinstance(longest, int | float):
        where = folder / "tokenizer_config.json"
        raise RequestError(f"{where}: model_max_length is {longest!r}; it takes a number")
    config: Any = getattr(family.model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return
    start, size = "decoder_start_token_id", config.vocab_size
    answers = getattr(family.model, "generation_config", None) or config
    first = getattr(answers, start, None)
    for file, name, number in (
        ("config.json", "pad_token_id", config.pad_token_id),
        ("config.json", start, getattr(config, start, None)),
        ("generation_config.json", start, answers.bos_token_id if first is None else first),
    ):
        if not (isinstance(number, int) and 0 <= number < size):
            raise RequestError(
                f"{folder / file}: {name} is {number!r}; it takes a token id, 0 to {size - 1}"
            )


def check_fit(cell: Cell, task: Task, family: Family) -> None:
    """Raises RequestError when the model doesn't give the kind of answer of the task, or doesn't
    take its input."""
    if task.answers != family.answers:
        asked = f"one of {task.labels} classes" if task.labels else ANSWERS[task.answers]
        raise RequestError(
            f"task {cell.task['name']} asks for {asked}, model {cell.model['name']} answers with "
            f"{ANSWERS[family.answers]}; bench ls tasks lists others, measure=speed needs no answer"
        )
    config: Any = family.model.config
    # An untrained head may have any size: it can be timed, and refuses to answer.
    trained = not getattr(family, "lacks", ())
    if task.labels is not None and config.num_labels != task.labels and trained:
        raise RequestError(
            f"task {cell.task['name']} has {task.labels} classes, model {cell.model['name']} has "
            f"{config.num_labels}: it was trained for another task"
        )
    check_vocabulary(cell, task, family)


def check_vocabulary(cell: Cell, task: Task, family: Family) -> None:
    """Raises RequestError for a task with more token ids than the model has."""
    vocabulary = getattr(family.model.config, "vocab_size", None)
    if task.vocabulary and vocabulary and task.vocabulary > vocabulary:
        raise RequestError(
            f"task {cell.task['name']} has {task.vocabulary} token ids, model "
            f"{cell.model['name']} has {vocabulary}"
        )


def collate(encoded: Sequence[Encoded], device: str) -> tuple[Tensor, SequenceInfo]:
    """Rows of ids, padded on the right: ids [B, n] and their SequenceInfo. For pairs of texts, all
    first texts come before all second ones: ids [2B, n]."""
    encoded = [*encoded, *(row.second for row in encoded if row.second is not None)]

    def padded(rows: Iterable[Sequence[int]], dtype: torch.dtype) -> Tensor:
        tensors = [torch.tensor(row, dtype=dtype) for row in rows]
        return pad_sequence(tensors, batch_first=True).to(device)

    ids = padded((row.ids for row in encoded), torch.long)
    vip = padded((row.vip for row in encoded), torch.bool)
    valid = padded((row.valid or [True] * len(row.ids) for row in encoded), torch.bool)
    return ids, SequenceInfo(valid=None if bool(valid.all()) else valid, vip=vip)


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def timed_texts(cell: Cell, batches: int = INPUTS) -> int:
    """The number of texts from which `batches` batches of the longest are chosen."""
    return max(64, batches * cell.batch)


def inputs(cell: Cell, task: Task, tokenizer: Any, count: int | None = None) -> Inputs:
    """The cell's rows, read in a fork that leaves out their right answers, and the encoded inputs
    of the first `count` texts, by default all; the parent's, if the parent has loaded them."""
    if found := loaded_inputs(cell, count):
        return found
    rows = run_in_fork(lambda: rows_without_references(cell))
    texts = rows[:: cell.turns][:count]
    return Inputs(rows, [task.encode(row, tokenizer, cell.length) for row in texts])


def rows_without_references(cell: Cell) -> list[Row]:
    return [replace(row, references=(), support=()) for row in cell.rows().rows]


def check_left_out(cell: Cell, family: Family, encoded: Sequence[Encoded]) -> None:
    """Raises Unsupported for a method that leaves nothing out of the longest input: its row would
    equal vanilla's."""
    rows = [*encoded, *(row.second for row in encoded if row.second is not None)]
    workload = family.workload(max(len(row.ids) for row in rows), cell.batch)
    layers = set(range(workload.layers)) - family.exact_layers
    if all(family.method.reads_all(workload, layer) for layer in layers):
        raise Unsupported(f"reads everything at {workload.length:,} tokens")


def longest_inputs(cell: Cell, family: Family, count: int) -> list[tuple[Tensor, SequenceInfo]]:
    """`count` batches of the longest rows, to be timed; filled if the cell requires it."""
    task = cell.build_task()
    check_vocabulary(cell, task, family)
    needed = count * cell.batch
    encoded = [*inputs(cell, task, family.tokenizer, timed_texts(cell, count)).encoded]
    encoded.sort(key=lambda row: -len(row.ids))
    if cell.fill:
        encoded = [filled(row, cell.length) for row in encoded[:needed]]
    check_left_out(cell, family, encoded)
    encoded = (encoded * -(-needed // len(encoded)))[:needed]
    return [collate(group, cell.device["kind"]) for group in batches(encoded, cell.batch)]


def first_token(family: Family, ids: Tensor, sequence: SequenceInfo) -> Tensor:
    """Logits of the first token after an input: latency and memory are measured on this call. A
    decoder also fills the cache from which the next tokens are decoded."""
    if family.workload(ids.shape[1], ids.shape[0]).causal:
        return family.prefill(ids, sequence).logits
    decoder_input = torch.zeros(ids.shape[0], 1, dtype=torch.long, device=ids.device)
    return family.logits(ids, sequence, decoder_input)


# Inputs of exactly a length, for costs at that length. A task's rows end with their text, before
# the length is reached.


def filled(row: Encoded, length: int) -> Encoded:
    """The row, filled to `length` with copies of its longest stretch of tokens that aren't VIP
    tokens, inserted after that stretch. Beginning, end and query do not change. Both texts of a
    pair are filled. The row's last token, such as an end-of-sequence token, is no part of a
    stretch. A row without one is returned unchanged."""
    second = None if row.second is None else filled(row.second, length)
    valid, lacking = row.valid or [True] * len(row.ids), length - len(row.ids)
    plain = [bool(ok and not vip) for ok, vip in zip(valid, row.vip, strict=True)][:-1]
    stretches = groupby(range(len(plain)), plain.__getitem__)
    text = max(([*run] for is_plain, run in stretches if is_plain), key=len, default=[])
    if lacking <= 0 or not text:
        return replace(row, second=second)
    end = text[-1] + 1
    more = list(islice(cycle(row.ids[text[0] : end]), lacking))
    return replace(
        row,
        ids=[*row.ids[:end], *more, *row.ids[end:]],
        vip=[*row.vip[:end], *[False] * lacking, *row.vip[end:]],
        valid=row.valid and [*row.valid[:end], *[True] * lacking, *row.valid[end:]],
        second=second,
    )
