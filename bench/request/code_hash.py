"""A hash of the code on which a cell's numbers depend, independent of its location.

A module counts by its syntax tree without docstrings, comments and positions, and by its imports:
a name from a module of this project by that module's own content, any other by its full name. C++
sources of a package count by their text without comments and blank lines. The hash is taken over
the sorted digests of all modules, so moving a module doesn't change it. Nothing is imported to find
it.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import RequestError, described
from bench.files import digest, keep, read_kept

NATIVE = (".cpp", ".cu", ".h", ".hpp", ".cuh")
SKIPPED_FIELDS = ("ctx", "kind", "type_comment", "type_ignores")
TREES = 16
"""Number of cached syntax trees: those of a method, its bases and a task are read several times."""
COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])')""", re.DOTALL
)


class _Import(NamedTuple):
    """`from module import name as bound`; without a name it is `import module as bound`."""

    module: str
    name: str
    bound: str

    @property
    def submodule(self) -> str:
        """The module that is imported if `name` is a module itself."""
        return f"{self.module}.{self.name}" if self.name else self.module


class _Module(NamedTuple):
    """`content` is the digest of a module's own sources, empty if they hold no statement."""

    content: str
    imports: tuple[_Import, ...]


@functools.cache
def code_sha256(*targets: str, without: str = "") -> str:
    """sha256 over the modules of module names or targets ('package.module:Name') and over all
    modules that they import from the same top-level packages. The package `without` and its content
    are left out. Raises RequestError for a module that doesn't exist."""
    ingredients = [__file__, Path(__file__).read_text(), targets, without]
    found = read_kept("code", ingredients)
    if found and all(_sources(name) == kept for name, kept in found["sources"].items()):
        return str(found["sha256"])
    names = [target.partition(":")[0] for target in targets]
    for name in names:
        if _module(name) is None:
            raise RequestError(f"no module '{name}'")
    scopes = {_scope(name) for name in names}
    modules: dict[str, _Module | None] = {}
    while names:
        name = names.pop()
        excluded = without and f"{name}.".startswith(f"{without}.")
        if name in modules or excluded or _scope(name) not in scopes:
            continue
        modules[name] = module = _module(name)
        if module:
            names += [part for each in module.imports for part in (each.module, each.submodule)]
            # Importing a module imports the packages that contain it.
            names.append(name.rpartition(".")[0])
    found_modules = {name: module for name, module in modules.items() if module}
    project = {scope.partition(".")[0] for scope in scopes}
    parts = [
        [m.content, *sorted(_links(m, found_modules, project))] for m in found_modules.values()
    ]
    digests = [digest("\n".join(part).encode()) for part in parts if any(part)]
    sha256 = digest("\n".join(sorted(digests)).encode())
    sources = {name: _sources(name) for name in modules}
    keep("code", ingredients, {"sha256": sha256, "sources": sources})
    return sha256


def _sources(name: str) -> str | None:
    """A digest of a module's unchanged files; None if there is no such module."""
    path = source_file(name)
    if path is None:
        return None
    files = [path, *_natives(path)] if path.name == "__init__.py" else [path]
    return digest(b"\0".join(file.read_bytes() for file in files))


def _natives(path: Path) -> list[Path]:
    """The C++ sources of a package, given its __init__.py."""
    return sorted(file for file in path.parent.iterdir() if file.suffix in NATIVE)


def _links(module: _Module, modules: Mapping[str, _Module], project: set[str]) -> Iterator[str]:
    """The imports of a module, without the locations of the project's own modules."""
    for each in module.imports:
        if each.submodule in modules:
            yield f"{modules[each.submodule].content} {each.bound}"
        elif each.module in modules:
            yield f"{modules[each.module].content} {each.name} {each.bound}"
        elif each.module.partition(".")[0] not in project:
            yield " ".join(each)


def _scope(name: str) -> str:
    """The package within which imports are followed: methods, tasks, bench.models."""
    parts = name.split(".")
    return ".".join(parts[:2] if parts[0] == "bench" else parts[:1])


