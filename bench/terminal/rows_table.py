"""Rows as a table, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from bench.request import plugins
from bench.request.schema import BASELINE
from bench.rows import query
from bench.rows.columns import Row
from bench.rows.comparison import Comparison
from bench.rows.row_facts import engine_only, faster_as_good, kernel_names, labelled
from bench.status import Status
from bench.terminal import output
from bench.terminal.output import NONE, styled
from bench.terminal.row_table import ratio_text
from bench.units import mib, ms, score_digits, times, within

COLUMNS = (
    "row_id", "created_utc", "status", "method", "method_params", "task", "model", "weights_kind",
    "data_source", "length", "batch", "device", "dtype", "threads", "seed", "measure", "metric",
    "metric_version", "value", "ci_lo", "ci_hi", "base_value", "quality_comparison",
    "lat_median_ns", "lat_base_median_ns", "lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi",
    "lat_verdict", "kernel", "engine_ratio", "engine_ratio_ci_lo", "engine_ratio_ci_hi",
    "engine_verdict", "mem_ratio", "rss_peak_delta_bytes", "gpu_alloc_delta_bytes", "new_tokens",
    "question", "turns", "tpot_median_ns", "tpot_base_median_ns", "tpot_ratio", "tpot_ratio_ci_lo",
    "tpot_ratio_ci_hi", "tpot_verdict", "answer_median_ns", "answer_ratio", "kv_bytes_held",
    "kv_held_ratio", "kv_ratio_16bit", "kv_bytes_read_per_token", "kv_read_ratio",
    "decode_kl_mean", "noisy", "host_id", "cell_key", "weights_format", "status_detail",
)  # fmt: skip
"""Columns of a row in a tab-separated listing."""


def show(rows: Sequence[Row]) -> None:
    """The main columns, newest row last. Values that all rows share go to the title. Columns
    without a value are left out, and so is the status if all rows are ok. `--format tsv` has all.
    """
    lines = [_line(row) for row in rows]
    shared = [
        name
        for name in ("task", "model", "tokens", "device", "kernel")
        if len(rows) > 1 and len({line[name] for line in lines}) == 1
    ]
    empty = {name for name in lines[0] if all(line[name] in NONE for line in lines)}
    shared = [name for name in shared if name not in empty]
    hidden = {*shared, *empty}
    hidden |= {"status"} if all(row["status"] == Status.OK for row in rows) else set()
    names = [name for name in lines[0] if name not in hidden]
    left = ("row", "UTC", "method", "task", "model", "device", "status", "same engine", "kernel")
    titled = {"kernel": "kernel {}", "tokens": "{} tokens"}
    title = " · ".join(titled.get(name, "{}").format(lines[0][name]) for name in shared)
    output.draw(title, names, ([line[name] for name in names] for line in lines), left)


def show_seeds(records: Sequence[Mapping[str, Any]], form: str) -> None:
    """The scores of `bench.rows.query.over_seeds`."""
    names = ("method", "task", "tokens", "weights", "seeds", "mean", "sd", "range", "at chance")
    lines = (
        (
            escape(plugins.method_label(record["method"], record["method_params"]) or "–"),
            escape(record["task"]),
            f"{record['length']:,d}",
            record["weights_kind"],
            record["seeds"],
            f"{record['mean']:.1f}",
            within(record["sd"], style=".1f"),
            f"{record['lowest']:.1f} … {record['highest']:.1f}",
            str(record["seeds_at_chance"] or ""),
        )
        for record in records
    )
    left = ("method", "task", "weights", "seeds")
    output.show(form, query.OVER_SEEDS, records, names, lines, title="scores over seeds", left=left)


def _line(row: Row) -> dict[str, str]:
    latency, engine = Comparison.of(row, "lat"), Comparison.of(row, "engine")
    vanilla_ns = latency.median_ns if row["method"] == BASELINE else latency.base_median_ns
    return {
        "row": escape(row["row_id"][:8]),
        "UTC": escape((row["created_utc"] or "")[5:16].replace("T", " ")),
        "method": escape(plugins.method_label(row["method"], row["method_params"]) or "–"),
        "task": escape(row["task"] or "–"),
        "model": escape(labelled(row["model"] or "–", row)),
        "tokens": within(row["length"], style=",d"),
        "device": escape(row["device"] or "–"),
        "status": styled(row["status"]),
        "score": within(row["value"], style=f".{score_digits(row['higher_is_better'])}f"),
        f"{BASELINE}, ms": ms(vanilla_ns),
        "latency": _latency(row, latency),
        "same engine": f"{times(engine.ratio)} {styled(engine.verdict)}".rstrip(),
        "kernel": escape(kernel_names(row["kernel"], words=1) or "–"),
        "memory": times(row["mem_ratio"]),
        "time per token": _tpot(Comparison.of(row, "tpot")),
        "KV cache": _kv(row["kv_bytes_held"], row["kv_held_ratio"]),
        "KV read": _kv(row["kv_bytes_read_per_token"], row["kv_read_ratio"]),
    }


def _latency(row: Row, latency: Comparison) -> str:
    """The ratio to vanilla and its verdict; bold for a speed-up at vanilla's quality."""
    ratio, only = times(latency.ratio), engine_only(row)
    if faster_as_good(row):
        ratio = f"[bold]{ratio}[/]"
    word = f"[yellow]{latency.verdict} {only}[/]" if only else styled(latency.verdict)
    return f"{ratio} {word}".rstrip()


def _tpot(token: Comparison) -> str:
    """The ratio to vanilla of the time of a new token, with its interval and verdict."""
    if token.ratio is None:
        return "–" if token.median_ns is None else f"{ms(token.median_ns, '.2f')} ms"
    return ratio_text(token)


def _kv(size: int | None, ratio: float | None) -> str:
    if size is None:
        return "–"
    return f"{mib(size)} MiB" + ("" if ratio is None else f" {times(ratio)}")
