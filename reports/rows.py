"""Rows in a report: the stored columns, and those that a report adds, such as the folder."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
