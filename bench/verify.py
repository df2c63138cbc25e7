"""bench verify ROW: measure a stored row again on this machine, and say whether it agrees.

agrees       within what a second measurement may differ by
disagrees    beyond that, and surely
can't tell   this host lacks what the row needs, or can't resolve the difference
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bench import config, plugins, rows, runner, show, stats, tables
from bench.cell import Cell
from bench.commands import parser_for
from bench.errors import RequestError
from bench.models import auto
from bench.rows import Row
from bench.schema import DataConf, DeviceConf, ModelConf

Verdict = Literal["agrees", "disagrees", "can't tell"]

POINTS = 1.0
"""Scores of the same samples may differ by this, or by one answer."""
SAME_HOST, OTHER_HOST, IMPLAUSIBLE = 1.10, 1.5, 3.0
"""Factors between two latency ratios: as good as equal on one host, and on two; and beyond which
no two hosts should be."""
SAME_BYTES, SAME_BYTES_SHARE, OTHER_BYTES_SHARE = 1 << 20, 0.02, 0.25
OUT_OF_ROOM = ("oom_host", "oom_device", "timeout", "skipped")


class Answer(NamedTuple):
    """One figure, as the row has it and as it was measured here."""

    figure: str
    stored: str
    here: str
    verdict: Verdict
    why: str = ""


class CantTell(Exception):
    """Why this host can't measure the row at all: one line."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when the row disagrees."""
    parser = parser_for(
        "verify",
        "measure a row again on this machine: agrees, disagrees, or this host can't tell",
        "bench verify 3f2a91\nbench verify contributed/3f2a91 --data-dir /data",
    )
    parser.add_argument("row", metavar="ROW", help="a row's id (its first letters), or FOLDER/ID")
    parser.add_argument(
        "--results", type=Path, default=rows.DEFAULT, metavar="DIR",
        help=f"folder of rows ({rows.DEFAULT})",
    )  # fmt: skip
    add_options(parser)
    options = parser.parse_args(arguments)
    chosen = rows.side(options.row, options.results)
    if not chosen.one:
        raise RequestError(f"'{options.row}' is no row's id; bench results lists rows")
    row = rows.best(chosen.rows)
    answers = verify(row, options.data_dir, options.deadline_s)
    tell(row, answers)
    return 1 if overall(answers) == "disagrees" else 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a second measurement may need to be told."""
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where rows of data=local lie on this machine"
    )
    parser.add_argument("--deadline-s", type=float, default=3600.0, metavar="SECONDS")


def verify(row: Row, data_dir: Path | None = None, deadline_s: float = 3600.0) -> list[Answer]:
    """Measure the row's cell again, apart from all stored rows, and compare."""
    try:
        cell = cell_here(row, data_dir)
    except CantTell as error:
        return [Answer("cell", row["status"], "–", "can't tell", str(error))]
    with tempfile.TemporaryDirectory() as folder, show.progress(cell.title) as progress:
        try:
            new = runner.run(cell, folder, force=True, deadline_s=deadline_s, progress=progress)
        except RequestError as error:
            return [Answer("cell", row["status"], "–", "can't tell", str(error))]
    answers = compare(row, new)
    if json.loads(row["cell"])["code_sha256"] != cell.code_sha256:
        answers = [_softened(answer) for answer in answers]
    return answers


def cell_here(row: Row, data_dir: Path | None) -> Cell:
    """The row's cell with this machine's paths. Raises CantTell where it wouldn't be the same."""
    if not row["cell"]:
        raise CantTell("the row doesn't hold its cell: it was stored by an older version")
    stored = json.loads(row["cell"])
    if strange := strange_code(stored):
        raise CantTell(strange)
    if stored.get("recipe"):
        raise CantTell("its weights were trained by a recipe: run its command, then bench compare")
    try:
        request = _request(stored, data_dir)
        cell = Cell.of(request)
        if cell.code_sha256 != stored["code_sha256"]:
            # A cell names the family that a checkpoint led to; the code counted is what was asked.
            found = Cell.of({**request, "model": {**request["model"], "family": auto.AUTO}})
            cell = found if found.code_sha256 == stored["code_sha256"] else cell
    except (RequestError, KeyError, TypeError) as error:
        raise CantTell(f"this host can't run it: {error}") from error
    for group, name, what in (("data", "sha256", "rows"), ("model", "weights_sha256", "weights")):
        if getattr(cell, group)[name] != stored[group][name]:
            raise CantTell(f"the {what} here are not those that it was measured with")
    return cell


def strange_code(stored: Mapping[str, Any]) -> str | None:
    """What a cell would load that isn't this checkout's code of that name; None when all is. A row
    comes from outside, and must not choose what is imported here."""
    for group in ("method", "task"):
        name, target = (str(stored[group].get(part)) for part in ("name", "target"))
        known = plugins.available(group)
        if name not in known:
            return f"no {group} '{name:.40}' in this checkout"
        if target != plugins.conf(group, name)["target"]:
            return f"{group} {name} is said to be '{target:.60}', which isn't what it is here"
    family = str(stored["model"].get("family"))
    families = {plugins.conf("model", name).get("family") for name in plugins.available("model")}
    families |= set(auto.FAMILIES.values())
    return None if family in families else f"no family '{family:.60}' in this checkout"


