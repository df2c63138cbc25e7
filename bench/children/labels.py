"""Labels are out of reach while predictions are made: scoring happens elsewhere, and later."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from bench.children import gate

READS = "reads the labels while it predicts"
DIGS = ("gc.get_objects", "gc.get_referrers", "gc.get_referents")


class Sealed(tuple[str, ...]):
    """References that can't be read, and aren't in it either."""

    def _refuse(self, *_: object) -> NoReturn:
        gate.accuse(f"{READS}: a row's references")

    __getitem__ = __iter__ = __len__ = __contains__ = _refuse


@contextmanager
def sealed(task: Any, files: Path | None) -> Iterator[None]:
    """Inside, the task gives no rows, its modules can't be imported, its files not be opened, and
    the process's objects not be searched; a method that tries is a Cheat, even if it catches it.

    `files` is the folder that the rows came from, None for embedded ones.
    """
    kind = type(task)
    own = {name: vars(kind).get(name) for name in ("load", "score", "score_each")}
    hidden = {name: m for name, m in sys.modules.items() if name.split(".")[0] == "tasks"}
    folder = str(files.resolve()) + os.sep if files else None

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and str(arguments[0]).split(".")[0] == "tasks":
            gate.accuse(f"{READS}: imports {arguments[0]}")
        if event in DIGS:
            gate.accuse(f"{READS}: {event} searches the process")
        if event == "open" and folder and isinstance(arguments[0], (str, os.PathLike)):
            opened = os.path.realpath(arguments[0])
            if opened.startswith(folder):
                gate.accuse(f"{READS}: opens {Path(opened).name}")

    def refuse(*_: object, **__: object) -> NoReturn:
        gate.accuse(f"{READS}: asks the task for them")

    for name in own:
        setattr(kind, name, refuse)
    for name in hidden:
        del sys.modules[name]
    try:
        with gate.listening(hear):
            yield
    finally:
        sys.modules.update(hidden)
        for name, method in own.items():
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)
    gate.confirm_honest()
