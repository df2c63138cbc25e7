"""Estimates of a cell's time and memory, before the cell runs.

They use a formula of the model's size and the input's length, calibrated by measured rows: rows of
the same method and model, else of the same model, here or in results/reference, else of the same
device. Without rows it assumes a typical processor and attention in linear memory, and can be wrong
by a factor of three. No torch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.execution import cell_group
from bench.models import auto
from bench.request import plugins
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.status import Status

FLOPS_PER_THREAD = 8e10
FLOPS_GPU = 3e13
READ_PER_S = 1e10
READ_PER_S_GPU = 2e12
"""Bytes of weights, keys and values that a generated token reads in a second. From the caches of
cells that answer together they are read at half the rate."""
IMPORT_S = 5.0
"""Time in which a child process imports torch and transformers."""
BYTES_PER_S = 5e8
TOKEN_S = 0.004
"""Overhead of a generated token in addition to its reads."""
CALL_S = 0.002
"""Overhead of a forward pass in addition to its arithmetic."""
WARM_CALLS = 12
MEMORY_CALLS = 8
WARM_ANSWERS, ANSWERS_A_PAIR = 6, 0.2
"""For timed decoding: answers of an arm for warm-ups and checks, and for one pair, which reads no
prompt."""
TAKEN, STEPPED, LOST, ANSWERED_S = 0.04, 0.1, 0.5, 1.0
"""For each of the cells that answer together: the time to score and keep a prompt, in forward
passes, a row's share of a generated token's time except for its keys and values, the share of
answers that reach the limit of new tokens since the cache lost what they need, and seconds to find
stored answers."""
QUALITY, QUALITY_OF_BASELINE = "quality", f"quality of {BASELINE}"
SHARED = (QUALITY, QUALITY_OF_BASELINE, "tokens", "first_token")
"""Stages that cells of a group have in common."""
STEPS_OF_SAMPLE = 5
PROCESS_BYTES = 450 << 20
ROWS = 10_000
"""Assumed number of rows of a split of unknown size."""
WIDTHS = 24
"""Activations of a token at the peak, as vectors of the model's width."""
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MAX_CORRECTION = 30.0
N_NEAREST = 5
MOST = 1 << 40
"""Largest plausible size in a config.json; larger ones are wrong, which a run reports."""

Row = Mapping[str, Any]


class Size(NamedTuple):
    layers: int
    width: int
    inner: int
    weights_bytes: int
    key_width: int = 0
    """Numbers of a token's key in one layer of a decoder; 0: unknown."""


