"""Cells that differ only in their method, measured together: their answers, for which each prompt
is read once, and times of new tokens or of the first one, measured in turns in the same processes
(`bench.measure.turns`).

Answers are stored as each cell's own predictions, sample by sample: the cell's run then finds
nothing missing, or answers the rest in its own process.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.errors import RequestError, RunError
from bench.execution import cell_run, spawn
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Outcome, Progress, Running
from bench.host import gpu, host
from bench.request import plugins
from bench.request.cell import Cell
from bench.request.parameters import PART
from bench.request.schema import BASELINE
from bench.rows.columns import COLUMNS
from bench.rows.comparison import pooled
from bench.rows.shards import remove_leftovers
from bench.rows.store import PREDICTIONS, Predictions
from bench.status import Status

Columns = dict[str, Any]
"""Columns of a row as children give them in JSON, and samples from which others are derived."""
STAGE = "shared prefill"
FULL_BATCH = 48
"""Rows that answer together; the next text is read when there are fewer. Without attention, a step
of SmolLM2-135M on 1 thread takes 15 ms a row for 12 rows, 3.6 for 52, and 3.4 for 64."""
OWN = "methods."
"""The project's own methods: another's code could read a neighbour's cache in the same process."""
VANILLA = -1
"""The number of vanilla among cells whose times are measured in turns; theirs start at 0."""


def key(cell: Cell) -> str | None:
    """Equal for cells that may answer together or be timed in turns: cells of a decoder, one text
    at a time, with methods that read the prompt with the same attention and differ in their KV
    cache. None: the cell is measured alone."""
    answers = cell.plan.quality and cell.model["weights"] != "random"
    answers = (answers or cell.plan.in_turns) and not cell.probe
    if not (answers and cell.decoder and cell.batch == 1):
        return None
    first_alone = cell.plan.in_turns and not cell.plan.tokens_alone
    if cell.recipe or not _shares(cell.method, reads_alike=not first_alone):
        return None
    reader = None if first_alone else cell.method.get(PART)
    content = asdict(cell) | {"method": reader, "code_sha256": None}
    return json.dumps(content, sort_keys=True, default=dict)


def check_in_turns(cell: Cell) -> None:
    """Raises RequestError for a cell that can't be timed in turns with others."""
    if cell.plan.in_turns and not cell.probe and key(cell) is None:
        caches = "KV caches" if cell.plan.tokens_alone else "methods"
        raise RequestError(
            f"measure={cell.measure} times {caches} of this project in a decoder, with batch=1; "
            f"accepted for method={cell.method['name']} model={cell.model['name']}: "
            "measure=speed, measure=decoding"
        )


def _shares(method: Mapping[str, Any], reads_alike: bool) -> bool:
    """Whether a method uses only this project's code and, if all must read a prompt with the same
    attention, is vanilla or changes a KV cache."""
    written = plugins.conf("method", method["name"])
    if method["name"] == BASELINE:
        return method == plugins.undescribed(written)
    own = all(target.startswith(OWN) for target in plugins.targets(method))
    own &= not written.get("facts", {}).get("needs")
    return own and (PART in written or not reads_alike)


def measure(
    cells: Sequence[Cell], results: Path, deadline_s: float, progress: Progress
) -> dict[str, Any]:
    """Answers the texts of the cells without a stored prediction, and vanilla's if it reads the
    prompts with the same attention; or times their tokens, and returns the columns of each cell by
    its key. Errors are left to the cells' own runs, which report them."""

    def report(line: str) -> None:
        progress(line, 0, 0)

    with contextlib.ExitStack() as locks, contextlib.suppress(RequestError, RunError):
        for name in sorted(cell.key for cell in cells):
            locks.enter_context(cell_run.lock_held(results / f".{name}.lock", report))
        run = CellRun(cells[0], results, deadline_s * len(cells), progress)
        if cell_run.load_parent(run) is None:
            if cells[0].plan.in_turns:
                return time_in_turns(run, cells)[1]
            _answer(run, [*cells, *_vanilla(cells[0])])
    return {}


