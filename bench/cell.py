"""Cell: one point of the benchmark, and its content key."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import plugins, training
from bench.errors import RequestError, unknown
from bench.weights import checkpoint_sha256, weights_of
from tasks.base import Data, DataError, Loaded, Task

DTYPES = ("float32", "bfloat16", "float16", "float64")
PROBES = ("max_length",)
SOURCES = ("embedded", "local", "hub")
BASELINE = "vanilla"


@dataclass(frozen=True)
class Plan:
    """What `measure=` stands for: which children run, how many latency pairs, the seconds that
    they may take (the number of pairs is cut before any ratio is looked at), and the processes
    that share them where there is time for it."""

    quality: bool = True
    speed: bool = True
    training: bool = False
    pairs: int = 40
    budget_s: float = 30.0
    processes: int = 4


PLANS = {
    "quick": Plan(),
    "standard": Plan(budget_s=120.0),
    "published": Plan(pairs=100, budget_s=1200.0),
    "quality": Plan(speed=False),
    "speed": Plan(quality=False),
    "glance": Plan(quality=False, pairs=12, budget_s=8.0, processes=1),
    "training": Plan(quality=False, speed=False, training=True, budget_s=120.0, processes=1),
}


@dataclass(frozen=True)
class Cell:
    """Everything that can change the numbers of one row; plain data, torch-free, JSON both ways.

    method, task   their configurations, `target` included
    model          name, family target, checkpoint path and how its weights came to be
    data           source, dir, split, and the sha256 of the rows
    n              rows asked for (None: all of the split); `threads` CPU threads of a child
    protocol       how method and weights came together, and the recipe that trains: bench.training
    """

    method: Mapping[str, Any]
    task: Mapping[str, Any]
    model: Mapping[str, Any]
    device: Mapping[str, Any]
    data: Mapping[str, Any]
    length: int
    n: int | None
    batch: int
    dtype: str
    threads: int
    seed: int
    measure: str
    probe: str | None
    code_sha256: str
    protocol: str | None = None
    recipe: Mapping[str, Any] | None = None

    @cached_property
    def key(self) -> str:
        """sha256 over the cell's contents; paths are left out, the hashes of what they hold are
        in, so a moved folder is the same cell. What is to be trained counts by its recipe."""
        return _sha256(self._content())

    @cached_property
    def sketch(self) -> str:
        """The key without the hash of embedded rows: they are made from the task, its code and the
        shape, all of which are in it. So a plan knows a finished cell without making its rows."""
        content = self._content()
        if self.data["source"] == "embedded":
            content["data"] = {k: v for k, v in content["data"].items() if k != "sha256"}
        return _sha256(content)

    def _content(self) -> dict[str, Any]:
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        left_out = {"path", "adapted", "checkpoints"}
        if "training" in self.model:
            left_out.add("weights_sha256")
        for group, parts in (("model", left_out), ("data", {"dir"})):
            content[group] = {k: v for k, v in content[group].items() if k not in parts}
        for name in ("protocol", "recipe"):
            if content[name] is None:
                del content[name]
        return content

    @cached_property
    def prediction_key(self) -> str:
        """sha256 over what can change a prediction: the folder that predictions are kept in.
        Rows carry the hash of their own input, so `n` and the data's hash stay outside."""
        content = {
            "method": dict(self.method),
            "task": {k: v for k, v in self.task.items() if k in ("name", "target", "version")},
            "model": [self.model["name"], self.model["weights_sha256"]],
            "shape": [self.length, self.batch, self.dtype, self.device["kind"], self.seed],
            "data": [self.data["source"], self.data.get("split")],
            "code": self.code_sha256,
        }
        return _sha256(content)

    @property
    def plan(self) -> Plan:
        return PLANS[self.measure]

    @property
    def title(self) -> str:
        return f"{self.method['name']} × {self.task['name']} × {self.model['name']}"

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row that say what was asked for."""
        parameters = {k: v for k, v in self.method.items() if k not in ("name", "target")}
        return {
            "method": self.method["name"],
            "method_params": json.dumps(parameters, sort_keys=True),
            "benchmark": self.task["benchmark"],
            "task": self.task["name"],
            "split": self.data["split"],
            "data_source": self.data["source"],
            "dataset_sha256": self.data["sha256"],
            "n_samples_planned": self.n,
            "model": self.model["name"],
            "weights_kind": self.model["weights"],
            "weights_sha256": self.model["weights_sha256"],
            "length": self.length,
            "batch": self.batch,
            "dtype": self.dtype,
            "device": self.device["name"],
            "threads": self.threads,
            "seed": self.seed,
            "measure": self.measure,
        }

    def build_task(self) -> Task:
        task: Task = plugins.build(dict(self.task))
        return task

    def rows(self) -> Loaded:
        """The cell's rows, found again. Raises tasks.base.DataError when they are gone."""
        return self.build_task().load(_data(self.data), self.n, self.length, self.seed)

    def baseline(self) -> Cell:
        """The vanilla cell of the same request, on the weights that vanilla uses."""
        method = plugins.conf("method", BASELINE)
        model = weights_of(self.model, BASELINE, self._uses_adapted)
        plain = replace(
            self, method=method, model=model, code_sha256=code_of(method, self.task, self.model)
        )
        return plain.trained()

    @property
    def _uses_adapted(self) -> bool:
        return self.protocol in (None, "finetune") and self.recipe is None

    def trained(self) -> Cell:
        """The same cell on the weights that its recipe gives, hashed where they are there already;
        itself where it has no recipe."""
        if self.recipe is None:
            return self
        assert self.protocol is not None
        method = self.training_method
        start = {
            "family": self.model["family"],
            "config": self.model.get("config"),
            "weights_sha256": self.model.get("start_sha256", self.model["weights_sha256"]),
        }
        data = {name: self.data[name] for name in ("source", "train_sha256")}
        code = code_of(method, self.task, self.model)
        key = training.key(
            method, self.task, start, data, self.length, self.recipe, self.seed, code
        )
        place = training.folder(
            Path(self.model["checkpoints"]), self.task["name"], method["name"], key
        )
        there = training.card(place) is not None
        model = {
            **self.model,
            "training": key,
            "path": str(place),
            "start_sha256": start["weights_sha256"],
            "weights": training.KINDS[self.protocol],
            "weights_sha256": checkpoint_sha256(place) if there else None,
        }
        return replace(self, model=model)

    @property
    def training_method(self) -> Mapping[str, Any]:
        """The method that the weights are trained with."""
        return plugins.conf("method", BASELINE) if self.protocol == "swap" else self.method

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def told(self) -> str:
        """The JSON that a row keeps: a folder of the project by its place in it, and nothing of
        where this machine keeps checkpoints. Hashes say what was in them."""
        model = {name: value for name, value in self.model.items() if name != "checkpoints"}
        path = Path(model["path"])
        if path.is_relative_to(plugins.ROOT):
            model["path"] = str(path.relative_to(plugins.ROOT))
        return replace(self, model=model).to_json()

    @classmethod
    def from_json(cls, text: str) -> Cell:
        return cls(**json.loads(text))

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Cell:
        """A cell from a composed request (bench.schema.Config as a plain dict): names are
        checked, rows found and hashed, weights hashed. Raises RequestError."""
        check(request)
        check_device(request["device"])
        loaded = load(request)
        return cls.with_rows(request, loaded.split, loaded.sha256)

    @classmethod
    def with_rows(cls, request: Mapping[str, Any], split: str, sha256: str) -> Cell:
        """The cell of a resolved and checked request whose rows have this split and hash. Raises
        RequestError about its weights."""
        protocol, recipe = training.protocol(request), request.get("recipe")
        data = _data(request["data"])
        threads = request["threads"] or len(os.sched_getaffinity(0))
        task: Task = plugins.build(request["task"])
        model = _model(request, protocol, task.answers)
        if task.answers in ("choice", "span"):
            model["marks"] = list(task.special_tokens)
        rows = {
            "source": data.source,
            "dir": str(data.dir) if data.dir else None,
            "split": split,
            "sha256": sha256,
        }
        if recipe:
            rows["train_sha256"] = _training_rows(task, data, request)
        cell = cls(
            method=request["method"],
            task=request["task"],
            model=model,
            device=request["device"],
            data=rows,
            length=request["length"],
            n=request["n"],
            batch=request["batch"],
            dtype=request["dtype"],
            threads=threads,
            seed=request["seed"],
            measure=request["measure"],
            probe=request["probe"],
            code_sha256=code_of(request["method"], request["task"], model),
            protocol=protocol,
            recipe=recipe,
        )
        return cell.trained()


