"""What a person sees of a sweep while it runs: how far it is, what runs now, what ended badly."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from bench.listing import STATUS_STYLE
from bench.plan import Planned
from bench.record import Note, Record, ended
from bench.spans import cells, span

LAST = 6
"""Ended cells that stay in sight."""
RUNNING = 8


@dataclass
class Display:
    """A live table at a terminal; elsewhere a line for each cell that ends. Nothing is drawn but
    when something is told, so that no thread of ours runs beside what is timed."""

    cells: Sequence[Planned]
    n_parallel: int = 1
    notes: dict[int, Note] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    live: Live | None = None

    def __enter__(self) -> Display:
        console = Console(stderr=True)
        if console.is_terminal:
            self.live = Live(console=console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    def tell(self, index: int, note: Note) -> None:
        """What is known of a cell now."""
        before = self.notes.get(index, {})
        self.notes[index] = note
        self.draw()
        if not self.live and ended(note) and not ended(before):
            count = sum(map(ended, self.notes.values()))
            title = self.cells[index].title
            line = f"[{count}/{len(self.cells)}] {title}: {note['status']}"
            print(" · ".join([line, *filter(None, [note.get("figures"), span(note["seconds"])])]))
            sys.stdout.flush()

    def draw(self) -> None:
        if self.live:
            self.live.update(self._drawn(), refresh=True)

    def left_s(self) -> float:
        """Seconds to the end: the estimates of what is open, corrected by how long ended cells
        took beside theirs."""
        over = [(i, note) for i, note in self.notes.items() if ended(note) and note["seconds"] > 1]
        planned = sum(self.cells[i].seconds for i, _ in over)
        took = float(sum(note["seconds"] for _, note in over))
        still = sum(
            cell.seconds for i, cell in enumerate(self.cells) if not ended(self.notes.get(i, {}))
        )
        slower = took / planned if planned else 1.0
        # A cell that takes longer than thought is soon over, not below nothing.
        gone = sum(
            min(time.time() - note["since"], 0.9 * slower * self.cells[i].seconds)
            for i, note in self.notes.items()
            if note["state"] == "running"
        )
        return max(0.0, float(slower * still - gone)) / max(1, self.n_parallel)

    def _drawn(self) -> Group:
        done = sum(map(ended, self.notes.values()))
        failed = sum(1 for note in self.notes.values() if ended(note) and note["code"])
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{done}[/] of {cells(len(self.cells))}",
            ProgressBar(total=len(self.cells), completed=done, width=30),
            f"{span(time.monotonic() - self.began)} gone",
            f"about {span(self.left_s())} left",
            f"[red]{failed} failed[/]" if failed else "",
        )
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        order = sorted(self.notes.items(), key=lambda item: item[1]["at"])
        over = [item for item in order if ended(item[1])]
        bad = [item for item in over if item[1]["code"]]
        shown = dict([*bad[-LAST:], *over[-LAST:]])
        for i, note in sorted(shown.items(), key=lambda item: item[1]["at"]):
            style = "red" if note["code"] else STATUS_STYLE.get(note["status"], "green")
            table.add_row(
                f"[{style}]{note['status']}[/]",
                escape(self.cells[i].title),
                escape(note.get("figures") or note.get("reason", "").partition("\n")[0][:60]),
                span(note["seconds"]),
            )
        running = [item for item in order if item[1]["state"] == "running"]
        for i, note in running[:RUNNING]:
            stage, at, total = note.get("stage") or ("starts", 0, 0)
            where = f" on {note['node']}" if note.get("node") else ""
            table.add_row(
                "[cyan]runs[/]",
                escape(self.cells[i].title),
                f"{stage}{f' {at}/{total}' if total else ''}{where}",
                span(time.time() - note["since"]),
            )
        return Group(head, table)


class Watch:
    """Reads a sweep's record while workers write it, and tells the display."""

    def __init__(self, record: Record, display: Display, every_s: float) -> None:
        self.record, self.display, self.every_s = record, display, every_s
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        self.thread.join()
        self.look()

    def look(self) -> None:
        notes = self.display.notes
        for i in self.record.begun():
            if not ended(notes.get(i, {})) and (note := self.record.read(i)) != notes.get(i, {}):
                self.display.tell(i, note)
        self.display.draw()

    def _loop(self) -> None:
        while not self.stop.wait(self.every_s):
            self.look()
