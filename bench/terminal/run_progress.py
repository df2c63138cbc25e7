"""The progress of one measurement (a bar with the time left, or lines) and of a sweep.

Everything is drawn only when a child reports, so that no thread of ours runs during timing.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from bench.execution import cell_group, supervisor
from bench.sweep.estimate import QUALITY, StageEstimate
from bench.sweep.log import Note, has_ended, stage_of
from bench.terminal.output import clean_console, styled
from bench.units import counted, span

NOTE_SECONDS = 15.0
"""Without a terminal, seconds between two lines with notes."""
SWEEP_NOTE_SECONDS = 300.0
"""The same for a sweep while no cell ends."""
ENOUGH_S = 5.0
"""Seconds of the estimate that must be over before the pace corrects the rest."""
MAX_PACE = 20.0
STEADY = 0.05
"""Share of the answers of a cell or a shared prefill from which their pace gives the time left: the
first ones end after several prompts were read."""
BAR_WIDTH = 24
N_ENDED = 6
"""The number of ended cells that stay visible, and of failed cells."""
N_RUNNING = 8


@dataclass
class StageClock:
    """The progress of a cell. `stages` are its estimates in the order in which they run."""

    stages: Sequence[StageEstimate]
    began: float = field(default_factory=time.monotonic)
    stage: str = ""
    at: int = -1
    fraction: float = 1.0

    def update(self, stage: str, done: int, total: int) -> None:
        """A child's report. Stages that aren't estimated, such as loading, are part of the next."""
        if stage != self.stage:
            later = range(self.at + 1, len(self.stages))
            here = next((i for i in later if self.stages[i].name == stage), None)
            self.at, self.fraction = (self.at, 1.0) if here is None else (here, 0.0)
            self.stage = stage
        if self.at >= 0 and self.stages[self.at].name == stage and total:
            self.fraction = done / total

    @property
    def arms(self) -> str:
        """The methods that the current stage measures; between stages, those of the next one."""
        ahead = self.at + (self.fraction >= 1.0 and self.at + 1 < len(self.stages))
        return self.stages[ahead].arms if self.stages else ""

    @property
    def total_s(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def over_s(self) -> float:
        """Estimated seconds of the finished part."""
        before = sum(stage.seconds for stage in self.stages[: max(0, self.at)])
        return before + (self.fraction * self.stages[self.at].seconds if self.at >= 0 else 0.0)

    def left_s(self) -> float:
        """Seconds to the end, by the estimate and the pace so far."""
        over, elapsed = self.over_s(), time.monotonic() - self.began
        pace = min(MAX_PACE, elapsed / over) if over >= ENOUGH_S else 1.0
        return pace * (self.total_s - over)


@contextlib.contextmanager
def progress(title: str, stages: Sequence[StageEstimate] = ()) -> Iterator[supervisor.Progress]:
    """One bar over all stages, with the time left if there are estimates. Without a terminal that
    can redraw: one line for each stage."""
    live = _live()
    if live is None:
        yield _lines(title)
        return
    live.console.print(f"[bold]{escape(title)}[/]")
    clock = StageClock(stages)
    with live:

        def report(stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
            clock.update(stage, done, total)
            live.update(_drawn(clock, done, total, note), refresh=True)

        yield report


def _live() -> Live | None:
    """A part of the screen that is redrawn; None if there is no terminal that can do this."""
    console = clean_console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    return Live(console=console, auto_refresh=False, transient=True)


def _drawn(clock: StageClock, done: int, total: int, note: str) -> Group:
    """The bar, and the current stage below it, within 60 columns."""
    whole, over, left = float(total) or None, float(done), ""
    if clock.stages:
        whole, over, left = clock.total_s, clock.over_s(), f" · about {span(clock.left_s())} left"
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=whole, completed=over, width=BAR_WIDTH, pulse=whole is None)
    line.add_row(bar, f"{span(time.monotonic() - clock.began)} elapsed{left}")
    count = f"{done:,}/{total:,}" if total else ""
    arms = f"{clock.arms}: " if clock.arms else ""
    return Group(line, escape(" ".join(filter(None, [f"  {arms}{clock.stage}", count, note]))))


def _lines(title: str) -> supervisor.Progress:
    print(title, file=sys.stderr)
    last = ""
    began = noted = time.monotonic()

    def report(stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        nonlocal last, noted
        now = time.monotonic()
        text = f"{stage} {done:,}/{total:,}  {note}" if note else stage
        if stage != last or (note and (now - noted > NOTE_SECONDS or done == total)):
            last, noted = stage, now
            print(f"  {now - began:5.1f} s  {text}", file=sys.stderr, flush=True)

    return report


@dataclass
class SweepProgress:
    """A live table at a terminal; elsewhere a line for each cell that ends. It draws only when it
    is updated: it starts no thread, which would disturb timed cells.

    titles    titles of the cells; `seconds` are their estimates
    live      a context in which it draws; None if nothing can be redrawn
    """

    titles: Sequence[str]
    seconds: Sequence[float]
    n_parallel: int = 1
    notes: dict[int, Note] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    live: Live | None = field(default_factory=_live)
    printed: float = field(default_factory=time.monotonic)

    def update(self, index: int, note: Note) -> None:
        """Shows the new note of a cell."""
        ends = has_ended(note) and not has_ended(self.notes.get(index, {}))
        self.notes[index] = note
        self.refresh()
        if self.live:
            return
        now = time.monotonic()
        if ends:
            count = f"[{len(self._ended())}/{len(self.titles)}]"
            line = f"{count} {self.titles[index]}: {note['status']}"
            parts = [line, *filter(None, [note.get("figures")]), span(note["seconds"])]
        elif note["state"] == "running" and now - self.printed > SWEEP_NOTE_SECONDS:
            parts = [self.titles[index], stage_of(note), f"about {span(self.left_s())} left"]
        else:
            return
        self.printed = now
        print(" · ".join(parts), flush=True)

    def refresh(self) -> None:
        if self.live:
            self.live.update(self.table(), refresh=True)

    def left_s(self) -> float:
        """Seconds to the end: the estimates of open cells, corrected by the ratio of the times of
        ended cells to their estimates, and by the pace of a running cell's answers."""
        ended = self._ended()
        timed = [i for i, note in ended.items() if note["seconds"] > 1]
        estimated = sum(self.seconds[i] for i in timed)
        slowdown = sum(ended[i]["seconds"] for i in timed) / estimated if estimated else 1.0
        left = slowdown * sum(s for i, s in enumerate(self.seconds) if i not in ended)
        for i, note in self.notes.items():
            if note["state"] == "running":
                estimate, elapsed = slowdown * self.seconds[i], time.time() - note["since"]
                stage, done, total = note.get("stage") or ("starts", 0, 0)
                # A cell that exceeds its estimate is expected to end soon.
                rest = max(estimate - elapsed, 0.1 * estimate)
                if done > STEADY * total and stage in (cell_group.STAGE, QUALITY):
                    by_pace = elapsed * (total - done) / done
                    rest = by_pace if stage == cell_group.STAGE else max(rest, by_pace)
                left += rest - estimate
        return max(0.0, float(left)) / max(1, self.n_parallel)

    def table(self) -> Group:
        ended = self._ended()
        failed = {i: note for i, note in ended.items() if note["code"]}
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{len(ended)}[/] of {counted(len(self.titles), 'cell')}",
            ProgressBar(total=len(self.titles), completed=len(ended), width=30),
            f"{span(time.monotonic() - self.began)} elapsed",
            f"about {span(self.left_s())} left",
            f"[red]{len(failed)} failed[/]" if failed else "",
        )
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        shown = {*list(failed)[-N_ENDED:], *list(ended)[-N_ENDED:]}
        for i, note in ended.items():
            if i in shown:
                about = note.get("figures") or note.get("reason", "").partition("\n")[0][:60]
                state, seconds = styled(note["status"]), span(note["seconds"])
                table.add_row(state, escape(self.titles[i]), escape(about), seconds)
        running = [item for item in self._by_time() if item[1]["state"] == "running"]
        for i, note in running[:N_RUNNING]:
            _, done, total = note.get("stage") or ("starts", 0, 0)
            node = f" on {note['node']}" if note.get("node") else ""
            about = stage_of(note) + node
            bar = ProgressBar(total=total, completed=done, width=20) if total else ""
            elapsed = span(time.time() - note["since"])
            table.add_row(styled("running"), escape(self.titles[i]), about, elapsed, bar)
        return Group(head, table)

    def _by_time(self) -> list[tuple[int, Note]]:
        return sorted(self.notes.items(), key=lambda item: item[1]["at"])

    def _ended(self) -> dict[int, Note]:
        """The ended cells, in the order in which they ended."""
        return {i: note for i, note in self._by_time() if has_ended(note)}
