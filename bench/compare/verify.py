"""A stored row measured again on this machine, and whether the two agree.

agrees       within the accepted difference of a second measurement
disagrees    significantly beyond that difference
can't tell   this host lacks a requirement of the row, or can't resolve the difference
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.compare.compare import SAME_BYTES
from bench.errors import RequestError
from bench.execution import runner
from bench.execution.supervisor import Progress
from bench.host.host import has_older_id
from bench.models import auto
from bench.request import compose, plugins
from bench.request.cell import Cell
from bench.request.schema import DataConf, DeviceConf, ModelConf
from bench.rows.columns import Row
from bench.rows.comparison import Comparison
from bench.rows.row_facts import kernel_names
from bench.statistics import paired
from bench.status import Status
from bench.units import mib

POINTS = 1.0
"""Scores of the same samples may differ by this, or by one check."""
SAME_HOST, OTHER_HOST, IMPLAUSIBLE = 1.10, 1.5, 3.0
"""Factors between two latency ratios: up to which they are practically equal on one host, and on
two hosts; and the largest one expected between any two hosts."""
SAME_BYTES_SHARE, OTHER_BYTES_SHARE = 0.02, 0.25
OUT_OF_RESOURCES = {Status.OOM_HOST, Status.OOM_DEVICE, Status.TIMEOUT, Status.SKIPPED}


class Agreement(StrEnum):
    """Result of a second measurement compared with the first."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    CANT_TELL = "can't tell"


class FigureCheck(NamedTuple):
    """One figure: its value in the row, and as measured here."""

    figure: str
    stored: str
    here: str
    verdict: Agreement
    reason: str = ""


def verify(
    row: Row, data_dir: Path | None, deadline_s: float, progress: Progress
) -> list[FigureCheck]:
    """Measure the row's cell again, separate from all stored rows, and compare."""
    try:
        cell = cell_here(row, data_dir)
        with tempfile.TemporaryDirectory() as folder:
            new = runner.run(cell, folder, force=True, deadline_s=deadline_s, progress=progress)
    except RequestError as error:
        return [FigureCheck("cell", row["status"], "–", Agreement.CANT_TELL, str(error))]
    checks = compare_rows(row, cast(Row, new))
    if json.loads(row["cell"] or "{}")["code_sha256"] != cell.code_sha256:
        changed = "the method's, task's or family's code changed since"
        checks = [_excused(check, changed) for check in checks]
    return checks


def _excused(check: FigureCheck, reason: str) -> FigureCheck:
    """A check whose disagreement is undecidable for this reason."""
    if check.verdict != Agreement.DISAGREES:
        return check
    return check._replace(verdict=Agreement.CANT_TELL, reason=f"{reason}; {check.reason}")


def cell_here(row: Row, data_dir: Path | None) -> Cell:
    """The row's cell with this machine's paths. Raises RequestError if that is another cell."""
    if not row["cell"]:
        raise RequestError("the row doesn't hold its cell: it was stored by an older version")
    stored = json.loads(row["cell"])
    check_code(stored)
    if stored.get("recipe"):
        reason = "its weights were trained by a recipe"
        raise RequestError(f"{reason}: run its command, then bench compare")
    try:
        request = _request(stored, data_dir)
        cell = Cell.of(request)
        if cell.code_sha256 != stored["code_sha256"]:
            # A cell names the family found for a checkpoint; the code hash is of the requested one.
            resolved = Cell.of({**request, "model": {**request["model"], "family": auto.AUTO}})
            cell = resolved if resolved.code_sha256 == stored["code_sha256"] else cell
    except (RequestError, KeyError, TypeError) as error:
        raise RequestError(f"this host can't run it: {error}") from error
    for group, name, what in (("data", "sha256", "rows"), ("model", "weights_sha256", "weights")):
        if getattr(cell, group)[name] != stored[group][name]:
            raise RequestError(f"the {what} here are not those that it was measured with")
    return cell


def check_code(stored: Mapping[str, Any]) -> None:
    """Raises RequestError for a cell that would load code which differs from this checkout's code
    of that name. A row comes from outside, and must not choose the imported code."""
    for group in ("method", "task"):
        name, target = (str(stored[group].get(part)) for part in ("name", "target"))
        if name not in plugins.available(group):
            raise RequestError(f"no {group} '{name:.40}' in this checkout")
        if target != plugins.conf(group, name)["target"]:
            other = f"'{target:.60}', which isn't what it is here"
            raise RequestError(f"{group} {name} is said to be {other}")
    family = str(stored["model"].get("family"))
    families = {conf.get("family") for conf in plugins.usable("model").values()}
    if family not in families | set(auto.FAMILIES.values()):
        raise RequestError(f"no family '{family:.60}' in this checkout")


