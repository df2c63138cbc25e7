"""Estimates of a cell's time and memory, before anything of it runs.

A formula of the model's size and the input's length, calibrated by measured rows: those of the same
method and model first, else of the same model, else any of the same device. Without rows it assumes
a typical processor and attention in linear memory, and can be wrong by a factor of three. No torch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.models import auto
from bench.request import plugins
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.status import Status

FLOPS_PER_THREAD = 4e10
FLOPS_GPU = 3e13
IMPORT_S = 5.0
"""A child process imports torch and transformers."""
BYTES_PER_S = 5e8
TOKEN_S = 0.004
"""Overhead of a generated token beside its arithmetic."""
CALL_S = 0.002
"""Overhead of a forward pass beside its arithmetic."""
WARM_CALLS = 12
MEMORY_CALLS = 8
WARM_ANSWERS, ANSWERS_A_PAIR = 6, 0.2
"""Where decoding is timed: answers of an arm for warm-ups and checks, and for one pair, which reads
no prompt."""
TAKEN, STEPPED, ANSWERED_S = 0.02, 0.35, 1.0
"""Where cells answer together: for each of them, the time to score and keep a prompt, in forward
passes, that of a row in a batch, in generated tokens, and seconds to find its answers stored."""
QUALITY_OF_BASELINE = f"quality of {BASELINE}"
SHARED = ("quality", QUALITY_OF_BASELINE, "tokens", "first_token")
"""Stages that cells of a group have in common."""
STEPS_OF_SAMPLE = 5
PROCESS_BYTES = 450 << 20
ROWS = 10_000
"""Assumed for a split of unknown size."""
WIDTHS = 24
"""Activations of a token at the peak, as vectors of the model's width."""
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MAX_CORRECTION = 30.0
N_NEAREST = 5
MOST = 1 << 40
"""Of a size in a config.json; one beyond it is wrong, which a run finds out."""

Row = Mapping[str, Any]


