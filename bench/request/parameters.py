"""The parameters of a method or a task, checked when a request is composed. The accepted
values are read from the annotations in the source of its dataclass, since importing a method loads
torch. The dataclass checks conditions on several fields itself, before anything is measured."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal

from bench.errors import RequestError, unknown
from bench.request import code_hash, plugins
from methods.parts.parameters import TYPES, Range, Text, accepts, described

NAMES = {kind.__name__: kind for kind in TYPES if kind is not NoneType}
LIMITS = {limit.__name__: limit for limit in (Range, Text)}


def checked(group: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a method or task, each value in the form that its field has: 3 for '3'
    where that is a number, '3' for 3 where it is text. Raises RequestError for a value that its
    field doesn't accept. Fields of other types than TYPES take anything."""
    hints = field_types(conf["target"])
    return {
        name: _checked(f"{group}.{name}", value, hints[name]) if name in hints else value
        for name, value in conf.items()
    }


def _checked(key: str, value: Any, hint: Any) -> Any:
    for form in _forms(value):
        if accepts(hint, form):
            return form
    shown = "null" if value is None else str(value)
    raise RequestError(f"{key}={shown} is not accepted: it takes {described(hint)}")


def _forms(value: Any) -> Iterator[Any]:
    """What a value that was written may mean; equal values come to one form."""
    if type(value) is str and re.fullmatch("[0-9]{1,18}", value):
        yield from _forms(int(value))
    if type(value) is int and abs(value) < 1 << 53:
        yield float(value)
    yield value
    if type(value) is int:
        yield str(value)


@functools.cache
def field_types(target: str) -> dict[str, Any]:
    """Field → its annotation, of the dataclass 'package.module:Name' and those it extends, as
    `typing.get_type_hints` has it; without those of other types than TYPES."""
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
    """The class or the assigned value behind 'package.module:Name', or ':module.Name' of a module
    that is imported there, and the module that it is in; None where there is no such source."""
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
    """The value of an annotation in a module; None if a part of it is unknown."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            one, other = _hint(left, module), _hint(right, module)
            return one | other if one and other else None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return Literal[ast.literal_eval(values)]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, limit])):
            hint, value = _hint(kind, module), _limit(limit)
            return Annotated[hint, value] if hint and value else hint
        case ast.Constant(value=None):
            return NoneType
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.Name() | ast.Attribute():
            definition, origin = _definition(f"{module}:{ast.unparse(annotation)}")
            return _hint(definition, origin)
    return None


def _limit(call: Any) -> Range | Text | None:
    """The `Range` or `Text` that an annotation has; None for what it is to other libraries."""
    match call:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in LIMITS:
            try:
                arguments = map(ast.literal_eval, call.args)
                named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
                return LIMITS[name](*arguments, **named)
            except (TypeError, ValueError) as error:
                raise RequestError(f"{ast.unparse(call)}: it takes literals: {error}") from error
    return None


# A method within a method: `method.prefill=vertical_slash` has another method read the prompt of
# one that changes a KV cache; `method.prefill={name:vertical_slash,vertical:200}` sets
# parameters.

PART = "prefill"


def resolved(method: Mapping[str, Any]) -> dict[str, Any]:
    """A method's configuration with that of its part, as `plugins.build` takes it; without the
    name of a part that isn't there. Raises RequestError."""
    others = {key: value for key, value in method.items() if key != PART}
    given = method.get(PART)
    if given is None:
        return others
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping) or "name" not in given:
        raise RequestError(
            f"method.{PART}={given} is not accepted: it is the name of a method, or with "
            f"parameters {{name:vertical_slash,vertical:200}}"
        )
    written = plugins.undescribed(plugins.conf("method", str(given["name"])))
    if extra := sorted(given.keys() - written.keys()):
        raise unknown(f"parameter of {given['name']}", extra[0], written.keys() - {"target"})
    if PART in written:
        raise RequestError(
            f"method.{PART}={given['name']} is not accepted: that is a KV cache itself; it takes a "
            "method that reads prompts, such as vertical_slash"
        )
    return {**others, PART: checked("method", {**written, **given})}
