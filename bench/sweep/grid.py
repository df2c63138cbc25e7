"""The points of a sweep: every combination of the given values, as composed requests.

A composition takes Hydra about 50 ms, so it composes each swept choice of a group once instead of
each point; further points are copies of the first one with their own choices and values.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from bench.errors import RequestError
from bench.request import compose, plugins, schema
from bench.request.overrides import as_parameters, check_overrides, check_parameter, parse
from bench.sweep import launchers

NODES = {"method", "task", "model", "device", "data"}
"""Groups whose choice becomes the part of the request with the same name."""
SINGLE = ("launcher", "experiment", "scale", "results", "events", "shard", "time", "n_jobs",
          "share_prefill")  # fmt: skip


@dataclass(frozen=True)
class Point:
    """`overrides` distinguish it from the other points; `request` is the whole request."""

    overrides: tuple[str, ...]
    request: Mapping[str, Any]


@dataclass
class SweepGrid:
    """`fixed` are the overrides that all points share, `swept` the values of each other key; `base`
    is the first point as composed by Hydra, `hydra` Hydra's own settings for it.

    A recipe changes task, model and length, so each recipe of a sweep is a separate grid in
    `parts`.
    """

    fixed: list[str]
    swept: dict[str, list[str]]
    base: dict[str, Any]
    hydra: dict[str, Any]
    parts: dict[str, SweepGrid] = field(default_factory=dict)
    _choices: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, overrides: Sequence[str]) -> SweepGrid:
        """Raises RequestError."""
        fixed, swept, keys = _split(check_overrides(overrides))
        for key in SINGLE:
            if key in swept:
                raise RequestError(f"{key}={','.join(swept[key])}: a sweep takes one {key}")
        for override in fixed:
            if override.startswith("launcher="):
                launchers.check_installed(override.removeprefix("launcher="))
        recipes = swept.pop("recipe", None)
        if recipes is None:
            grid = cls._composed(fixed, swept, keys)
            if (recipes := grid.swept.pop("recipe", None)) is None:
                return grid
            keys.add("recipe")
        parts = {name: cls._composed([*fixed, f"recipe={name}"], swept, keys) for name in recipes}
        grid = parts[recipes[0]]
        shared = [override for override in grid.fixed if override != f"recipe={recipes[0]}"]
        return replace(grid, fixed=shared, parts=parts)

    @classmethod
    def _composed(cls, fixed: list[str], swept: dict[str, list[str]], keys: set[str]) -> SweepGrid:
        """The grid of these overrides and its experiment's; `keys` are those of the request."""
        parameters: dict[str, list[str]] = {}
        if "experiment" in keys or len(swept.get("method", ())) > 1:
            # Only the composition shows whether the first method has them.
            parameters = {k: v for k, v in swept.items() if k.startswith("method.")}
            parameters |= {key: [value] for key, _, value in (o.partition("=") for o in fixed)
                           if key.startswith("method.")}  # fmt: skip
            fixed = [override for override in fixed if not override.startswith("method.")]
        first = [f"{key}={values[0]}" for key, values in swept.items() if key not in parameters]
        base, hydra = compose.kept_or_composed([*fixed, *first])
        own = _experiment_sweeps(hydra, keys)
        all_swept = {**own, **swept, **parameters}
        grid = cls(fixed, all_swept, base, hydra)
        for key in keys & all_swept.keys():
            check_parameter(key, grid._parameters)
        return grid

    def points(self) -> Iterator[Point]:
        """Points in the order of the overrides; the values of the last one change fastest. A
        method's parameter applies to the methods that have it; the others have one point for all of
        its values. Raises RequestError for a value of the wrong type."""
        for recipe, part in self.parts.items():
            for point in part.points():
                yield Point((f"recipe={recipe}", *point.overrides), point.request)
        if self.parts:
            return
        parsed = {
            (key, text): _parsed_value(key, text)
            for key, texts in self.swept.items()
            for text in texts
            if key not in NODES
        }
        seen = set()
        for texts in itertools.product(*self.swept.values()):
            values = dict(zip(self.swept, texts, strict=True))
            accepted = self._parameters.get(values.get("method", self.base_method))
            if accepted is not None:
                foreign = {key for key in values if key.startswith("method.")}
                foreign -= {key for key in foreign if key.split(".")[1] in accepted}
                values = {key: text for key, text in values.items() if key not in foreign}
            overrides = tuple(f"{key}={text}" for key, text in values.items())
            if overrides in seen:
                continue
            seen.add(overrides)
            request = dict(self.base)
            for key, text in sorted(values.items(), key=lambda item: item[0] not in NODES):
                value = self._choice(key, text) if key in NODES else parsed[key, text]
                _put(request, key, value)
            yield Point(overrides, compose.resolve(request, [*self.fixed, *overrides]))

    @property
    def base_method(self) -> str:
        return str(self.hydra["runtime"]["choices"]["method"])

    @cached_property
    def _parameters(self) -> dict[str, frozenset[str] | None]:
        """Method → its parameters, if some are swept; None if its YAML has its own `defaults`."""
        if not any(key.startswith("method.") for key in self.swept):
            return {}
        parameters = {}
        for method in self.swept.get("method", [self.base_method]):
            content = plugins.conf("method", method)
            parameters[method] = None if "defaults" in content else frozenset(content)
        return parameters

    def _choice(self, group: str, name: str) -> dict[str, Any]:
        """A choice of a group with the fixed overrides applied, as Hydra composes it."""
        if self.hydra["runtime"]["choices"][group] == name:
            return self.base[group]  # type: ignore[no-any-return]
        if (group, name) not in self._choices:
            request, _ = compose.kept_or_composed([*self.fixed, f"{group}={name}"])
            self._choices[group, name] = request[group]
        return self._choices[group, name]