def _request(stored: dict[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """The request that was given to `bench run`."""
    request = compose.compose([])
    request |= {name: value for name, value in stored.items() if name in request}
    model, data = stored["model"], stored["data"]
    for part, shape, given in (
        ("model", ModelConf, {**model, "path": model.get("original_path", model["path"])}),
        ("data", DataConf, {**data, "dir": str(data_dir or data["dir"] or "") or None}),
        ("device", DeviceConf, stored["device"]),
    ):
        request[part] = {name: given[name] for name in vars(shape()) if name in given}
    return request


def compare_rows(old: Row, new: Row) -> list[FigureCheck]:
    """A row and a second measurement of its cell, figure by figure."""
    if old["status"] != new["status"]:
        check = FigureCheck("status", old["status"], new["status"], Agreement.DISAGREES)
        if {old["status"], new["status"]} & {*OUT_OF_RESOURCES, Status.RETIRED}:
            retired = old["status_detail"] if old["status"] == Status.RETIRED else None
            reason = retired or "hosts differ in memory and in time"
            return [check._replace(verdict=Agreement.CANT_TELL, reason=reason)]
        return [check._replace(reason=(new.get("status_detail") or "").partition("\n")[0])]
    same_status = FigureCheck("status", old["status"], new["status"], Agreement.AGREES)
    if old["status"] != Status.OK:
        return [same_status]
    costs = [_by_kernel(check, old, new) for check in (_latency(old, new), _memory(old, new))]
    return [check for check in (_quality(old, new), *costs) if check] or [
        same_status._replace(reason="the row has no figure")
    ]


def _by_kernel(check: FigureCheck | None, old: Row, new: Row) -> FigureCheck | None:
    """The check; if another kernel ran than for the row, it notes this and can't disagree."""
    before, now = (kernel_names(row.get("kernel")) for row in (old, new))
    if check is None or not before or not now or before == now:
        return check
    other = f"on {now} here, the row on {before}"
    if check.verdict == Agreement.DISAGREES:
        return _excused(check, other)
    return check._replace(reason="; ".join(filter(None, (other, check.reason))))


def _quality(old: Row, new: Row) -> FigureCheck | None:
    before, now = old["value"], new.get("value")
    if before is None:
        return None
    if now is None:
        return FigureCheck("quality", f"{before:.2f}", "–", Agreement.CANT_TELL, "not scored here")
    check = FigureCheck("quality", f"{before:.2f}", f"{now:.2f}", Agreement.AGREES)
    if old["predictions_sha256"] and old["predictions_sha256"] == new.get("predictions_sha256"):
        if abs(before - now) < 1e-6:
            return check._replace(reason="the same answers")
        return check._replace(
            verdict=Agreement.DISAGREES, reason="the same answers, scored otherwise"
        )
    if old["higher_is_better"] is False:
        allowed, unit = POINTS / 100 * abs(before), f"{POINTS:g} %"
    else:
        allowed = max(POINTS, 100 / max(1, old["n_scored"] or 1))
        unit = f"{allowed:.1f} points"
    if abs(now - before) <= allowed + 1e-9:
        return check._replace(reason=f"other answers, within {unit}")
    reason = f"more than {unit} apart"
    return check._replace(verdict=Agreement.DISAGREES, reason=reason)


def _latency(old: Row, new: Row) -> FigureCheck | None:
    of_old, of_new = (Comparison.of(row, "lat") for row in (old, new))
    before, now = of_old.paired, of_new.paired
    if before is None:
        return None
    if now is None:
        reason = of_new.reason or "not measured here"
        return FigureCheck("latency", f"×{before.ratio:.3f}", "–", Agreement.CANT_TELL, reason)
    check = FigureCheck("latency", f"×{before.ratio:.3f}", f"×{now.ratio:.3f}", Agreement.CANT_TELL)
    if old["noisy"] or new.get("noisy"):
        return check._replace(reason="a host was too busy for a fair measurement")
    same_host = old["host_id"] == new.get("host_id")
    near = math.log(SAME_HOST if same_host else OTHER_HOST)
    far = near if same_host else math.log(IMPLAUSIBLE)
    apart = paired.ratio_of_ratios(before, now)
    middle, lo, hi = (math.log(x) if x > 0 else -math.inf for x in apart[:3])
    older = has_older_id(old["host_id"]) and not has_older_id(new.get("host_id"))
    where = "on the same host" if same_host else "on another host"
    where += ", or on this one before its id changed" if older and not same_host else ""
    reason = f"×{apart.ratio:.3f} of the row's ratio, {where}"
    if 1 in (of_old.n_processes or 1, of_new.n_processes or 1):
        reason += ", by one process alone"
    if -near <= lo and hi <= near:
        return check._replace(verdict=Agreement.AGREES, reason=reason)
    if not lo <= 0 <= hi and abs(middle) > far:
        return check._replace(verdict=Agreement.DISAGREES, reason=reason)
    return check._replace(reason=f"{reason}: not sure enough")


def _memory(old: Row, new: Row) -> FigureCheck | None:
    column = "gpu_alloc_delta_bytes" if old["gpu_alloc_delta_bytes"] else "rss_peak_delta_bytes"
    before, now = cast(dict[str, Any], old).get(column), cast(dict[str, Any], new).get(column)
    if before is None:
        return None
    stored = f"{mib(before)} MiB"
    if now is None or old["mem_method"] != new.get("mem_method"):
        return FigureCheck("memory", stored, "–", Agreement.CANT_TELL, "read in another way here")
    check = FigureCheck("memory", stored, f"{mib(now)} MiB", Agreement.AGREES)
    same_host = old["host_id"] == new.get("host_id")
    share = SAME_BYTES_SHARE if same_host else OTHER_BYTES_SHARE
    if abs(now - before) <= SAME_BYTES + share * before:
        return check
    verdict = Agreement.DISAGREES if same_host else Agreement.CANT_TELL
    return check._replace(verdict=verdict, reason=f"more than {share:.0%} apart")


def overall(checks: Sequence[FigureCheck]) -> Agreement:
    """`disagrees` if one figure does; else `can't tell` if one figure can't be decided."""
    verdicts = {check.verdict for check in checks}
    order = (Agreement.DISAGREES, Agreement.CANT_TELL)
    return next((verdict for verdict in order if verdict in verdicts), Agreement.AGREES)
