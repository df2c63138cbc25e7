"""The shape of a request, checked by Hydra: a wrong type or an unknown key never reaches a cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class ModelConf:
    """`family` is a target string; `weights` says where the weights come from; `adapted` maps a
    method to the checkpoint trained further with it; `config` replaces the size and makes the
    weights random."""

    name: str = MISSING
    family: str = MISSING
    path: str = MISSING
    weights: str = MISSING
    revision: str | None = None
    adapted: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] | None = None


@dataclass
class DeviceConf:
    """`require` is a part of the GPU's name that must be there."""

    name: str = MISSING
    kind: str = MISSING
    require: str | None = None


@dataclass
class DataConf:
    source: str = MISSING
    dir: str | None = None
    split: str | None = None


@dataclass
class Config:
    """One request. A method and a task carry their own parameters beside `target`."""

    method: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    model: ModelConf = field(default_factory=ModelConf)
    device: DeviceConf = field(default_factory=DeviceConf)
    data: DataConf = field(default_factory=DataConf)
    length: int = MISSING
    n: int | None = MISSING
    batch: int = MISSING
    dtype: str = MISSING
    threads: int | None = MISSING
    seed: int = MISSING
    measure: str = MISSING
    probe: str | None = None
    results: str = MISSING
    force: bool = MISSING
    deadline_s: int = MISSING
    n_jobs: int = MISSING
    shard: str | None = MISSING
    budget: str | None = MISSING


def register() -> None:
    """Make the schema known to Hydra, as the first of the defaults."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="bench_schema", node=Config)
