"""Cell: one point of the benchmark, and its content key."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.errors import RequestError, errors_of
from bench.models import auto
from bench.request import answering, code_hash, parameters, plugins, weights
from bench.request.parameters import check_device, check_values, decoded_tokens
from bench.request.schema import (
    BASELINE,
    FROM_REQUEST,
    LARGE_PARAMETERS,
    MEASURES,
    MeasurePlan,
    uses_adapted,
)
from bench.request.weights import json_sha256, without_module
from bench.status import WeightsProtocol
from tasks.base import ANSWERS, PLAIN, Data, DataError, Loaded, Row, Task
from tasks.loading.prompts import Prompt

METRICS = "tasks.metrics"
"""Metrics score stored predictions, so a repaired metric needs no new run: no key includes them."""
PREDICTED = ("name", "target", "version", "max_new_tokens", "continuation")
"""Settings of a task that change its predictions."""


@dataclass(frozen=True)
class Cell:
    """Everything that can change the numbers of one row; plain data, torch-free, JSON both ways.

    method, task   their configurations, `target` included
    model          name, family target, checkpoint path and how its weights were made
    data           source, dir, split, and the sha256 of the rows
    n              number of rows (None: all of the split)
    threads        CPU threads of a child process
    protocol       bench.request.weights; `recipe` trains the weights
    new_tokens     tokens decoded after each prompt (None: decoding isn't measured)
    question       "after": a prompt's question is read once the KV cache of its text is made
    turns          questions on each text, one after the other
    prompt         tasks.base.PLAIN or CHAT: form of prompts for a decoder with a chat template
    fill           inputs whose cost is measured are filled up to `length` tokens
    time_s         seconds for the timed stages (None: those of the measure and the model's size)
    skip_unanswerable  rows without a right answer are left out; `data` contains their number
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
    new_tokens: int | None = None
    question: str | None = None
    turns: int = 1
    prompt: str | None = None
    fill: bool = False
    skip_unanswerable: bool = False
    time_s: float | None = None

    @cached_property
    def key(self) -> str:
        """sha256 over the cell's contents. It includes hashes of files and modules in place of
        their paths and names, so a moved folder or module gives the same cell. Weights that a
        recipe trains count by the recipe."""
        return json_sha256(self._content())

    @cached_property
    def plan_key(self) -> str:
        """The key without the hash of embedded rows, which follow from the task, its code and the
        lengths. By this key a plan finds a finished cell without generating its rows."""
        content = self._content()
        if self.data["source"] == "embedded":
            del content["data"]["sha256"]
        return json_sha256(content)

    def _content(self) -> dict[str, Any]:
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        left_out = {"path", "original_path", "adapted", "checkpoints", "source"}
        if "training" in self.model:
            left_out.add("weights_sha256")
        content["method"], content["task"] = map(without_module, (self.method, self.task))
        for name in FROM_REQUEST.keys() & content["task"].keys():
            del content["task"][name]
        if not self.decoder:
            content["task"].pop("decoder_prompt", None)
        content["model"] = {k: v for k, v in self.model.items() if k not in left_out}
        content["model"]["family"] = self.model["family"].partition(":")[2]
        content["data"] = {k: v for k, v in self.data.items() if k != "dir"}
        for field in fields(self):
            if content[field.name] == field.default:
                del content[field.name]
        return content

    @cached_property
    def prediction_key(self) -> str:
        """sha256 over the parts that can change a prediction; names the folder of predictions. Each
        contains the hash of its input, so `n` and the data's hash are left out."""
        task = without_module(self.task)
        content = {
            "method": without_module(self.method),
            "task": {name: task[name] for name in PREDICTED if name in task},
            "model": [self.model["name"], self.model["weights_sha256"]],
            "shape": [self.length, self.batch, self.dtype, self.device["kind"], self.seed],
            "data": [self.data["source"], self.data.get("split")],
            "code": self.code_sha256,
        }
        if self.question or self.turns > 1:
            content["asked"] = [self.question, self.turns]
        if self.prompt:
            content["prompt"] = self.prompt
        return json_sha256(content)

    @property
    def plan(self) -> MeasurePlan:
        plan = MEASURES[self.measure]
        if self.time_s is not None:
            return plan.within(self.time_s)
        has_weights = not self.model.get("config")
        if has_weights and auto.n_parameters(Path(self.model["path"])) > LARGE_PARAMETERS:
            return plan.for_large_model()
        return plan

    @property
    def title(self) -> str:
        method = plugins.method_label(self.method["name"], self.method)
        return f"{method} × {self.task['name']} × {self.model['name']}"

    @property
    def is_baseline(self) -> bool:
        """Whether its method is vanilla, with which every other is compared."""
        return bool(self.method["name"] == BASELINE)

    @property
    def is_engine(self) -> bool:
        """Whether an engine takes the place of the method (bench.engines)."""
        return plugins.is_engine(self.method["name"])

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row that contain the request."""
        parameters = {k: v for k, v in self.method.items() if k not in plugins.NOT_PARAMETERS}
        same = ("length", "batch", "dtype", "threads", "seed", "measure", "new_tokens", "question")
        return {
            **{name: getattr(self, name) for name in same},
            "method": self.method["name"],
            "method_params": json.dumps(parameters, sort_keys=True),
            "benchmark": self.task["benchmark"],
            "task": self.task["name"],
            "split": self.data["split"],
            "data_source": self.data["source"],
            "dataset_sha256": self.data["sha256"],
            "n_samples_planned": self.n,
            "n_unanswerable": self.data.get("n_unanswerable"),
            "model": self.model["name"],
            "weights_kind": self.model["weights"],
            "weights_sha256": self.model["weights_sha256"],
            **{f"weights_{name}": text for name, text in self.model.get("source", {}).items()},
            "device": self.device["name"],
            "turns": self.turns if self.turns > 1 else None,
            "prompt": self.decoder,
            "filled": self.fill or None,
        }

    @property
    def decoder(self) -> str | None:
        """The form of prompts, tasks.base.PLAIN or CHAT; None if the model isn't a decoder."""
        return self.prompt or (PLAIN if self.model["family"] == auto.DECODER else None)

    def build_task(self) -> Task:
        task = asking(task_of(self.task), self.turns)
        return replace(task, decoder=self.decoder) if self.decoder else task

    def rows(self) -> Loaded:
        """The cell's rows, one for each question. Raises tasks.base.DataError when they no longer
        exist."""
        loaded = self.build_task().load(data_of(vars(self)), self.n, self.length, self.seed)
        return replace(loaded, rows=asked(loaded.rows, self.turns))

    def hashed(self) -> Cell:
        """The same cell with the hash of embedded rows, which a plan leaves out. Raises
        RequestError."""
        if self.data["sha256"]:
            return self
        return replace(self, data={**self.data, "sha256": load_rows(vars(self)).sha256})

    def baseline(self) -> Cell:
        """The vanilla cell of the same request, with the weights that vanilla uses; or the cell of
        the server that the request gives in the place of vanilla."""
        method = _baseline()
        if address := self.method.get("vanilla"):
            served, own = self.method["vanilla_served"], self.method["base_url"]
            # Another server does not get the key.
            key = self.method["key"] if urlsplit(address)[:2] == urlsplit(own)[:2] else None
            without = {"vanilla": None, "vanilla_served": None}
            method = {**self.method, "base_url": address, "served": served, "key": key, **without}
        adapted = uses_adapted(self.protocol, self.recipe)
        model = weights.weights_of(self.model, BASELINE, adapted)
        code = code_of(method, self.task, self.model)
        return replace(self, method=method, model=model, code_sha256=code).trained()

    def trained(self) -> Cell:
        """The same cell with the weights that its recipe trains, with their hash once they exist;
        the cell itself if it has no recipe."""
        if self.recipe is None:
            return self
        assert self.protocol is not None
        method = self.training_method
        start = {
            "family": self.model["family"].partition(":")[2],
            "config": self.model.get("config"),
            "weights_sha256": self.model.get("start_sha256", self.model["weights_sha256"]),
        }
        data = {name: self.data[name] for name in ("source", "train_sha256")}
        if self.skip_unanswerable:
            data["skip_unanswerable"] = True
        recipe = {k: v for k, v in self.recipe.items() if k not in ("name", "save_every")}
        code = code_of(method, self.task, self.model)
        parts = [without_module(method), without_module(self.task), start, data]
        key = json_sha256([weights.VERSION, *parts, self.length, recipe, self.seed, code])
        name = f"{self.task['name']}-{method['name']}-{key[:16]}"
        path = Path(self.model["checkpoints"]) / name
        model = {
            **self.model,
            "training": key,
            "path": str(path),
            "start_sha256": start["weights_sha256"],
            "weights": weights.KINDS[WeightsProtocol(self.protocol)],
            "weights_sha256": weights.checkpoint_sha256(path) if weights.card(path) else None,
        }
        return replace(self, model=model)

    @property
    def training_method(self) -> Mapping[str, Any]:
        """The method with which the weights are trained."""
        is_swap = self.protocol == WeightsProtocol.SWAP
        return _baseline() if is_swap else self.method

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def stored_json(self) -> str:
        """The JSON that a row keeps: folders of the project as relative paths, and without this
        machine's folder of checkpoints. Hashes identify their contents."""
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
        """A cell from a resolved request (bench.request.schema.Config as a plain dict): its values
        are checked, its rows and weights found and hashed. Raises RequestError."""
        check_values(request)
        check_device(request["device"])
        parameters.check_threads(request["threads"])
        loaded = load_rows(request)
        return cls.with_rows(request, loaded.split, loaded.sha256, loaded.n_unanswerable)

    @classmethod
    def with_rows(
        cls, request: Mapping[str, Any], split: str, sha256: str, n_unanswerable: int = 0
    ) -> Cell:
        """The cell of a resolved and checked request whose rows have this split and hash, without
        the rows left out. Raises RequestError about its weights."""
        weights_protocol, recipe = weights.protocol_of(request), request.get("recipe")
        data = data_of(request)
        task = asking(task_of(request["task"]), request.get("turns", 1))
        with errors_of(f"task {task.name}", request["task"]["target"]):
            # Also checks that it has such a metric, before anything is measured.
            answers, marks, _ = task.answers, list(task.special_tokens), task.metric_version
        model = weights.model_of(request, weights_protocol, answers)
        parameters.check_model(request, model)
        prompt = parameters.prompt_form(request, model, task)
        scored = MEASURES[request["measure"]].quality and not request["probe"]
        if scored and model["weights"] != "random" and model.get("untrained"):
            raise answering.no_answers(model, task.name)
        if answers in ("choice", "span"):
            model["marks"] = marks
        new_tokens = decoded_tokens(request)
        if new_tokens and answers != "text":
            raise RequestError(
                f"task {task.name} asks for {ANSWERS[answers]}, which isn't decoded token by "
                "token; new_tokens and measure=decoding take a task that is answered in text"
            )
        rows: dict[str, Any] = {
            "source": data.source,
            "dir": str(data.dir) if data.dir else None,
            "split": split,
            "sha256": sha256,
        }
        if n_unanswerable:
            rows["n_unanswerable"] = n_unanswerable
        if recipe:
            try:
                rows["train_sha256"] = weights.data_sha256(
                    task, data, recipe, request["length"], request["seed"]
                )
            except DataError as error:
                raise RequestError(f"recipe {recipe['name']}: {error}") from error
        given = {field.name: request[field.name] for field in fields(cls) if field.name in request}
        given |= {
            "model": model,
            "data": rows,
            "threads": request["threads"] or len(os.sched_getaffinity(0)),
            "code_sha256": code_of(request["method"], request["task"], model),
            "protocol": weights_protocol,
            "recipe": recipe,
            "new_tokens": new_tokens,
            "time_s": parameters.seconds_of(request.get("time")),
            "prompt": prompt,
        }
        return cls(**given).trained()


def task_of(conf: Mapping[str, Any]) -> Task:
    """The task that a configuration describes. Raises RequestError."""
    task: Task = plugins.build(dict(conf), Task)
    return task


def asking(task: Task, turns: int) -> Task:
    """The task with this number of questions on each text. Raises RequestError for a task that
    has one question."""
    if turns == 1:
        return task
    with contextlib.suppress(ValueError, TypeError):
        return replace(task, turns=turns)  # type: ignore[call-arg]
    having = []
    for name, conf in plugins.usable("task").items():
        with contextlib.suppress(RequestError, ValueError, TypeError):
            replace(plugins.build(conf, Task), turns=turns)
            having.append(name)
    raise RequestError(
        f"task {task.name} has no {turns} questions on one text: turns={turns} is for "
        f"{', '.join(having) or 'none'}"
    )


def asked(rows: Sequence[Row], turns: int) -> Sequence[Row]:
    """A row for each question; the questions on a text follow one another."""
    if turns == 1:
        return rows
    texts = [row for row in rows if isinstance(row, Prompt)]
    return [one for row in texts for one in (replace(row, further=()), *row.further)]


def load_rows(request: Mapping[str, Any]) -> Loaded:
    """The rows of a request. Raises RequestError."""
    task = asking(task_of(request["task"]), request.get("turns", 1))
    with errors_of(f"task {task.name}", request["task"]["target"]):
        try:
            data = data_of(request)
            loaded = task.load(data, request["n"], request["length"], request["seed"])
        except DataError as error:
            raise RequestError(str(error)) from error
        if not isinstance(loaded, Loaded):
            raise TypeError(f"load gave {type(loaded).__name__}, not tasks.base.Loaded")
    parameters.check_rows(loaded.rows, request)
    return loaded


def code_of(method: Mapping[str, Any], task: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Hash of the code on which a cell's numbers depend: its method, task, family and vanilla."""
    targets = [*plugins.targets(method), task["target"], model["family"], _baseline()["target"]]
    return code_hash.code_sha256(*targets, without=METRICS)


@functools.cache
def _baseline() -> dict[str, Any]:
    return plugins.undescribed(plugins.conf("method", BASELINE))


def data_of(request: Mapping[str, Any]) -> Data:
    """The source of the rows of a request, or of a cell given by its fields."""
    data, skip = request["data"], request.get("skip_unanswerable", False)
    path = Path(data["dir"]).expanduser().resolve() if data.get("dir") else None
    return Data(data["source"], path, data.get("split"), skip)