class Size(NamedTuple):
    layers: int
    width: int
    inner: int
    decoder_layers: int
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
    decoders = first("num_decoder_layers", "decoder_layers", default=0)
    if config:
        vocabulary = first("vocab_size", default=32_000)
        per_layer = 4 * width**2 + 3 * width * inner
        weights = 4 * (vocabulary * width + (layers + 2 * decoders) * per_layer)
    else:
        weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    heads = first("num_attention_heads", default=0)
    head_size = first("head_dim", default=width // max(1, heads))
    key_width = head_size * first("num_key_value_heads", default=heads)
    return Size(layers, width, inner, decoders, weights, key_width)


def size(model: Mapping[str, Any]) -> Size:
    """Size of a cell's model, from its configuration alone."""
    config = model.get("config")
    text = json.dumps(config, sort_keys=True) if config else None
    return _read_size(str(plugins.ROOT / model["path"]), text)


def start_s(cell: Cell) -> float:
    """Seconds until a child process has loaded its model."""
    return IMPORT_S + size(cell.model).weights_bytes / BYTES_PER_S


class StageEstimate(NamedTuple):
    """`name` is what the stage reports as its own, `arms` the methods that it measures."""

    name: str
    arms: str
    seconds: float


def formula_s(cell: Cell) -> float:
    """Seconds of all the cell's child processes, from sizes alone."""
    return sum(stage.seconds for stage in stages_s(cell))


def stages_s(cell: Cell) -> list[StageEstimate]:
    """The stages of a cell in the order in which they run, from sizes alone."""
    forward_s, begin_s = _forward_s(cell), start_s(cell)
    method = str(cell.method["name"])
    names = [method] if method == BASELINE else [method, BASELINE]
    if cell.probe:
        tried_s = _step_s(cell) if cell.plan.training else forward_s
        return [StageEstimate("probe", method, 12 * (begin_s + 4 * tried_s))]
    arms, together = len(names), " and ".join(names)
    stages: list[StageEstimate] = []
    if cell.plan.quality and cell.model["weights"] != "random":
        answers_s = _rows(cell) / cell.batch * (_read_s(cell) + _answer_s(cell))
        stages.append(StageEstimate("quality", method, begin_s + answers_s))
        if arms > 1:
            stages.append(StageEstimate(QUALITY_OF_BASELINE, BASELINE, answers_s))
    if cell.plan.speed:
        timed_s = min(cell.plan.budget_s, 4 / 3 * arms * cell.plan.pairs * forward_s)
        warm_s = begin_s + arms * WARM_CALLS * min(forward_s, 1.0) + 6 * forward_s
        stages.append(StageEstimate("latency", together, warm_s + timed_s))
        answer_s = 0.0
        if cell.new_tokens:
            tokens_s = cell.new_tokens * _token_s(cell)
            answer_s = forward_s + tokens_s
            timed_s = min(cell.plan.budget_s, ANSWERS_A_PAIR * cell.plan.pairs * arms * tokens_s)
            warm_s = begin_s + WARM_ANSWERS * arms * answer_s
            stages.append(StageEstimate("decoding", together, warm_s + timed_s))
        memory_s = begin_s + MEMORY_CALLS * forward_s + answer_s
        stages += [StageEstimate("memory", name, memory_s) for name in names]
    if cell.plan.in_turns:
        stages.append(StageEstimate(cell.measure, together, in_turns_s(cell, 1)))
    if cell.plan.training:
        step_s = _step_s(cell)
        timed_s = min(cell.plan.budget_s, 4 / 3 * arms * cell.plan.pairs * step_s)
        warm_s = begin_s + arms * WARM_CALLS * min(step_s, 1.0)
        stages.append(StageEstimate("training", together, warm_s + timed_s))
        peak_s = begin_s + 2 * step_s
        stages += [StageEstimate("memory of training", name, peak_s) for name in names]
    return stages


def in_turns_s(cell: Cell, count: int) -> float:
    """Seconds in which `count` cells and vanilla are timed in turns, in several processes."""
    start, forward_s, samples = start_s(cell), _forward_s(cell), cell.plan.pairs * (count + 2)
    if not cell.plan.tokens_alone:
        return cell.plan.processes * (start + (count + 1) * forward_s) + samples * forward_s
    steps_s = samples * STEPS_OF_SAMPLE * _token_s(cell)
    return cell.plan.processes * (start + (1 + TAKEN * count) * forward_s) + steps_s


def together_s(cell: Cell, count: int) -> float:
    """Seconds in which `count` cells that differ from this one in their method answer together, in
    one process: each prompt is read once; or in which they are timed in turns."""
    if cell.plan.in_turns:
        return in_turns_s(cell, count)
    read_s = _read_s(cell) + TAKEN * count * _forward_s(cell)
    # Single tokens are read in a batch of the cells.
    answers = count if cell.task.get("continuation") else 1 + STEPPED * count
    return start_s(cell) + _rows(cell) * (read_s + answers * _answer_s(cell))


def _rows(cell: Cell) -> int:
    return cell.n or cell.task.get("n", {}).get(cell.data["split"]) or 128


def _read_s(cell: Cell) -> float:
    """Seconds in which a batch of prompts is read. A continuation takes one more, of vanilla."""
    return (2 if cell.task.get("continuation") else 1) * _forward_s(cell)


def _answer_s(cell: Cell) -> float:
    """Seconds of a batch's tokens after the prompts. A continuation is read in one pass."""
    if continuation := cell.task.get("continuation"):
        return float(continuation) / cell.length * _forward_s(cell)
    # Few answers reach the generation limit.
    return min(64, cell.task.get("max_new_tokens") or 1) / 2 * _token_s(cell)


def training_s(cell: Cell) -> float:
    """Seconds that a recipe takes to train a cell's weights, from sizes alone: steps of a forward
    pass and a backward pass of twice its time, and evaluations. Early stopping isn't considered."""
    recipe = cell.recipe
    assert recipe is not None
    rows = recipe["rows"] or cell.task.get("n", {}).get("train") or ROWS
    steps = int(recipe["steps"] or math.ceil((recipe["epochs"] or 1) * rows / recipe["batch"]))
    evaluated = steps // int(recipe["eval_every"]) * int(recipe["dev_rows"] or ROWS)
    return start_s(cell) + steps * _step_s(cell) + evaluated * _row_s(cell)


def _token_s(cell: Cell) -> float:
    """Seconds of a generated token."""
    return TOKEN_S + 2 * size(cell.model).weights_bytes / 4 / _rate(cell)


def _row_s(cell: Cell) -> float:
    """Seconds of one row in a batch."""
    return (_forward_s(cell) - CALL_S) / cell.batch


def _step_s(cell: Cell) -> float:
    """Seconds of one training step: a batch forward and backward."""
    batch = int(cell.recipe["batch"] if cell.recipe else cell.batch)
    return 3 * (CALL_S + batch * _row_s(cell))


def formula_bytes(cell: Cell) -> tuple[int, int]:
    """Bytes of a child process with its model, and those that one input adds."""
    own = size(cell.model)
    scale = BYTES[cell.dtype]
    base = PROCESS_BYTES + own.weights_bytes * scale // 4
    widest = WIDTHS * own.width + 2 * own.inner
    return base, cell.batch * cell.length * widest * scale


def _forward_s(cell: Cell) -> float:
    own = size(cell.model)
    per_token = own.layers * 2 * (4 * own.width**2 + 3 * own.width * own.inner)
    attention = own.layers * 4 * cell.length**2 * own.width
    return cell.batch * (cell.length * per_token + attention) / _rate(cell) + CALL_S


def _rate(cell: Cell) -> float:
    return FLOPS_GPU if cell.device["kind"] == "cuda" else FLOPS_PER_THREAD * cell.threads


@dataclass(frozen=True)
class _Measured:
    """What a row measured of its cell."""

    cell: Cell
    seconds: float | None
    extra_bytes: int | None
    base_bytes: int | None
    trained_s: float | None = None


class Estimates:
    """Estimates calibrated by measured rows."""

    def __init__(self, rows: Iterable[tuple[Cell, Row]]) -> None:
        self.rows = [_measured(cell, row) for cell, row in rows if row["status"] == Status.OK]

    def seconds(self, cell: Cell) -> float:
        ratios = [row.seconds / formula_s(row.cell) for row in self._near(cell)
                  if row.seconds and row.cell.measure == cell.measure]  # fmt: skip
        return formula_s(cell) * _corrected(ratios)

    def together(self, cells: Sequence[Cell]) -> list[float]:
        """Seconds of cells that answer together: of each one's own processes, and for the first
        one also of answering."""
        scales = [self.seconds(cell) / formula_s(cell) for cell in cells]
        own = [
            scale * sum(ANSWERED_S if stage.name in SHARED else stage.seconds
                        for stage in stages_s(cell))
            for cell, scale in zip(cells, scales, strict=True)
        ]  # fmt: skip
        own[0] += statistics.median(scales) * together_s(cells[0], len(cells) + 1)
        return own

    def alone(self, cells: Sequence[Cell]) -> list[float]:
        """Seconds of the same cells, each answering alone: after the first one, vanilla's answers
        are stored."""
        return [
            sum(x.seconds for x in self.stages(cell) if not i or x.name != QUALITY_OF_BASELINE)
            for i, cell in enumerate(cells)
        ]

    def stages(self, cell: Cell) -> list[StageEstimate]:
        """The cell's stages, in the proportion that the formula gives them."""
        scale = self.seconds(cell) / max(formula_s(cell), 1e-9)
        return [stage._replace(seconds=scale * stage.seconds) for stage in stages_s(cell)]

    def training(self, cell: Cell) -> float:
        """Seconds that a recipe takes to train a cell's weights."""
        ratios = [row.trained_s / training_s(row.cell) for row in self._near(cell)
                  if row.trained_s and row.cell.recipe]  # fmt: skip
        return training_s(cell) * _corrected(ratios)

    def bytes(self, cell: Cell) -> int:
        """The greatest resident memory of one of the cell's processes, or its GPU memory."""
        base, extra = formula_bytes(cell)
        near = [row for row in self._near(cell) if row.extra_bytes]
        ratios = [(row.extra_bytes or 1) / formula_bytes(row.cell)[1] for row in near]
        bases = [row.base_bytes for row in near if row.base_bytes]
        same = [row for row in near if row.cell.model["name"] == cell.model["name"]]
        if same and bases:
            base = max(bases)
        of_method = [row for row in same if row.cell.method == cell.method]
        return base + (_extrapolated(of_method, cell) or int(extra * _corrected(ratios)))

    def bytes_together(self, cells: Sequence[Cell]) -> int:
        """The greatest memory of a process in which cells answer together: with two thirds of all
        keys and values for each."""
        cell = cells[0]
        own = size(cell.model)
        kept = 2 * own.layers * own.key_width * cell.length * BYTES[cell.dtype]
        return max(map(self.bytes, cells)) + len(cells) * kept * 2 // 3

    def _near(self, cell: Cell) -> list[_Measured]:
        """The rows of the most similar cells, nearest in length first."""
        device = [row for row in self.rows if row.cell.device["kind"] == cell.device["kind"]]
        model = [row for row in device if row.cell.model["name"] == cell.model["name"]]
        method = [row for row in model if row.cell.method["name"] == cell.method["name"]]
        rows = sorted(
            method or model or device,
            key=lambda row: abs(math.log(row.cell.length / cell.length)),
        )
        return rows[:N_NEAREST]


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


def _measured(cell: Cell, row: Row) -> _Measured:
    wall = row.get("wall_total_ns")
    on_gpu = cell.device["kind"] == "cuda"
    peak = "gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"
    peaks = [row.get(peak), row.get(f"base_{peak}")]
    base = row.get("weights_bytes") if on_gpu else row.get("rss_base_bytes")
    trained = row.get("train_wall_ns")
    # A row's time includes a training that it started; a longer training was done before. It leaves
    # out what another process answered for it.
    if (wall and trained and wall > trained) or row.get("batched_answers"):
        wall = None
    extra = max(filter(None, peaks), default=None)
    return _Measured(cell, wall / 1e9 if wall else None, extra, base, trained and trained / 1e9)


def _corrected(ratios: list[float]) -> float:
    if not ratios:
        return 1.0
    median = math.exp(statistics.median(map(math.log, ratios)))
    return max(1 / MAX_CORRECTION, min(MAX_CORRECTION, median))
