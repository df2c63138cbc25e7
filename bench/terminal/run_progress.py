"""What a person sees while something is measured: one bar with the time left, or lines.

Everything is drawn only when a child reports, so that no thread of ours runs beside what is timed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from bench.execution import supervisor
from bench.sweep.estimate import StageEstimate
from bench.terminal.console import Console
from bench.units import span

NOTE_SECONDS = 15.0
"""Without a terminal a note is a line so often."""
ENOUGH_S = 5.0
"""So much of the estimate must be over before the pace corrects the rest."""
MAX_PACE = 20.0
BAR_WIDTH = 24


@dataclass
class StageClock:
    """How much of a cell is over. `stages` are its estimates in the order in which it runs them."""

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
        """What the current stage measures; what the next one will while there is none."""
        ahead = self.at + (self.fraction >= 1.0 and self.at + 1 < len(self.stages))
        return self.stages[ahead].arms if self.stages else ""

    @property
    def total_s(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def over_s(self) -> float:
        """Estimated seconds of what is over."""
        before = sum(stage.seconds for stage in self.stages[: max(0, self.at)])
        return before + (self.fraction * self.stages[self.at].seconds if self.at >= 0 else 0.0)

    def left_s(self) -> float:
        """Seconds to the end, by the estimate and the pace so far."""
        over, elapsed = self.over_s(), time.monotonic() - self.began
        pace = min(MAX_PACE, elapsed / over) if over >= ENOUGH_S else 1.0
        return pace * (self.total_s - over)


@contextlib.contextmanager
def progress(title: str, stages: Sequence[StageEstimate] = ()) -> Iterator[supervisor.Progress]:
    """One bar over all stages with the time left, where there are estimates of them. Without a
    terminal that can redraw: one line a stage."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _lines(title)
        return
    console.print(f"[bold]{escape(title)}[/]")
    clock = StageClock(stages)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def report(stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
            clock.update(stage, done, total)
            live.update(_drawn(clock, done, total, note), refresh=True)

        yield report


def _drawn(clock: StageClock, done: int, total: int, note: str) -> Table:
    """The bar, and below what runs now: it fits 60 columns."""
    line = Table.grid(padding=(0, 1))
    elapsed = f"{span(time.monotonic() - clock.began)} elapsed"
    if clock.stages:
        bar = ProgressBar(total=clock.total_s, completed=clock.over_s(), width=BAR_WIDTH)
        line.add_row(bar, f"{elapsed} · about {span(clock.left_s())} left")
    else:
        bar = ProgressBar(total=total or None, completed=done, width=BAR_WIDTH, pulse=not total)
        line.add_row(bar, elapsed)
    count = f"{done:,}/{total:,}" if total else ""
    arms = f"{clock.arms}: " if clock.arms else ""
    table = Table.grid()
    table.add_row(line)
    table.add_row(escape(" ".join(filter(None, [f"  {arms}{clock.stage}", count, note]))))
    return table


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
