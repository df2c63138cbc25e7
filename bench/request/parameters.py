"""The types of a method's or a task's parameters, checked when a request is composed. They are read
from the source of its dataclass: to import a method loads torch. What a value means is checked by
the dataclass itself, before anything is measured."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from typing import Any

from bench.errors import RequestError
from bench.request import code_hash

KINDS = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "true or false",
    "str": "text",
    "None": "null",
}


def checked(group: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a method or task; a whole number for a text, such as layers=3, as text.
    Raises RequestError for a value of another type than its field. Fields whose types aren't among
    KINDS, or literals, take anything."""
    types = field_types(conf["target"])
    return {
        name: _checked(f"{group}.{name}", value, types[name]) if name in types else value
        for name, value in conf.items()
    }


def _checked(key: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if any(_is(value, kind) for kind in kinds):
        return value
    if type(value) is int and "str" in kinds:
        return str(value)
    accepted = " or ".join(KINDS.get(kind, repr(kind)) for kind in kinds)
    shown = "null" if value is None else str(value)
    raise RequestError(f"{key}={shown} is not accepted: it takes {accepted}")


def _is(value: Any, kind: Any) -> bool:
    match kind:
        case "float":
            return type(value) in (int, float) and math.isfinite(value)
        case "None" | "int" | "bool" | "str":
            return bool((type(value).__name__ if value is not None else "None") == kind)
    return bool(value == kind)


@functools.cache
def field_types(target: str) -> dict[str, tuple[Any, ...]]:
    """Field → its accepted kinds, of the dataclass 'package.module:Name' and those it extends."""
    definition, module = _definition(target)
    found: dict[str, tuple[Any, ...]] = {}
    if not isinstance(definition, ast.ClassDef):
        return found
    for base in definition.bases:
        found |= field_types(f"{module}:{ast.unparse(base)}")
    for line in definition.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found.pop(line.target.id, None)
            if kinds := _kinds(line.annotation, module):
                found[line.target.id] = kinds
    return found


def _definition(target: str) -> tuple[ast.AST | None, str]:
    """The class or the assigned value behind 'package.module:Name', or ':module.Name' of a module
    that is imported there, and the module that it is in; None where there is no such source."""
    module, _, path_to = target.partition(":")
    name, _, attribute = path_to.partition(".")
    path = code_hash.source_file(module)
    try:
        body = ast.parse(path.read_bytes()).body if path else []
    except SyntaxError:
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


def _kinds(annotation: Any, module: str) -> tuple[Any, ...] | None:
    """The kinds of an annotation; a literal's are its values. None where some aren't known."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            one, other = _kinds(left, module), _kinds(right, module)
            return one + other if one and other else None
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=values)):
            return tuple(ast.literal_eval(value) for value in values)
        case ast.Constant(value=None):
            return ("None",)
        case ast.Name(id=name) if name in KINDS:
            return (name,)
        case ast.Name(id=name):
            definition, origin = _definition(f"{module}:{name}")
            return _kinds(definition, origin)
    return None
