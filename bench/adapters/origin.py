"""Where a row's model and data come from, as other tools name it."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from bench.rows.columns import Row

OWN = "longctx-bench"
"""In place of an organisation, for models that are shipped with the project."""
LOCAL = "local"
"""The same for models of this machine."""
SNAPSHOT = re.compile(r"models--(?P<org>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[^/]+)")
COMMIT = re.compile("[0-9a-f]{40}")


class Model(NamedTuple):
    """`id` is ORG/NAME, `revision` the hub's commit of what was run, None if it isn't the hub's."""

    id: str
    revision: str | None

    @property
    def of_hub(self) -> bool:
        return self.revision is not None


class Dataset(NamedTuple):
    """A dataset of the hub; `revision` is a commit, None if the row names a branch."""

    repo: str
    revision: str | None


def cell(row: Row) -> dict[str, Any]:
    """The row's cell; empty for one that was stored without."""
    return dict(json.loads(row.get("cell") or "{}"))


def model(row: Row) -> Model:
    """Weights that were trained here from a model of the hub are this machine's."""
    path = (cell(row).get("model") or {}).get("path") or ""
    if found := SNAPSHOT.search(path):
        return Model(f"{found['org']}/{found['name']}", found["revision"])
    shipped = row["weights_kind"] == "embedded" or path.startswith("bench/models/embedded/")
    name = re.sub(r"[^\w-]+", "-", row["model"], flags=re.ASCII).strip("-") or "unnamed"
    return Model(f"{OWN if shipped else LOCAL}/{name}", None)


def dataset(row: Row) -> Dataset | None:
    """The hub's dataset that was read; None for embedded and local rows."""
    hub = (cell(row).get("task") or {}).get("hub") or {}
    if row["data_source"] != "hub" or not hub.get("repo"):
        return None
    revision = str(hub.get("revision"))
    return Dataset(hub["repo"], revision if COMMIT.fullmatch(revision) else None)
