"""What bench recall and bench spectrum stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from bench.errors import RequestError
from reports.figures.cells import STUDIES


def read(folder: Path, name: str, numbers: tuple[str, ...]) -> pd.DataFrame:
    """The lines of every `name` study of a folder, newest file first in column `file`. Raises
    RequestError for a file that isn't one."""
    found = [pd.DataFrame()]
    paths = folder.glob(f"**/{STUDIES}/{name}-*.csv")
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
            if frame.isna().any(axis=None):
                raise ValueError("a line is too short")
            figures = frame[list(numbers)].replace("", np.nan).astype(float)
        except (OSError, ValueError, KeyError) as error:
            raise RequestError(
                f"can't read {path}: {error}; measure it again or remove it"
            ) from error
        found.append(frame.assign(**figures, file=path.name))
    return pd.concat(found, ignore_index=True)