@functools.cache
def _module(name: str) -> _Module | None:
    """The module; None if there is none, or if the name is defined within a module."""
    path = source_file(name)
    if path is None:
        return None
    is_package = path.name == "__init__.py"
    tree = parsed(path)
    tokens: list[str] = []
    _add_tokens(tree.body, tokens.append)
    texts = ["".join(tokens)]
    if is_package:
        texts += sorted(_without_comments(file.read_text()) for file in _natives(path))
    imports = tuple(_imports(tree, name if is_package else name.rpartition(".")[0]))
    return _Module(digest("\0".join(texts).encode()) if any(texts) else "", imports)


def source_file(name: str) -> Path | None:
    """A module's file, found by its path: to find a submodule's spec would import its package."""
    path = _place(name)
    return path if path and path.is_file() else None


def folder_of(package: str) -> Path | None:
    """The folder of a package, found by its path; None if there is none."""
    path = _place(package)
    if path and path.name == "__init__.py":
        return path.parent
    return path if path and path.is_dir() else None


def _place(name: str) -> Path | None:
    """The path, which may not exist, of a module's file or of a package without __init__.py."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    path = Path(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
    for part in rest:
        folder = path.parent if path.name == "__init__.py" else path
        module, package = folder / f"{part}.py", folder / part / "__init__.py"
        path = next((file for file in (package, module) if file.is_file()), folder / part)
    return path


@functools.lru_cache(maxsize=TREES)
def parsed(path: Path) -> ast.Module:
    """A module's syntax tree, which must not be changed. Raises RequestError for a file that isn't
    Python."""
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        is_located = isinstance(error, SyntaxError) and error.lineno
        raise RequestError(described(error) if is_located else f"{path}: {error}") from error


@functools.cache
def check_target(target: Any) -> None:
    """Raises RequestError unless `target` is 'package.module:Name' and the module defines that
    name. The module is parsed, not imported."""
    module, _, name = str(target).partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise RequestError(f"'{target}' is not of the form package.module:Name")
    path = source_file(module)
    if path is None:
        raise RequestError(f"no module '{module}' for '{target}'")
    ingredients = [__file__, digest(path.read_bytes())]
    names = read_kept("names", ingredients)
    if names is None:
        names = sorted(set(_defined(parsed(path))))
        keep("names", ingredients, names)
    if not {name, "*", "__getattr__"}.intersection(names):
        classes = ", ".join(names) or "nothing"
        raise RequestError(f"no '{name}' in {path}, which defines {classes}")


def _defined(node: ast.AST) -> Iterator[str]:
    """The names that a module's own statements bind."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield child.name
        elif isinstance(child, ast.alias):
            yield child.asname or child.name
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, (ast.stmt, ast.expr, ast.ExceptHandler)):
            yield from _defined(child)


def _imports(tree: ast.Module, package: str) -> Iterator[_Import]:
    """The imports of a module; relative ones begin in `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (_Import(alias.name, "", alias.asname or "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            parents = package.split(".")
            base = ".".join(parents[: len(parents) + 1 - node.level]) if node.level else ""
            origin = ".".join(filter(None, [base, node.module]))
            for alias in node.names:
                yield _Import(origin, alias.name, alias.asname or alias.name)


def _add_tokens(value: Any, add: Callable[[str], None]) -> None:
    """Adds a syntax tree as text that is the same in every version of Python: the classes of its
    nodes and their non-empty fields; later versions only add fields."""
    # Nested generators would take twice as long, before every cell.
    if isinstance(value, ast.AST):
        add(f"{type(value).__name__}(")
        for name in value._fields:
            content = getattr(value, name, None)
            if isinstance(content, list):
                content = list(filter(_counts, content))
            if name not in SKIPPED_FIELDS and content is not None and content != []:
                add(f"{name}=")
                _add_tokens(content, add)
        add(")")
    elif isinstance(value, list):
        for item in filter(_counts, value):
            _add_tokens(item, add)
            add(",")
    else:
        add(repr(value))


def _counts(node: Any) -> bool:
    """Whether a part of a list of nodes counts: imports, docstrings, and blocks that contain only
    imports don't."""
    if isinstance(node, ast.Expr):
        return not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
    if isinstance(node, ast.If):
        return bool(node.orelse) or any(map(_counts, node.body))
    return not isinstance(node, (ast.Import, ast.ImportFrom))


def _without_comments(text: str) -> str:
    code = COMMENT_OR_LITERAL.sub(lambda match: match[1] or " ", text)
    lines = (line.strip() for line in code.splitlines())
    return "\n".join(line for line in lines if line)