def load(request: Mapping[str, Any]) -> Loaded:
    """The rows of a request. Raises RequestError."""
    task = plugins.build(request["task"])
    try:
        loaded: Loaded = task.load(
            _data(request["data"]), request["n"], request["length"], request["seed"]
        )
    except DataError as error:
        raise RequestError(str(error)) from error
    return loaded


def check(request: Mapping[str, Any]) -> None:
    """What can be said of a request's values without looking at anything else. Raises
    RequestError."""
    for name in ("length", "batch", "n", "threads", "deadline_s"):
        value = request[name]
        if value is not None and value < 1:
            raise RequestError(f"{name}={value} is not accepted: it must be 1 or more")
    if request["seed"] < 0:
        raise RequestError(f"seed={request['seed']} is not accepted: it must be 0 or more")
    for kind, accepted in (("dtype", DTYPES), ("measure", PLANS), ("probe", (None, *PROBES))):
        if request[kind] not in accepted:
            raise unknown(kind, request[kind], filter(None, accepted))
    if request.get("recipe"):
        training.check(request["recipe"])
    if request["data"]["source"] not in SOURCES:
        raise unknown("data source", request["data"]["source"], SOURCES)
    if request["data"]["source"] == "local" and not request["data"].get("dir"):
        raise RequestError("data=local needs the folder: data.dir=FOLDER (DATA_DIR=FOLDER)")


