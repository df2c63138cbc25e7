"""docs/results.md, generated from the reference rows, and the parts of README.md that are:
python -m reports.results_page [FILE]."""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.errors import RequestError
from bench.files import write_own
from bench.request import plugins
from bench.status import QualityComparison, Status, Verdict
from bench.store.columns import COLUMNS
from bench.store.engine import ENGINE_ONLY, engine_only, own_engine
from bench.store.quality_arms import comparison, comparison_text, training_text
from bench.store.query import counting, select
from bench.store.store import Store
from bench.terminal import row_table
from bench.units import counted
from reports import kv_grid, lra_grids, ratios
from reports.looks import VANILLA, looks
from reports.papers.command import claims_text, paper_tables, papers_grid
from reports.rendering import TextGrid, render
from reports.rows import Row
from reports.ruler import grids as ruler_grids
from reports.ruler.scores import results as ruler_results
from reports.wording import AT_CHANCE, ENDED, tokens_read

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}
"""Instruction sets of a row → the vectors that they are of, widest first."""
QUICKSTART_HEAD = (
    "task", "tokens read", "method", "n", "score", "vanilla's score", "scores of",
    "latency ÷ vanilla's", "÷ exact, same engine", "kernel", "memory ÷ vanilla's", "output error",
)  # fmt: skip


def results_page(folder: Path = REFERENCE) -> str:
    """The page as Markdown; an experiment without rows is left out."""
    rows = counting(Store(folder).rows().to_pylist())
    for row in rows:
        row["method"] = plugins.method_label(row["method"], row["method_params"])
    quickstart = [row for row in _of_experiment(rows, "quickstart") if row["status"] == Status.OK]
    frontier = [
        _of_experiment([row for row in rows if row["model"] == model], "frontier")
        for model in dict.fromkeys(row["model"] for row in _run_by(rows, "frontier"))
    ]
    compared = [row for row in quickstart if row["method"] != VANILLA]
    lra = [row for row in rows if (row["recipe"] or "").startswith(lra_grids.RECIPES)]
    kv = _of_experiment(rows, "kv")
    ruler = [ruler_grids.page(one) for one in ruler_results(_of_experiment(rows, "ruler"))]
    lra_table2: dict[tuple[str, str], list[Row]] = {}
    for row in _run_by(rows, "lra_table2"):
        lra_table2.setdefault((row["host_id"], _host(row)), []).append(row)
    return render(
        "results.md.j2",
        claims=claims_text([folder]),
        papers=papers_grid(paper_tables([folder])),
        quickstart=_quickstart(compared) if compared else None,
        quickstart_hosts=_hosts(quickstart),
        quickstart_host_id=quickstart[0]["host_id"] if quickstart else "",
        at_chance=AT_CHANCE if any(row["at_chance"] for row in compared) else "",
        findings=_findings(compared),
        trainings=_trainings(compared),
        frontier=[(_frontier(some), _hosts(some)) for some in frontier],
        kv=kv_grid.grid(kv),
        kv_hosts=_hosts(kv),
        kv_findings=list(kv_grid.findings(kv)),
        ruler=ruler,
        chance_sign=AT_CHANCE,
        lra_scores=lra_grids.scores(lra),
        lra_published=lra_grids.published(rows),
        lra_published_hosts=_hosts(lra_grids.at_published_length(rows)),
        lra_hosts=_hosts(lra),
        lra_steps=[lra_grids.steps(some, host) for (_, host), some in lra_table2.items()],
    )


SHOWCASE = ("method=vcc", "task=narrativeqa", "length=4096", "measure=quick", "model=embedded",
            "device=cpu", "status=ok")  # fmt: skip
"""The row of `make bench` as README.md shows it: the newest of these values."""


def readme(text: str, page: str, folder: Path = REFERENCE) -> str:
    """The text of README.md with the claims of the page, and what `make bench` prints of the
    showcase's row. Raises RequestError where there is no such row."""
    for name, content in (("claims", _between("claims", page)), ("make bench", _showcase(folder))):
        text = text.replace(_between(name, text), content)
    return text


def _between(name: str, text: str) -> str:
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    return text[text.index(start) + len(start) : text.index(end)]