def answer_in_batches(run: CellRun) -> Counter[str]:
    """Answers the texts of a cell without stored predictions, if its method allows this, together
    with vanilla if that has none either. Returns the columns of a row that hold the time of it."""
    folder = run.results / PREDICTIONS

    def answered_before(cell: Cell) -> bool:
        return bool(Predictions(folder, cell.prediction_key).done())

    if key(run.cell) is None or answered_before(run.cell):
        return Counter()
    base = [cell for cell in _vanilla(run.cell) if not answered_before(cell)]
    return _answer(run, [run.cell, *base], "quality")


def _vanilla(cell: Cell) -> list[Cell]:
    base = cell.baseline()
    same = cell.method.get("prefill") is None and base.model == cell.model
    return [base] if same else []


def _answer(run: CellRun, cells: Sequence[Cell], stage: str = STAGE) -> Counter[str]:
    """Answers in child processes. Returns the columns of a row that hold their time."""
    cells = list({cell.prediction_key: cell for cell in cells}.values())
    written = [cell.to_json() for cell in cells]
    outcome = answered(run, cells, "measure.shared_prefill", stage=stage, cells=written)
    spent = Counter(outcome.result.get("spent"), quality_ns=outcome.wall_ns)
    if outcome.status in (Status.OOM_HOST, Status.OOM_DEVICE) and len(cells) > 1:
        half = len(cells) // 2
        spent += _answer(run, cells[:half]) + _answer(run, cells[half:])
    return spent


def answered(run: CellRun, cells: Sequence[Cell], module: str, /, **request: Any) -> Outcome:
    """Have a child answer the rows of cells without a stored prediction, and store its answers. The
    child gets the other rows as `done`: for each cell, pairs of a row's id and its input's hash."""
    folder, stored, done = run.results / PREDICTIONS, [], []
    for cell in cells:
        remove_leftovers(folder / cell.prediction_key)
        stored.append(Predictions(folder, cell.prediction_key))
        records = stored[-1].done().items()
        done.append([[name, record.get("input_sha256")] for name, record in records])

    def store(_: Running, message: Mapping[str, Any]) -> None:
        stored[message["setting"]].append(message["records"])

    return run.child(module, {"predictions": store}, done=done, **request)


# Times that are measured in turns.


def time_in_turns(run: CellRun, cells: Sequence[Cell]) -> tuple[Outcome, dict[str, Columns]]:
    """The outcome of the last process, and the columns of each cell's row by its key; cells whose
    method failed have none. If several caches don't fit in memory, they are timed in two halves."""
    cell, plan, since, wall_ns = cells[0], cells[0].plan, spawn.counters(), 0
    parts: list[Columns] = []
    for process in range(plan.processes):
        outcome = run.child(
            "measure.turns", cells=[cell.to_json() for cell in cells], counts=not process,
            rounds=-(-plan.pairs // plan.processes),
        )  # fmt: skip
        wall_ns += outcome.wall_ns
        if outcome.status in (Status.OOM_HOST, Status.OOM_DEVICE) and len(cells) > 1:
            halves = [time_in_turns(run, half) for half in (cells[::2], cells[1::2])]
            return halves[-1][0], halves[0][1] | halves[1][1]
        if outcome.status != Status.OK:
            return outcome, {}
        parts.append(outcome.result)
    facts = host.fingerprint(cell.threads, cell.device["kind"], since, spawn.counters())
    on_gpu = [part["columns"] for part in parts]
    shared = {
        **facts, **on_gpu[0], **gpu.throttled(on_gpu),
        "wall_total_ns": wall_ns // len(cells), "tokens_out": cell.new_tokens,
    }  # fmt: skip
    name = "tpot" if plan.tokens_alone else "lat"
    return outcome, {
        cell.key: shared | _columns(cell, name, str(number), parts)
        for number, cell in enumerate(cells)
        if all(str(number) in part["timed"] for part in parts)
    }


def _columns(cell: Cell, name: str, number: str, parts: Sequence[Columns]) -> Columns:
    counts: dict[str, Columns] = parts[0]["counts"]
    base = counts[str(VANILLA)]
    columns: Columns = {name: pooled([part["timed"][number] for part in parts])}
    if cell.is_baseline:
        return columns | base
    return columns | counts[number] | of_base(base)


def of_base(columns: Columns) -> Columns:
    """The columns of a row that are vanilla's."""
    found = {f"base_{name}": value for name, value in columns.items()}
    return {name: value for name, value in found.items() if name in COLUMNS}
