"""Checks of the values of a request: the parameters of its method and task, each other value
separately, and the memory and time that it needs on this machine. No torch.

The accepted parameters are read from the annotations in the source of a dataclass, since importing
a method loads torch. The dataclass checks conditions on several fields itself, before anything is
measured.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

from bench.errors import RequestError, unknown
from bench.host import gpu, host
from bench.models import auto
from bench.request import code_hash, plugins, schema
from bench.units import memory, span
from methods.parts.parameters import TYPES, Range, Text, accepts, described
from tasks.base import CHAT, PLAIN, Row, Task
from tasks.loading.prompts import Prompt

NAMES = {kind.__name__: kind for kind in TYPES if kind is not NoneType}
LIMITS = {limit.__name__: limit for limit in (Range, Text)}


def checked(group: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a method or task, with each value converted to the type of its field: 3
    for '3' if that is a number, '3' for 3 if it is text. Raises RequestError for a value that its
    field doesn't accept. Fields of other types than TYPES take anything."""
    hints = field_types(conf["target"])
    result = dict(conf)
    for name in [name for name in conf if name in hints]:
        forms = [form for form in _forms(conf[name]) if accepts(hints[name], form)]
        if not forms:
            shown = "null" if conf[name] is None else str(conf[name])
            accepted = described(hints[name])
            raise RequestError(f"{group}.{name}={shown} is not accepted: it takes {accepted}")
        result[name] = forms[0]
    return result


def _forms(value: Any) -> Iterator[Any]:
    """Possible meanings of a written value; equal values give the same first form."""
    if type(value) is str and re.fullmatch("[0-9]{1,18}", value):
        yield from _forms(int(value))
    if type(value) is int and abs(value) < 1 << 53:
        yield float(value)
    yield value
    if type(value) is int:
        yield str(value)


@functools.cache
def field_types(target: str) -> dict[str, Any]:
    """Field → its annotation, for the dataclass 'package.module:Name' and its bases, in the form of
    `typing.get_type_hints`; without fields of other types than TYPES."""
    definition, module = _definition(target)
    found: dict[str, Any] = {}
    if not isinstance(definition, ast.ClassDef):
        return found
    for base in definition.bases:
        found |= field_types(f"{module}:{ast.unparse(base)}")
    for line in definition.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found.pop(line.target.id, None)
            if hint := _hint(line.annotation, module):
                found[line.target.id] = hint
    return found


def _definition(target: str) -> tuple[ast.AST | None, str]:
    """The class or the assigned value of 'package.module:Name', or ':module.Name' for a module that
    is imported there, and the module that contains it; None if there is no such source."""
    module, _, path_to = target.partition(":")
    name, _, attribute = path_to.partition(".")
    path = code_hash.source_file(module)
    try:
        body = code_hash.parsed(path).body if path else []
    except RequestError:  # the error is reported when the file is loaded
        body = []
    for node in body:
        match node:
            case ast.ClassDef(name=given) if given == name:
                return node, module
            case ast.Assign(targets=[ast.Name(id=given)], value=value) if given == name:
                return value, module
            case ast.ImportFrom(module=str(origin), level=0):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        inner = f".{alias.name}:{attribute}" if attribute else f":{alias.name}"
                        return _definition(origin + inner)
    return None, module