def _showcase(folder: Path) -> str:
    rows, _ = select(SHOWCASE, folder, list(COLUMNS))
    if not rows:
        raise RequestError(f"no row in {folder} fits {' '.join(SHOWCASE)}")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        row_table.show(rows[-1], folder)
    *lines, _ = printed.getvalue().strip("\n").splitlines()  # without the row's ids
    shown = "\n".join(line.rstrip() for line in lines)
    return f"```\n{shown}\n```\n"


def _run_by(rows: Iterable[Row], experiment: str) -> list[Row]:
    return [row for row in rows if row["experiment"] == experiment]


def _of_experiment(rows: Iterable[Row], name: str) -> list[Row]:
    """The experiment's rows of the host that measured most of them, of several the one that
    measured last: one table has one host."""
    found = _run_by(rows, name)
    newest_first = sorted(found, key=lambda row: row["created_utc"] or "", reverse=True)
    # Of hosts with as many rows, most_common gives the one that it met first.
    hosts = Counter(row["host_id"] for row in newest_first if row["status"] != Status.SKIPPED)
    most = next((host for host, _ in hosts.most_common(1)), None)
    return [row for row in found if row["host_id"] == most]


def _hosts(rows: Iterable[Row]) -> list[str]:
    """Each machine of the rows, with its software."""
    return sorted({_host(row) for row in rows})


def _host(row: Row) -> str:
    """A row's machine and software. Processors of one name differ by their widest vectors."""
    sets = (row["instruction_sets"] or "").split()
    widest = next((f" ({name})" for flag, name in VECTORS.items() if flag in sets), "")
    return (
        f"{row['cpu_model']}{widest}, {row['virt']}, {counted(row['threads'], 'thread')}, "
        f"torch {row['torch']}"
    )


def _ordered(rows: Iterable[Row]) -> list[str]:
    """The methods of the rows in the order of legends."""
    return list(looks(str(row["method"]) for row in rows))


# --- quickstart: every method on every task ----------------------------------------------------