def _split(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[str]], set[str]]:
    """Overrides with one value, keys with several, and all the keys."""
    from hydra.core.override_parser.types import Glob

    fixed, swept, keys = [], {}, set()
    for override in parse(overrides):
        key, line = override.key_or_group, override.input_line
        keys.add(key)
        if not override.is_sweep_override():
            fixed.append(line)
        elif isinstance(override.value(), Glob):
            swept[key] = list(override.value().filter(sorted(plugins.available(key))))
        elif not override.is_discrete_sweep():
            raise RequestError(f"{line}: a sweep takes lists, range() and glob()")
        elif key in NODES and override.is_choice_sweep():
            # Hydra would escape a colon in a name.
            swept[key] = [str(name) for name in override.value().list]
        else:
            swept[key] = list(override.sweep_string_iterator())
    return fixed, swept, keys


def _experiment_sweeps(hydra: Mapping[str, Any], keys: Collection[str]) -> dict[str, list[str]]:
    """An experiment's own sweeps without the `keys` that the request gives; a single value is a
    list of one. A method's parameter must belong to one of the experiment's methods."""
    choices = hydra["runtime"]["choices"]
    overrides = [
        f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in (hydra["sweeper"]["params"] or {}).items()
    ]
    try:
        overrides = as_parameters(overrides)
        methods = [] if "method" in keys else [str(choices["method"])]
        fixed, swept, _ = _split(check_overrides(overrides, methods))
    except RequestError as error:
        raise RequestError(f"experiment={choices.get('experiment')}: {error}") from error
    single = dict(override.split("=", 1) for override in fixed)
    own = [override.partition("=")[0] for override in overrides]
    return {key: swept.get(key, [single.get(key, "")]) for key in own if key not in keys}


def _parsed_value(key: str, text: str) -> Any:
    """A value in the type of the schema. Raises RequestError for a wrong type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    value = parse([f"{key}={text}"])[0].value()
    if key not in schema.Config.__dataclass_fields__:
        return value
    try:
        config = OmegaConf.structured(schema.Config())
        config[key] = value
        return config[key]
    except OmegaConfBaseException as error:
        raise RequestError(f"{key}={text}: {str(error).splitlines()[0]}") from error


def _put(request: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key; the dicts on its path are copied, since points share them."""
    *parts, last = key.lstrip("+").split(".")
    for part in parts:
        request[part] = dict(request[part] or {})
        request = request[part]
    request[last] = value
