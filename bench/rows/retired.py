"""Rows that no longer count. `retired.yaml` in a folder of configuration lists them with the
reason, by their ids or by the versions in their columns:

    retired:
      - where: {method: vcc, method_version: "0123456789ab"}
        reason: the blocks of a padded batch were shifted by one token; repaired in 0.2.0

A store reads such a row with the status `retired` and the reason as its `status_detail`: every view
marks it, none ranks it, and its cell may be run again. The files of rows are not changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench.errors import RequestError
from bench.request import plugins
from bench.rows.shards import checked_value, column_named
from bench.status import Status

SET = ("status", "status_detail")
"""The columns that are replaced when a row that no longer counts is read."""


class Rule(NamedTuple):
    """`where`: column → the values of the rows that don't count."""

    where: Mapping[str, list[Any]]
    reason: str


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Rules of the project and of plugins. Raises RequestError for a file that can't be read."""
    found = []
    for path in (folder / "retired.yaml" for folder in plugins.conf_dirs()):
        entries = plugins.read(path)["retired"] if path.is_file() else ()
        for number, entry in enumerate(entries, 1):
            try:
                where = {
                    name: [checked_value(column_named(name), v)
                           for v in (values if isinstance(values, list) else [values])]
                    for name, values in entry["where"].items()
                }  # fmt: skip
                found.append(Rule(where, str(entry["reason"])))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise RequestError(f"{path}: entry {number} of retired: {error}") from error
    return tuple(found)


def marked(table: Any, rules: Iterable[Rule]) -> Any:
    """A table with the columns SET and those of the rules, in which rows that no longer count have
    the status `retired`, with the reason as its detail."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for rule in rules:
        fits = [
            pc.is_in(table[name], value_set=pa.array(values, table.schema.field(name).type))
            for name, values in rule.where.items()
        ]
        for name, text in zip(SET, (str(Status.RETIRED), rule.reason), strict=True):
            values = pc.if_else(functools.reduce(pc.and_, fits), text, table[name])
            table = table.set_column(table.column_names.index(name), name, values)
    return table
