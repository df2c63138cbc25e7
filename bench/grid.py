"""The points of a sweep: every combination of the values given, as composed requests.

Hydra composes once for the whole sweep, not for each point: a group's choice is its YAML with the
request's words on it, and a value is checked by the schema. Where that isn't what Hydra gives for
the first point (an experiment that changes a task, a YAML with defaults of its own), Hydra composes
that choice too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import config, plugins, schema
from bench.errors import RequestError

NODES = ("method", "task", "model", "device", "data")
"""Groups whose YAML is the part of the request of the same name."""


@dataclass(frozen=True)
class Point:
    """`words` are those that tell it from the other points; `request` is all of it."""

    words: tuple[str, ...]
    request: Mapping[str, Any]


@dataclass
class Grid:
    """`fixed` are the words that all points share; `hydra` is Hydra's own part of the first."""

    fixed: list[str]
    swept: dict[str, list[str]]
    base: dict[str, Any]
    hydra: dict[str, Any]
    experiment: str | None = None
    _nodes: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, overrides: Sequence[str]) -> Grid:
        """Raises RequestError."""
        fixed, swept, keys = _split(config.checked(overrides))
        for single in ("launcher", "experiment", "results", "shard", "budget", "n_jobs"):
            if single in swept:
                raise RequestError(
                    f"{single}={','.join(swept[single])}: a sweep takes one {single}"
                )
        firsts = [f"{key}={values[0]}" for key, values in swept.items()]
        base, hydra = config.composed([*fixed, *firsts])
        experiment = hydra["runtime"]["choices"].get("experiment")
        own = {k: v for k, v in (hydra["sweeper"]["params"] or {}).items() if k not in keys}
        more = _params(own, experiment)
        return cls(fixed, {**more, **swept}, base, hydra, experiment)

    def __len__(self) -> int:
        count = 1
        for values in self.swept.values():
            count *= len(values)
        return count

    def points(self) -> Iterator[Point]:
        """In the order of the words, the last one's values changing fastest. Raises RequestError
        for a value of the wrong type."""
        groups = {key: values for key, values in self.swept.items() if key in NODES}
        others = {key: values for key, values in self.swept.items() if key not in NODES}
        parsed = {
            (key, value): self._value(key, value)
            for key, values in others.items()
            for value in values
        }
        for values in itertools.product(*self.swept.values()):
            chosen = dict(zip(self.swept, values, strict=True))
            request = dict(self.base)
            for key in groups:
                request[key] = self._node(key, chosen[key])
            for key in others:
                _put(request, key, parsed[key, chosen[key]])
            yield Point(tuple(f"{key}={value}" for key, value in chosen.items()), request)

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