def _quickstart(rows: Sequence[Row]) -> TextGrid:
    """A line for each task and method."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    methods = _ordered(rows)
    ordered = sorted(
        rows, key=lambda row: (tasks.index(row["task"]), methods.index(str(row["method"])))
    )
    lines = [_quickstart_line(row) for row in ordered]
    return TextGrid("Quickstart", QUICKSTART_HEAD, lines, frozenset({1, 3, 4, 5, 7, 10, 11}))


def _quickstart_line(row: Row) -> tuple[str, ...]:
    chance = f" {AT_CHANCE}" if row["at_chance"] else ""
    return (
        str(row["task"]),
        tokens_read(row),
        str(row["method"]),
        str(row["n_scored"]),
        _within(row["value"], row["ci_lo"], row["ci_hi"], 1) + chance,
        _number(row["base_value"], 1),
        comparison_text(row) or "–",
        _latency(row),
        ratios.to_same_engine(row),
        ratios.kernel(row),
        f"×{_number(row['mem_ratio'], 2)}",
        "–" if row["fid_rel_l2"] is None else f"{row['fid_rel_l2']:.3g}",
    )


def _latency(row: Row) -> str:
    ratio = _within(row["ratio"], row["ratio_ci_lo"], row["ratio_ci_hi"], 3)
    text = " ".join(filter(None, (f"×{ratio}", row["verdict"], engine_only(row))))
    return ratios.emphasised(row, text)


def _within(value: float | None, lo: float | None, hi: float | None, digits: int) -> str:
    return f"{_number(value, digits)} ({_number(lo, digits)} … {_number(hi, digits)})"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _findings(rows: Sequence[Row]) -> list[str]:
    """What the rows of each method say: its verdicts, the range of its ratios and scores."""
    return [_finding(name, [r for r in rows if r["method"] == name]) for name in _ordered(rows)]


def _finding(method: str, rows: Sequence[Row]) -> str:
    verdicts = Counter(row["verdict"] for row in rows)
    counts = ", ".join(
        f"{verdict} on {verdicts[verdict]}" for verdict in Verdict if verdicts[verdict]
    )
    only = sum(bool(engine_only(row)) for row in rows)
    latency = [row["ratio"] for row in rows if row["ratio"] is not None]
    memory = [row["mem_ratio"] for row in rows if row["mem_ratio"] is not None]
    parts = [
        f"{ENGINE_ONLY}, or perhaps, on {only}" if only else "",
        f"latency ×{min(latency):.2f} to ×{max(latency):.2f}" if latency else "",
        f"peak memory ×{min(memory):.2f} to ×{max(memory):.2f}" if memory else "",
        *_score_ranges(rows),
    ]
    return f"{method}, {counted(len(rows), 'task')}: {counts}; {', '.join(filter(None, parts))}."


def _score_ranges(rows: Sequence[Row]) -> Iterator[str]:
    """The range of the differences from vanilla's score, those of the same weights apart from those
    of weights trained for each arm."""
    both = [r for r in rows if r["value"] is not None and r["base_value"] is not None]
    for compared in sorted({comparison_text(row) for row in both}):
        some = [r["value"] - r["base_value"] for r in both if comparison_text(r) == compared]
        points = f"{min(some):+.1f} to {max(some):+.1f} points".replace("-", "−")
        yield f"score {points} ({compared}, {counted(len(some), 'task')})"


def _trainings(rows: Sequence[Row]) -> list[str]:
    """The trainings of the weights that were trained for each arm, as far as rows record them."""
    own = [row for row in rows if comparison(row) == QualityComparison.TRAINED_EACH]
    arms = [(row["model"], row["method"], row["training"]) for row in own]
    arms += [(row["model"], VANILLA, row["base_training"]) for row in own]
    return [
        f"{model}, {method}: {training_text(training)}"
        for model, method, training in sorted(dict.fromkeys(arms), key=str)
        if training
    ]


# --- frontier: every method at every length ----------------------------------------------------


def _frontier(rows: Sequence[Row]) -> TextGrid:
    """A line for each method and a column for each length at which one was measured."""
    measured = [row for row in rows if row["status"] != Status.SKIPPED]
    cells = {(row["method"], row["length"]): row for row in [*rows, *measured]}
    beside = {
        length: [row for row in measured if row["length"] == length]
        for length in sorted({row["length"] for row in measured})
    }
    first = rows[0]
    return TextGrid(
        f"{first['model']}, {first['device']} {first['dtype']}, "
        f"{counted(first['threads'], 'thread')}",
        ["method", *(f"{length:,} tokens" for length in beside)],
        [
            [
                method,
                *(_frontier_cell(cells.get((method, n)), method, beside[n]) for n in beside),
            ]
            for method in _ordered(rows)
        ],
    )


def _frontier_cell(row: Row | None, method: str, beside: Iterable[Row]) -> str:
    """Latency and memory against vanilla's, or how the cell ended. Vanilla without a row of its own
    was timed `beside` the methods of its length: the median of those times."""
    if row is None or row["status"] == Status.SKIPPED:
        times = [other["base_median_ns"] for other in beside if other["base_median_ns"]]
        if method == VANILLA and times:
            return _milliseconds(statistics.median(times))
        return ratios.NONE if row is None else "not measured"
    if row["status"] != Status.OK:
        return ENDED[str(row["status"])]
    alone = _milliseconds(row["lat_median_ns"] or 0)
    if method == VANILLA:
        return alone
    if row["ratio"] is None:
        return f"{alone}, vanilla {ENDED.get(str(row['baseline_status']), 'not measured')}"
    memory = "–" if row["mem_ratio"] is None else f"×{row['mem_ratio']:.2f}"
    engine = own_engine(row)
    own = f" ({ratios.to_same_engine(row, 2)} on {engine})" if engine else ""
    return f"{ratios.to_vanilla(row, 2)}{own}, memory {memory}"


def _milliseconds(ns: float) -> str:
    return f"{ns / 1e6:,.0f} ms"


def main(arguments: Sequence[str]) -> None:
    path = Path(arguments[0]) if arguments else PAGE
    page = results_page()
    try:
        if path == PAGE:
            PAGE.write_text(page, encoding="utf-8")
            README.write_text(readme(README.read_text(encoding="utf-8"), page), encoding="utf-8")
        else:
            write_own(path, page.encode())
    except (RequestError, OSError) as error:
        sys.exit(str(error))
    print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