def _hint(annotation: Any, module: str) -> Any:
    """The value of an annotation in a module, or the `Range` or `Text` within it; None if a part of
    it is unknown or belongs to other libraries."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            one, other = _hint(left, module), _hint(right, module)
            return one | other if one and other else None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return Literal[ast.literal_eval(values)]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, limit])):
            hint, value = _hint(kind, module), _hint(limit, module)
            return Annotated[hint, value] if hint and value else hint
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in LIMITS:
            try:
                arguments = map(ast.literal_eval, annotation.args)
                named = {str(w.arg): ast.literal_eval(w.value) for w in annotation.keywords}
                return LIMITS[name](*arguments, **named)
            except (TypeError, ValueError) as error:
                text = ast.unparse(annotation)
                raise RequestError(f"{text}: it takes literals: {error}") from error
        case ast.Constant(value=None):
            return NoneType
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.Name() | ast.Attribute():
            definition, origin = _definition(f"{module}:{ast.unparse(annotation)}")
            return _hint(definition, origin)
    return None


# A method within a method: `method.prefill=vertical_slash` has another method read the prompt of
# one that changes a KV cache, `method.scorer=h2o` has a KV cache give the scores of another one;
# `method.prefill={name:vertical_slash,vertical:200}` sets parameters.

PART, SCORER = "prefill", "scorer"
EXAMPLES = {
    PART: "{name:vertical_slash,vertical:200}", SCORER: "{name:expected_attention,epsilon:0.01}"
}  # fmt: skip
NUMBERS = re.compile(r"[-+.\deE,; ]+")
LATER = ("several",)
"""Parameters that are newer than stored rows: null values aren't part of a cell's key."""


def resolved(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's configuration with those of its parts, in the form for `plugins.build`; without
    the keys of missing parts, and without LATER parameters that are null. A parameter that names a
    file of numbers is replaced by their text, which identifies the cell. Raises RequestError."""
    others = {
        key: value
        for key, value in method.items()
        if key not in EXAMPLES and (key not in LATER or value is not None)
    }
    for name in plugins.facts(str(method.get("name"))).get("files", ()):
        if value := others.get(name):
            others[name] = _numbers(str(value))
    return others | {key: _part(key, method[key]) for key in EXAMPLES if method.get(key)}


def _part(key: str, given: Any) -> dict[str, Any]:
    """The configuration of a method within a method."""
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping) or "name" not in given:
        raise RequestError(
            f"method.{key}={given} is not accepted: it is the name of a method, or with "
            f"parameters {EXAMPLES[key]}"
        )
    written = plugins.undescribed(plugins.conf("method", str(given["name"])))
    if extra := sorted(given.keys() - written.keys()):
        raise unknown(f"parameter of {given['name']}", extra[0], written.keys() - {"target"})
    refused = f"method.{key}={given['name']} is not accepted:"
    if key == PART and PART in written:
        raise RequestError(
            f"{refused} that is a KV cache itself; it takes a method that reads prompts, such as "
            "vertical_slash"
        )
    if key == SCORER and PART not in written:
        raise RequestError(f"{refused} it takes a KV cache that scores its entries, such as h2o")
    return checked("method", resolved({**written, **given}))


def _numbers(value: str) -> str:
    """The lines of a file, joined by semicolons; the value itself if it isn't a file of numbers,
    and the method then rejects it."""
    try:
        lines = Path(value).expanduser().read_text().split("\n")
    except (OSError, ValueError):
        return value
    text = "; ".join(" ".join(line.split()) for line in lines if line.strip())
    return text if NUMBERS.fullmatch(text) else value


# Order and number of questions: `question=after` reads the question after the KV cache of the text
# is made, `turns=3` asks three questions on the same cache, one after the other.

NOT_DECODERS = {*auto.FAMILIES.values(), *auto.OWN_HEADS.values(), *auto.HUB_HEADS.values()} - {
    auto.DECODER
}


def question_words(request: Mapping[str, Any]) -> str:
    """The arguments of a request that ask for more than one question in the prompt; "": none."""
    turns = request.get("turns") or 1
    words = [f"question={request['question']}"] if request.get("question") else []
    return " ".join([*words, *([f"turns={turns}"] if turns != 1 else [])])