def _request(stored: dict[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """What bench run was asked for."""
    request = config.compose([])
    request |= {name: value for name, value in stored.items() if name in request}
    model, data = stored["model"], stored["data"]
    request["model"] = _only(
        {**model, "path": model.get("original_path", model["path"])}, ModelConf
    )
    request["data"] = _only({**data, "dir": str(data_dir or data["dir"] or "") or None}, DataConf)
    request["device"] = _only(stored["device"], DeviceConf)
    return request


def _only(content: dict[str, Any], shape: type) -> dict[str, Any]:
    return {name: content[name] for name in shape.__dataclass_fields__ if name in content}  # type: ignore[attr-defined]


def _softened(answer: Answer) -> Answer:
    if answer.verdict != "disagrees":
        return answer
    why = f"the method's, task's or family's code changed since; {answer.why}".rstrip("; ")
    return answer._replace(verdict="can't tell", why=why)


def compare(old: Row, new: Row) -> list[Answer]:
    """A row and a second measurement of its cell, figure by figure."""
    if old["status"] != new["status"]:
        return [_status(old, new)]
    if old["status"] != "ok":
        return [Answer("status", old["status"], new["status"], "agrees")]
    found = [_quality(old, new), _latency(old, new), _memory(old, new)]
    answers = [answer for answer in found if answer]
    return answers or [Answer("status", "ok", "ok", "agrees", "the row has no figure")]


def _status(old: Row, new: Row) -> Answer:
    answer = Answer("status", old["status"], new["status"], "disagrees", "")
    if {old["status"], new["status"]} & set(OUT_OF_ROOM):
        return answer._replace(verdict="can't tell", why="hosts differ in memory and in time")
    return answer._replace(why=(new.get("status_detail") or "").partition("\n")[0])


def _quality(old: Row, new: Row) -> Answer | None:
    before, now = old["value"], new.get("value")
    if before is None:
        return None
    if now is None:
        return Answer("quality", f"{before:.2f}", "–", "can't tell", "not scored here")
    answer = Answer("quality", f"{before:.2f}", f"{now:.2f}", "agrees")
    if old["predictions_sha256"] and old["predictions_sha256"] == new.get("predictions_sha256"):
        same = abs(before - now) < 1e-6
        why = "the same answers" if same else "the same answers, scored otherwise"
        return answer._replace(verdict="agrees" if same else "disagrees", why=why)
    allowed = max(POINTS, 100 / max(1, old["n_scored"] or 1))
    if abs(now - before) <= allowed + 1e-9:
        return answer._replace(why=f"other answers, within {allowed:.1f} points")
    return answer._replace(verdict="disagrees", why=f"more than {allowed:.1f} points apart")


def _latency(old: Row, new: Row) -> Answer | None:
    before, now = _ratio(old), _ratio(new)
    if before is None:
        return None
    if now is None:
        why = new.get("ratio_reason") or "not measured here"
        return Answer("latency", _times(before), "–", "can't tell", why)
    answer = Answer("latency", _times(before), _times(now), "can't tell")
    if old["noisy"] or new.get("noisy"):
        return answer._replace(why="a host was too busy for a fair measurement")
    same_host = old["host_id"] == new.get("host_id")
    near = math.log(SAME_HOST if same_host else OTHER_HOST)
    far = near if same_host else math.log(IMPLAUSIBLE)
    apart = stats.ratio_of_ratios(before, now)
    middle, lo, hi = (math.log(x) if x > 0 else -math.inf for x in apart[:3])
    where = "on the same host" if same_host else "on another host"
    told = f"×{apart.ratio:.3f} of the row's ratio, {where}"
    if 1 in (old["n_processes"] or 1, new.get("n_processes") or 1):
        told += ", by one process alone"
    if -near <= lo and hi <= near:
        return answer._replace(verdict="agrees", why=told)
    if not lo <= 0 <= hi and abs(middle) > far:
        return answer._replace(verdict="disagrees", why=told)
    return answer._replace(why=f"{told}: not sure enough")


def _ratio(row: Row) -> stats.Ratio | None:
    values = [row.get(n) for n in ("ratio", "ratio_ci_lo", "ratio_ci_hi", "ratio_p", "n_pairs")]
    return None if None in values else stats.Ratio(*values)  # type: ignore[arg-type]


def _times(ratio: stats.Ratio) -> str:
    return f"×{ratio.ratio:.3f}"


def _memory(old: Row, new: Row) -> Answer | None:
    column = "gpu_alloc_delta_bytes" if old["gpu_alloc_delta_bytes"] else "rss_peak_delta_bytes"
    before, now = old[column], new.get(column)
    if before is None:
        return None
    stored = f"{before / show.MIB:,.1f} MiB"
    if now is None or old["mem_method"] != new.get("mem_method"):
        return Answer("memory", stored, "–", "can't tell", "read in another way here")
    answer = Answer("memory", stored, f"{now / show.MIB:,.1f} MiB", "agrees")
    same_host = old["host_id"] == new.get("host_id")
    share = SAME_BYTES_SHARE if same_host else OTHER_BYTES_SHARE
    if abs(now - before) <= SAME_BYTES + share * before:
        return answer
    why = f"more than {share:.0%} apart"
    return answer._replace(verdict="disagrees" if same_host else "can't tell", why=why)


def overall(answers: Sequence[Answer]) -> Verdict:
    """One figure that disagrees is enough; one that can't be told leaves the row open."""
    found = {answer.verdict for answer in answers}
    order: tuple[Verdict, ...] = ("disagrees", "can't tell")
    return next((verdict for verdict in order if verdict in found), "agrees")


def tell(row: Row, answers: Sequence[Answer]) -> None:
    """The answers on the terminal."""
    from rich.markup import escape

    lines = [[escape(text) for text in answer] for answer in answers]
    names = ("figure", "in the row", "here", "verdict", "")
    title = escape(f"{row['method']} × {row['task']} × {row['model']}, row {row['row_id'][:12]}")
    tables.draw(title, names, lines, ("figure", "verdict", ""))
    said = overall(answers)
    print(f"row {row['row_id'][:12]}: {'this host ' if said.startswith('can') else ''}{said}")