@functools.cache
def _read_size(folder: str, config: str | None) -> Size:
    values = json.loads(config) if config else {}
    if "model_type" not in values:
        with contextlib.suppress(OSError, ValueError):
            values = auto.read_config(Path(folder)) | values

    def first(*names: str, default: int) -> int:
        given = (values.get(name) for name in names)
        return next((n for n in given if isinstance(n, int) and 0 <= n < MOST), default)

    width = first("d_model", "hidden_size", default=64)
    layers = first("num_layers", "num_hidden_layers", "encoder_layers", default=2)
    inner = first("d_ff", "intermediate_size", "encoder_ffn_dim", default=4 * width)
    weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    if config:
        all_layers = layers + 2 * first("num_decoder_layers", "decoder_layers", default=0)
        per_layer = 4 * width**2 + 3 * width * inner
        weights = 4 * (first("vocab_size", default=32_000) * width + all_layers * per_layer)
    heads = first("num_attention_heads", default=0)
    head_size = first("head_dim", default=width // max(1, heads))
    key_width = head_size * first("num_key_value_heads", default=heads)
    return Size(layers, width, inner, weights, key_width)


def size(model: Mapping[str, Any]) -> Size:
    """Size of a cell's model, only from its configuration."""
    config = model.get("config")
    text = json.dumps(config, sort_keys=True) if config else None
    return _read_size(str(plugins.ROOT / model["path"]), text)


class Work:
    """Seconds of the parts of a cell, only from sizes."""

    def __init__(self, cell: Cell) -> None:
        own, task = size(cell.model), cell.task
        rate = FLOPS_GPU if cell.device["kind"] == "cuda" else FLOPS_PER_THREAD * cell.threads
        per_token = own.layers * 2 * (4 * own.width**2 + 3 * own.width * own.inner)
        # Time until a child process has loaded its model.
        self.begin_s = IMPORT_S + own.weights_bytes / BYTES_PER_S
        # Times of a forward pass of a batch and of one row in it, and of a training step.
        self.row_s = cell.length * (per_token + own.layers * 4 * cell.length * own.width) / rate
        self.forward_s = CALL_S + cell.batch * self.row_s
        trained = int(cell.recipe["batch"] if cell.recipe else cell.batch)
        self.step_s = 3 * (CALL_S + trained * self.row_s)
        # Time until a batch of prompts is read, and that of the tokens after them: few answers
        # reach the limit of new tokens, except for a decoder that wasn't trained to end them.
        most = task.get("max_new_tokens") or 1
        base_model = (cell.model["family"], cell.model["weights"]) == (auto.DECODER, "pretrained")
        endless = base_model and not cell.prompt
        new_tokens = most if endless else min(64, most) / 2
        read_per_s = READ_PER_S_GPU if cell.device["kind"] == "cuda" else READ_PER_S
        entries_s = entries_bytes(cell) / read_per_s
        alone_s = TOKEN_S + own.weights_bytes * BYTES[cell.dtype] / 4 / read_per_s
        self.token_s = alone_s + entries_s
        passes = plugins.facts(str(cell.method["name"])).get("prompt_passes", 1)
        self.read_again_s = (float(passes) - 1) * self.forward_s
        self.read_s = self.forward_s + self.read_again_s
        self.answer_s = new_tokens * self.token_s
        steps = float(most if endless else LOST * most)
        if continuation := task.get("continuation"):
            # Vanilla reads the continuation, too. Most caches read it token by token.
            self.read_s += self.forward_s
            self.answer_s = float(continuation) / cell.length * self.forward_s
            steps = float(continuation)
        self.stepped_answer_s = steps * (STEPPED * alone_s + 2 * entries_s)
        self.n_rows = int(cell.n or task.get("n", {}).get(cell.data["split"]) or 128)


class StageEstimate(NamedTuple):
    """`name` is the name that the stage reports, `arms` are the methods that it measures."""

    name: str
    arms: str
    seconds: float


def formula_s(cell: Cell) -> float:
    """Seconds of all child processes of the cell, only from sizes."""
    return sum(stage.seconds for stage in stages_s(cell))


def stages_s(cell: Cell) -> list[StageEstimate]:
    """The stages of a cell in the order in which they run, only from sizes."""
    one = Work(cell)
    method = str(cell.method["name"])
    names = [method] if method == BASELINE else [method, BASELINE]
    if cell.probe:
        tried_s = one.step_s if cell.plan.training else one.forward_s
        return [StageEstimate("probe", method, 12 * (one.begin_s + 4 * tried_s))]
    arms, together = len(names), " and ".join(names)
    stages: list[StageEstimate] = []

    def paired(name: str, call_s: float, calls: float, warm_s: float) -> StageEstimate:
        timed_s = min(cell.plan.budget_s, arms * calls * cell.plan.pairs * call_s)
        return StageEstimate(name, together, one.begin_s + warm_s + timed_s)

    if cell.plan.quality and cell.model["weights"] != "random":
        answer_s = one.stepped_answer_s if cell_group.key(cell) else one.answer_s
        answers_s = one.n_rows / cell.batch * (one.read_s + answer_s)
        stages.append(StageEstimate(QUALITY, method, one.begin_s + answers_s))
        stages += [StageEstimate(QUALITY_OF_BASELINE, BASELINE, answers_s)] * (arms - 1)
    if cell.plan.speed:
        warm_s = arms * WARM_CALLS * min(one.forward_s, 1.0) + 6 * one.forward_s
        stages.append(paired("latency", one.forward_s, 4 / 3, warm_s))
        answer_s = 0.0
        if cell.new_tokens:
            tokens_s = cell.new_tokens * one.token_s
            answer_s = one.forward_s + tokens_s
            warm_s = WARM_ANSWERS * arms * answer_s
            stages.append(paired("decoding", tokens_s, ANSWERS_A_PAIR, warm_s))
        memory_s = one.begin_s + MEMORY_CALLS * one.forward_s + answer_s
        stages += [StageEstimate("memory", name, memory_s) for name in names]
    if cell.plan.in_turns:
        stages.append(StageEstimate(cell.measure, together, in_turns_s([cell], 1)))
    if cell.plan.training:
        warm_s = arms * WARM_CALLS * min(one.step_s, 1.0)
        stages.append(paired("training", one.step_s, 4 / 3, warm_s))
        peak_s = one.begin_s + 2 * one.step_s
        stages += [StageEstimate("memory of training", name, peak_s) for name in names]
    return stages


def in_turns_s(cells: Sequence[Cell], count: int) -> float:
    """Seconds in which cells that differ only in their method are timed in turns with vanilla,
    `count` methods besides vanilla, in several processes."""
    cell, one, n_prompts = cells[0], Work(cells[0]), count + 1.0
    sample_s, n_readings = one.forward_s, cell.plan.processes + cell.plan.pairs
    if cell.plan.tokens_alone:
        n_prompts, sample_s = 1 + TAKEN * count, STEPS_OF_SAMPLE * one.token_s
        n_readings = cell.plan.processes
    begin_s = cell.plan.processes * (one.begin_s + n_prompts * one.forward_s)
    again_s = n_readings * sum(Work(each).read_again_s for each in cells)
    return begin_s + again_s + cell.plan.pairs * (count + 2) * sample_s


def together_s(cells: Sequence[Cell]) -> float:
    """Seconds in which cells that differ only in their method, and vanilla, answer together in one
    process, where each prompt is read once; or in which they are timed in turns."""
    one, count = Work(cells[0]), len(cells) + 1
    if cells[0].plan.in_turns:
        return in_turns_s(cells, count)
    # Settings of a method share its further readings.
    again_s = {cell.method["name"]: Work(cell).read_again_s for cell in cells}
    read_s = (1 + TAKEN * count) * one.forward_s + sum(again_s.values())
    return one.begin_s + one.n_rows * (read_s + count * one.stepped_answer_s)


def training_s(cell: Cell) -> float:
    """Seconds that a recipe takes to train a cell's weights, only from sizes: steps of a forward
    pass and a backward pass of twice its time, and evaluations. Early stopping isn't considered."""
    recipe, one = cell.recipe, Work(cell)
    assert recipe is not None
    rows = recipe["rows"] or cell.task.get("n", {}).get("train") or ROWS
    steps = int(recipe["steps"] or math.ceil((recipe["epochs"] or 1) * rows / recipe["batch"]))
    evaluated = steps // int(recipe["eval_every"]) * int(recipe["dev_rows"] or ROWS)
    return one.begin_s + steps * one.step_s + evaluated * one.row_s


def entries_bytes(cell: Cell) -> int:
    """Bytes of the keys and values of all tokens of one row."""
    own = size(cell.model)
    return 2 * own.layers * own.key_width * cell.length * BYTES[cell.dtype]


def formula_bytes(cell: Cell) -> tuple[int, int]:
    """Bytes of a child process with its model, and additional bytes of one input."""
    own = size(cell.model)
    scale = BYTES[cell.dtype]
    base = PROCESS_BYTES + own.weights_bytes * scale // 4
    widest = WIDTHS * own.width + 2 * own.inner
    return base, cell.batch * cell.length * widest * scale


class _Measured:
    """Measurements of a row's cell; None for missing ones."""

    def __init__(self, cell: Cell, row: Row) -> None:
        wall_ns, trained_ns = row.get("wall_total_ns"), row.get("train_wall_ns")
        # A row's time includes a training that it started; a longer training was done before. It
        # leaves out answers given together with other cells, before its own run.
        elsewhere = row.get("batched_answers") and not row.get("quality_prefill_ns")
        if (wall_ns and trained_ns and wall_ns > trained_ns) or elsewhere:
            wall_ns = None
        on_gpu = cell.device["kind"] == "cuda"
        peak = "gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"
        peaks = [row.get(peak), row.get(f"base_{peak}")]
        self.cell = cell
        self.seconds = wall_ns / 1e9 if wall_ns else None
        self.trained_s = trained_ns / 1e9 if trained_ns else None
        self.extra_bytes: int | None = max(filter(None, peaks), default=None)
        self.base_bytes = row.get("weights_bytes") if on_gpu else row.get("rss_base_bytes")


class Estimates:
    """Estimates calibrated by measured rows, for models without any by the `others` of a model."""

    def __init__(
        self,
        rows: Iterable[tuple[Cell, Row]],
        others: Callable[[str], Iterable[tuple[Cell, Row]]] = lambda model: (),
    ) -> None:
        self.rows, self._others = _ok(rows), functools.cache(lambda model: _ok(others(model)))

    def seconds(self, cell: Cell) -> float:
        near = [row for row in self._near(cell) if row.cell.measure == cell.measure]
        return formula_s(cell) * _correction(formula_s, [(row.cell, row.seconds) for row in near])

    def together(self, cells: Sequence[Cell]) -> list[tuple[float, float]]:
        """Seconds of cells that answer together or are timed in turns, when the first cell does
        this for all; and of the same cells alone: after the first one, vanilla's answers are
        stored."""
        times = []
        for i, cell in enumerate(cells):
            stages, scale = stages_s(cell), self.seconds(cell) / formula_s(cell)
            own_s = sum(ANSWERED_S if x.name in SHARED else x.seconds for x in stages)
            common_s = 0.0 if i else together_s(cells)
            alone_s = sum(x.seconds for x in stages if not i or x.name != QUALITY_OF_BASELINE)
            times.append((scale * (own_s + common_s), scale * alone_s))
        return times

    def training(self, cell: Cell) -> float:
        """Seconds that a recipe takes to train a cell's weights."""
        near = [(row.cell, row.trained_s) for row in self._near(cell) if row.cell.recipe]
        return training_s(cell) * _correction(training_s, near)

    def bytes(self, cell: Cell) -> int:
        """The greatest resident memory of one of the cell's processes, or its GPU memory."""
        base, extra = formula_bytes(cell)
        near = [row for row in self._near(cell) if row.extra_bytes]
        same = [row for row in near if row.cell.model["name"] == cell.model["name"]]
        base = max((row.base_bytes for row in same if row.base_bytes), default=base)
        if more := _extrapolated([row for row in same if row.cell.method == cell.method], cell):
            return base + more
        measured = [(row.cell, row.extra_bytes) for row in near]
        return base + int(extra * _correction(lambda each: formula_bytes(each)[1], measured))

    def bytes_together(self, cells: Sequence[Cell]) -> int:
        """The greatest memory of a process in which cells answer together: two thirds of all keys
        and values are added for each answer of a batch, or each cell timed in turns."""
        cell, answers = cells[0], len(cells)
        if not cell.plan.in_turns:
            answers = min(answers * Work(cell).n_rows, answers + cell_group.FULL_BATCH)
        return max(map(self.bytes, cells)) + answers * entries_bytes(cell) * 2 // 3

    def _near(self, cell: Cell) -> list[_Measured]:
        """The rows of the most similar cells, nearest in length first."""
        device = [row for row in self.rows if row.cell.device["kind"] == cell.device["kind"]]
        model = [row for row in device if row.cell.model["name"] == cell.model["name"]]
        if not model:
            found = self._others(cell.model["name"])
            model = [row for row in found if row.cell.device["kind"] == cell.device["kind"]]
        method = [row for row in model if row.cell.method["name"] == cell.method["name"]]
        rows = sorted(
            method or model or device,
            key=lambda row: abs(math.log(row.cell.length / cell.length)),
        )
        return rows[:N_NEAREST]


def _ok(rows: Iterable[tuple[Cell, Row]]) -> list[_Measured]:
    return [_Measured(cell, row) for cell, row in rows if row["status"] == Status.OK]


def _extrapolated(rows: list[_Measured], cell: Cell) -> int | None:
    """Bytes at the cell's length, by the power law between the two longest of these rows: the
    formula doesn't know which methods have an n × n matrix."""
    by_length = {row.cell.length: row.extra_bytes / row.cell.batch for row in rows
                 if row.extra_bytes}  # fmt: skip
    if len(by_length) < 2:
        return None
    (short, less), (long, more) = sorted(by_length.items())[-2:]
    power = math.log(max(more / less, 1.0)) / math.log(long / short)
    return int(rows[0].cell.batch * more * (cell.length / long) ** min(power, 2.0))


def _correction(
    formula: Callable[[Cell], float], measured: Iterable[tuple[Cell, float | None]]
) -> float:
    """The median ratio of the measured figures to the formula; 1 if nothing is known."""
    ratios = [math.log(value / formula(cell)) for cell, value in measured if value]
    median = math.exp(statistics.median(ratios or [0.0]))
    return max(1 / MAX_CORRECTION, min(MAX_CORRECTION, median))
