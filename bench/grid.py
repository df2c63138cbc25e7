"""The points of a sweep: every combination of the values given, as composed requests.

Hydra composes once for the whole sweep, not for each point: a group's choice is its YAML with the
request's words on it, and a value is checked by the schema. Where that isn't what Hydra gives for
the first point (an experiment that changes a task, a YAML with defaults of its own), Hydra composes
that choice too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bench import config, plugins, schema
from bench.errors import RequestError, unknown
from bench.resolve import resolved

NODES = {"method", "task", "model", "device", "data"}
"""Groups whose YAML is the part of the request of the same name."""
SINGLE = ("launcher", "experiment", "scale", "results", "shard", "budget", "n_jobs")


@dataclass(frozen=True)
class Point:
    """`words` are those that tell it from the other points; `request` is all of it."""

    words: tuple[str, ...]
    request: Mapping[str, Any]


@dataclass
class Grid:
    """`fixed` are the words that all points share; `hydra` is Hydra's own part of the first.

    A recipe changes task, model and length, so each recipe of a sweep is a grid of its own in
    `parts`.
    """

    fixed: list[str]
    swept: dict[str, list[str]]
    base: dict[str, Any]
    hydra: dict[str, Any]
    experiment: str | None = None
    parts: dict[str, Grid] = field(default_factory=dict)
    _nodes: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, overrides: Sequence[str]) -> Grid:
        """Raises RequestError."""
        fixed, swept, keys = _split(config.checked(overrides))
        for single in SINGLE:
            if single in swept:
                raise RequestError(
                    f"{single}={','.join(swept[single])}: a sweep takes one {single}"
                )
        recipes = swept.pop("recipe", None)
        words = [*fixed, f"recipe={recipes[0]}"] if recipes else fixed
        grid = cls._composed(words, swept, keys)
        if recipes is None and (recipes := grid.swept.pop("recipe", None)):
            keys.add("recipe")
            grid = cls._composed([*fixed, f"recipe={recipes[0]}"], swept, keys)
        if recipes is None:
            return grid
        rest = {r: cls._composed([*fixed, f"recipe={r}"], swept, keys) for r in recipes[1:]}
        shared = [word for word in grid.fixed if word != f"recipe={recipes[0]}"]
        return replace(grid, fixed=shared, parts={recipes[0]: grid, **rest})

    @classmethod
    def _composed(cls, words: list[str], swept: dict[str, list[str]], keys: set[str]) -> Grid:
        """The grid of words with one value each and of others with several; `keys` are those of
        the request itself, not of its experiment."""
        late: dict[str, list[str]] = {}
        if "experiment" in keys or len(swept.get("method", ())) > 1:
            # Which method comes first, and whether it has them, isn't known before composing.
            late = {k: v for k, v in swept.items() if k.startswith("method.")}
            late |= {key: [value] for key, _, value in (word.partition("=") for word in words)
                     if key.startswith("method.")}  # fmt: skip
            words = [word for word in words if not word.startswith("method.")]
        firsts = [f"{key}={values[0]}" for key, values in swept.items() if key not in late]
        base, hydra = config.composed([*words, *firsts])
        experiment = hydra["runtime"]["choices"].get("experiment")
        own = {k: v for k, v in (hydra["sweeper"]["params"] or {}).items() if k not in keys}
        grid = cls(words, {**_params(own, experiment), **swept, **late}, base, hydra, experiment)
        grid._check_reach(keys)
        return grid

    def points(self) -> Iterator[Point]:
        """In the order of the words, the last one's values changing fastest. A method's parameter
        reaches the methods that have it; the others have one point for all of its values. Raises
        RequestError for a value of the wrong type."""
        for recipe, part in self.parts.items():
            for point in part.points():
                yield Point((f"recipe={recipe}", *point.words), point.request)
        if not self.parts:
            yield from self._own_points()

    def _own_points(self) -> Iterator[Point]:
        parsed = {
            (key, value): self._value(key, value)
            for key, values in self.swept.items()
            for value in values
            if key not in NODES
        }
        seen = set()
        for values in itertools.product(*self.swept.values()):
            chosen = dict(zip(self.swept, values, strict=True))
            if self._parameters:
                accepted = self._parameters[chosen.get("method", self._method)]
                chosen = {k: v for k, v in chosen.items() if _reaches(k, accepted)}
            words = tuple(f"{key}={value}" for key, value in chosen.items())
            if words in seen:
                continue
            seen.add(words)
            request = dict(self.base)
            for key in chosen.keys() & NODES:
                request[key] = self._node(key, chosen[key])
            for key, value in chosen.items():
                if key not in NODES:
                    _put(request, key, parsed[key, value])
            yield Point(words, resolved(request, [*self.fixed, *words]))

    @property
    def _method(self) -> str:
        return str(self.hydra["runtime"]["choices"]["method"])

    @cached_property
    def _parameters(self) -> dict[str, frozenset[str] | None]:
        """Method → its parameters, where some are swept; None where its YAML doesn't tell all."""
        if not any(key.startswith("method.") for key in self.swept):
            return {}
        found = {}
        for method in self.swept.get("method", [self._method]):
            content = plugins.conf("method", method)
            found[method] = None if "defaults" in content else frozenset(content)
        return found

    def _check_reach(self, keys: set[str]) -> None:
        """Raises RequestError for a parameter of the request that no method of it has."""
        for key in keys & self.swept.keys():
            if any(_reaches(key, accepted) for accepted in self._parameters.values()):
                continue
            if key.startswith("method."):
                names = {name for accepted in self._parameters.values() for name in accepted or ()}
                methods = ", ".join(self._parameters)
                raise unknown(f"parameter of {methods}", key[7:], names - {"name", "target"})

    def _node(self, group: str, choice: str) -> dict[str, Any]:
        if (group, choice) not in self._nodes:
            first = self.hydra["runtime"]["choices"][group]
            plainly = self._plain_node(group, first) == self.base[group]
            node = self._plain_node(group, choice) if plainly else None
            if node is None:
                words = [*self.fixed, f"{group}={choice}"]
                node = config.composed(words)[0][group]
            self._nodes[group, choice] = node
        return self._nodes[group, choice]

    def _plain_node(self, group: str, choice: str) -> dict[str, Any] | None:
        """A choice's YAML with the fixed words on it; None where it is more than plain values."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        content = plugins.conf(group, choice)
        if "defaults" in content:
            return None
        try:
            node = OmegaConf.merge(OmegaConf.structured(schema.Config())[group], content)
            for override in _parsed(self.fixed):
                head, _, rest = override.key_or_group.partition(".")
                if head == group and rest:
                    OmegaConf.update(node, rest, override.value(), force_add=True)
            plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException:
            return None
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items()}

    def _value(self, key: str, text: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        value = _parsed([f"{key}={text}"])[0].value()
        if key not in schema.Config.__dataclass_fields__:
            return value
        try:
            checked = OmegaConf.structured(schema.Config())
            checked[key] = value
            return checked[key]
        except OmegaConfBaseException as error:
            raise RequestError(f"{key}={text}: {str(error).splitlines()[0]}") from error


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]], set[str]]:
    """Words with one value, keys with several, and all the keys."""
    fixed, swept, keys = [], {}, set()
    for override in _parsed(words):
        key = override.key_or_group
        keys.add(key)
        if not override.is_sweep_override():
            fixed.append(override.input_line)
            continue
        swept[key] = _values(override)
    return fixed, swept, keys


def _values(override: Any) -> list[str]:
    from hydra.core.override_parser.types import Glob

    key = override.key_or_group
    if isinstance(override.value(), Glob):
        return list(override.value().filter(sorted(plugins.available(key))))
    if not override.is_discrete_sweep():
        raise RequestError(f"{override.input_line}: a sweep takes lists, range() and glob()")
    return list(override.sweep_string_iterator())


def _params(params: Mapping[str, Any], experiment: str | None) -> dict[str, list[str]]:
    """An experiment's own sweeps, one value being a list of one."""
    words = [
        f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in params.items()
    ]
    try:
        fixed, swept, _ = _split(config.checked(words))
    except RequestError as error:
        raise RequestError(f"experiment={experiment}: {error}") from error
    single = dict(word.split("=", 1) for word in fixed)
    return {key: swept.get(key, [single.get(key, "")]) for key in params}


def _reaches(key: str, accepted: frozenset[str] | None) -> bool:
    """Whether a swept word is any of a method with these parameters."""
    head, _, rest = key.partition(".")
    return head != "method" or not rest or accepted is None or rest.split(".")[0] in accepted


def _put(request: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; what lies on the way is copied, for points share it."""
    *parts, last = key.lstrip("+").split(".")
    for part in parts:
        request[part] = dict(request[part] or {})
        request = request[part]
    request[last] = value


def _parsed(words: Sequence[str]) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides(list(words))
