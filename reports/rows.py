"""Rows in a report: the stored columns, and what a report adds to them, such as their folder."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
