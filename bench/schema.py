"""The shape of a request, checked by Hydra: a wrong type or an unknown key never reaches a cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class ModelConf:
    """`family` is a target string; `weights` says where the weights come from; `adapted` maps a
    method to the checkpoint trained further with it, `adapted_with` to the parameters that it was
    trained with, `by_task` a task to the model that stands in for this one there; `longest` is the
    most tokens that it reads; `config` replaces the size and makes the weights random."""

    name: str = MISSING
    family: str = MISSING
    path: str = MISSING
    weights: str = MISSING
    revision: str | None = None
    adapted: dict[str, str] = field(default_factory=dict)
    adapted_with: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_task: dict[str, str] = field(default_factory=dict)
    longest: int | None = None
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
class RecipeConf:
    """How to train. A step is one change of the weights, on `batch` rows in all processes.

    steps or epochs   how long: one of the two
    rows, dev_rows    of the train and validation splits; None: all
    schedule          of the learning rate after `warmup` steps: linear and cosine fall to 0 at the
                      last step, rsqrt with the root of the step; clip 0: no gradient is cut
    accumulate        parts that a batch is read in, one after the other
    recompute         layers keep no activations and are computed again on the way back
    target_length     tokens of an answer; None: the task's generation limit
    eval_every        steps between two looks at the dev rows, which choose the weights that count;
    patience          looks in a row without a better score that end the training; None: none do
    save_every        steps between two saves (it changes no weights)
    """

    name: str = MISSING
    batch: int = MISSING
    lr: float = MISSING
    steps: int | None = None
    epochs: float | None = None
    rows: int | None = None
    dev_rows: int | None = 512
    schedule: str = "linear"
    warmup: int = 0
    weight_decay: float = 0.0
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float = 1.0
    label_smoothing: float = 0.0
    dtype: str = "float32"
    accumulate: int = 1
    recompute: bool = False
    target_length: int | None = None
    eval_every: int = 500
    patience: int | None = None
    save_every: int = 200


@dataclass
class Config:
    """One request. A method and a task carry their own parameters beside `target`; `n_by_task` maps
    a task to its own `n`, where the request itself gives none."""

    method: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    model: ModelConf = field(default_factory=ModelConf)
    device: DeviceConf = field(default_factory=DeviceConf)
    data: DataConf = field(default_factory=DataConf)
    protocol: str | None = None
    recipe: RecipeConf | None = None
    checkpoints: str = MISSING
    length: int = MISSING
    n: int | None = MISSING
    n_by_task: dict[str, int] = field(default_factory=dict)
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