def check_device(device: Mapping[str, Any]) -> None:
    """Raises RequestError when this machine doesn't have the device."""
    if device["kind"] == "cpu":
        return
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
        cards = listed.stdout.strip().splitlines() if listed.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired):
        cards = []
    if not cards:
        raise RequestError(f"device={device['name']}: no CUDA GPU on this machine; accepted: cpu")
    wanted = device.get("require")
    if wanted and not any(wanted.lower() in card.lower() for card in cards):
        raise RequestError(f"device={device['name']} insists on a {wanted}; here: {cards[0]}")


def _data(data: Mapping[str, Any]) -> Data:
    folder = data.get("dir")
    where = Path(folder).expanduser().resolve() if folder else None
    return Data(data["source"], where, data.get("split"))


def _training_rows(task: Task, data: Data, request: Mapping[str, Any]) -> str:
    try:
        return training.data_sha256(
            task, data, request["recipe"], request["length"], request["seed"]
        )
    except DataError as error:
        raise RequestError(f"recipe {request['recipe']['name']}: {error}") from error


def _model(request: Mapping[str, Any], protocol: str | None, answers: str) -> dict[str, Any]:
    """The request's model, with the weights that it begins with."""
    model = training.sized(request["model"], request["task"])
    recipe = request.get("recipe")
    adapted = protocol in (None, "finetune") and not recipe
    found = weights_of(model, request["method"]["name"], adapted, answers)
    if not recipe:
        training.check_start(found["path"], request["task"]["name"])
        if protocol == "zero-shot" and found["weights"] == "pretrained-swap":
            found["weights"] = "zero-shot"
        return found
    if protocol == "from-scratch" and not model.get("config"):
        found["config"] = json.loads((Path(found["path"]) / "config.json").read_text())
        found["weights_sha256"] = None
    found["checkpoints"] = str(Path(request["checkpoints"]).expanduser().resolve())
    return found


def code_of(method: Mapping[str, Any], task: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Hash of the code that a cell's numbers depend on."""
    # Metrics work on stored predictions: a repaired one needs no new run.
    targets = [method["target"], task["target"], model["family"], "methods.vanilla"]
    return plugins.code_sha256(targets, without=["tasks.metrics"])


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