def check_model(request: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raises RequestError for a model that isn't a decoder, if the request needs one."""
    if model["family"] not in NOT_DECODERS:
        return
    if words := question_words(request):
        raise RequestError(no_decoder(words, model["name"]))
    if request["task"].get("continuation"):
        raise RequestError(
            f"task {request['task']['name']} reads a text token by token, and model "
            f"{model['name']} has an encoder; it takes a decoder, such as model=embedded-llama"
        )


def prompt_form(request: Mapping[str, Any], model: Mapping[str, Any], task: Task) -> str | None:
    """The form of prompts for the model of a cell: PLAIN or CHAT for a decoder with a chat
    template; None for other models, whose prompts are plain. A family of another package counts as
    a decoder if the request gives one of the two. Raises RequestError."""
    form, name = request.get("prompt") or schema.AUTO_PROMPT, model["name"]
    templated = auto.has_chat_template(Path(model["path"]))
    if model["family"] in NOT_DECODERS and form == CHAT:
        raise RequestError(no_decoder("prompt=chat", name))
    if form == CHAT and not templated:
        raise RequestError(
            f"prompt=chat: model {name} has no chat template, in chat_template.jinja or in "
            "tokenizer_config.json; prompt=plain takes any decoder"
        )
    if form == CHAT and not task.can_chat:
        raise RequestError(f"prompt=chat: task {task.name} encodes its rows by itself, plainly")
    by_package = model["family"] not in (*NOT_DECODERS, auto.DECODER)
    if model["family"] in NOT_DECODERS or not (templated or by_package):
        return None
    if form != schema.AUTO_PROMPT:
        return str(form)
    return None if by_package else CHAT if task.chats else PLAIN


def no_decoder(words: str, model: str) -> str:
    return (
        f"{words}: model {model} reads text and question together in its encoder; it takes a "
        "decoder, such as model=embedded-llama"
    )


def check_rows(rows: Sequence[Row], request: Mapping[str, Any]) -> None:
    """Raises RequestError for rows that don't allow the requested questions: a prompt's question
    isn't separate at its end, or a text has too few further questions."""
    turns = request.get("turns") or 1
    for row in rows if question_words(request) else ():
        if not isinstance(row, Prompt) or not row.query:
            raise RequestError(
                f"{question_words(request)}: task {request['task']['name']} has no question of its "
                f"own at the end of its prompts (row {row.id})"
            )
        if len(row.further) < turns - 1:
            raise RequestError(
                f"turns={turns}: row {row.id} of task {request['task']['name']} has "
                f"{len(row.further) + 1} questions on its text"
            )


# Checks of each value of a resolved request.


def check_values(request: Mapping[str, Any]) -> None:
    """Checks each value of a resolved request separately. Raises RequestError."""
    values = {**request}
    for part in ("data", "recipe"):
        values |= {f"{part}.{name}": value for name, value in (request.get(part) or {}).items()}
    for name, accepted in schema.CHOICES.items():
        if (value := values.get(name)) is not None and value not in accepted:
            raise unknown(name, value, accepted)
    for name, least in schema.LEAST.items():
        if (value := values.get(name)) is not None and value < least:
            raise RequestError(f"{name}={value} is not accepted: it must be {least} or more")
    if (words := question_words(request)) and request["batch"] != 1:
        raise RequestError(
            f"{words} reads one row at a time, as questions differ in length: batch=1, given: "
            f"batch={request['batch']}"
        )
    if recipe := request.get("recipe"):
        if (recipe["steps"] is None) == (recipe["epochs"] is None):
            name = recipe["name"]
            raise RequestError(f"recipe {name}: give recipe.steps or recipe.epochs, one of them")
        if recipe["batch"] % recipe["accumulate"]:
            parts = f"recipe.accumulate={recipe['accumulate']}"
            raise RequestError(f"recipe.batch={recipe['batch']} can't be divided by {parts}")
    source, folder = request["data"]["source"], request["data"].get("dir")
    if source == "local" and not folder:
        raise RequestError("data=local needs the folder: data.dir=FOLDER (DATA_DIR=FOLDER)")
    if source != "local" and folder:
        raise RequestError(f"data.dir={folder} is for data=local; given: {source}")
    if (n := request.get("new_tokens")) is not None and n < 2:
        raise RequestError(
            f"new_tokens={n} is not accepted: 2 or more, as the first one is the prefill's "
            f"({schema.VERDICT_TOKENS} for a verdict)"
        )
    timed = [name for name, plan in schema.MEASURES.items() if plan.speed or plan.tokens_alone]
    if n is not None and (request["probe"] or request["measure"] not in timed):
        chosen = "probe" if request["probe"] else "measure"
        raise RequestError(
            f"new_tokens={n}: {chosen}={request[chosen]} times no decoding; accepted with it: "
            f"measure={', '.join(timed)}"
        )
    check_size(request)


def decoded_tokens(request: Mapping[str, Any]) -> int | None:
    """Number of new tokens decoded after each prompt; None: decoding isn't measured."""
    planned = None if request["probe"] else schema.MEASURES[request["measure"]].new_tokens
    return request.get("new_tokens") or planned


def check_device(device: Mapping[str, Any]) -> None:
    """Raises RequestError when this machine doesn't have the device."""
    if device["kind"] == "cpu":
        return
    found = gpu.name()
    if not found:
        raise RequestError(f"device={device['name']}: no CUDA GPU on this machine; accepted: cpu")
    required = device.get("require")
    # Matched as a whole word: a GH200 isn't an H200.
    if required and not re.search(rf"\b{re.escape(required)}\b", found, re.IGNORECASE):
        raise RequestError(
            f"device={device['name']} requires an {required}; here: {found} "
            "(device=cuda takes any GPU)"
        )


TIME_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds_of(text: str | None) -> float | None:
    """Seconds of `time=`, such as 30m, 2h, 1h30m or 90s. Raises RequestError."""
    if text is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise RequestError(f"time={text} is not accepted: it is such as 30m, 2h, 1h30m or 90s")
    total = sum(float(number) * TIME_UNITS[unit] for number, unit in parts)
    if total <= 0:
        raise RequestError(f"time={text} is not accepted: it must be more than 0")
    return total


# Limits of this machine, checked before any row is generated or a model is loaded.
#
# The estimates are generous: they refuse only requests far beyond the limits; a run that fails near
# a limit stores a row.

BYTES_PER_TOKEN = 4
"""Memory of a token of a generated row, for most tasks."""
TOKENS_PER_S = 1e6
"""Tokens that one core generates in a second, for most tasks."""


def check_threads(threads: int | None) -> None:
    """Raises RequestError for more threads than this process may use cores."""
    cores = len(os.sched_getaffinity(0))
    if threads is not None and threads > cores:
        raise RequestError(
            f"threads={threads} is not accepted: this process may use {cores} cores; accepted: "
            f"1 to {cores}, null for all"
        )


def generating_s(request: Mapping[str, Any]) -> float:
    """Seconds that the embedded rows of a request take to generate; 0 for other sources."""
    return float(request["length"] * _generated(request) / TOKENS_PER_S)


def check_size(request: Mapping[str, Any]) -> None:
    """Raises RequestError for rows or a batch that can't be held in memory here, and for embedded
    rows that can't be generated within the request's deadline."""
    tokens = request["length"] * max(_generated(request), request["batch"])
    size, free = tokens * BYTES_PER_TOKEN, host.available_memory()
    seconds, deadline = generating_s(request), request["deadline_s"]
    if size <= free and seconds <= deadline:
        return
    asked = " ".join(
        f"{name}={request[name]}" for name in ("length", "n", "batch") if request[name] is not None
    )
    raise RequestError(
        f"{asked} would need about {memory(size)} for the tokens alone and {span(seconds)} to "
        f"generate rows; this machine has {memory(free)} free, and deadline_s is {deadline}"
    )


def _generated(request: Mapping[str, Any]) -> int:
    """Number of generated rows."""
    return int(request["n"] or 0) if request["data"]["source"] == "embedded" else 0
