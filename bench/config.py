"""From the words of a request to a composed configuration, with errors a person can act on.

Names are checked before Hydra composes, because Hydra's own messages list no nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import launchers, plugins, schema
from bench.errors import RequestError, unknown
from bench.resolve import resolved

GROUPS = ("method", "task", "model", "device", "data", "launcher", "recipe", "experiment",
          "scale")  # fmt: skip


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The request that Hydra composes from overrides such as 'method=vcc', as a plain dict
    of bench.schema.Config. Raises RequestError, also for an experiment that is a sweep."""
    request, hydra = composed(checked(overrides))
    if hydra["sweeper"]["params"]:
        name = hydra["runtime"]["choices"].get("experiment")
        raise RequestError(f"experiment={name} is a sweep: bench run -m, or bench plan")
    return resolved(request, overrides)


def composed(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request of checked overrides, and of Hydra's own part the launcher, the sweeper and what
    was chosen. Raises RequestError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    schema.register()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(plugins.ROOT / "conf"), version_base="1.3"):
            found = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
        asked = {name: found.hydra[name] for name in ("launcher", "sweeper", "runtime")}
        hydra = {k: OmegaConf.to_container(v, resolve=True) for k, v in asked.items()}
        return plain(OmegaConf.masked_copy(found, [str(k) for k in found if k != "hydra"])), hydra
    except (HydraException, OmegaConfBaseException) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = str(error.__cause__ or "").strip().splitlines()
        text = "; ".join([*lines[:2], *(c for c in cause[:1] if c not in lines)])
        raise RequestError(text) from error


def plain(config: Any) -> dict[str, Any]:
    """A composed configuration as nested dicts. Raises RequestError on a missing value."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue

    try:
        content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = str(error).split(": ")[-1].splitlines()[0]
        raise RequestError(f"a value is missing: {key}=…") from error
    assert isinstance(content, dict)
    content.pop("hydra", None)
    return {str(k): v for k, v in content.items()}


def checked(overrides: Sequence[str]) -> list[str]:
    """The overrides with every chosen name known, checkpoints put in their group's place.
    Raises RequestError with the nearest name."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise RequestError(f"can't read the request: {str(error).splitlines()[0]}") from error
    result: list[str] = []
    # An experiment's own methods are known when it is composed.
    methods = [] if any(o.key_or_group == "experiment" for o in parsed) else ["vcc"]
    for override in parsed:
        key = override.key_or_group
        line = override.input_line or ""
        if override.is_delete() or "glob(" in line:
            result.append(line)
            continue
        choices = _choices(override)
        if key == "model":
            result += _model(choices)
            continue
        if key in GROUPS:
            for choice in choices:
                plugins.conf(key, choice)
                if key == "launcher":
                    launchers.check_installed(choice)
                if key == "experiment":
                    _check_experiment(choice)
        if key == "method":
            methods = choices
        result.append(line)
    _check_keys([o.key_or_group for o in parsed], methods)
    _check_scale(parsed)
    return result


def _check_scale(parsed: Sequence[Any]) -> None:
    """A scale is of an experiment, and not every one has it. Raises RequestError."""
    chosen = {o.key_or_group: str(o.value()) for o in parsed if not o.is_sweep_override()}
    scale, experiment = chosen.get("scale"), chosen.get("experiment")
    if scale in (None, "None", "null"):
        return
    having = plugins.available(f"scale/{scale}")
    if experiment not in having:
        given = f"experiment={experiment} has no" if experiment else "no experiment is given with"
        raise RequestError(f"{given} scale={scale}; accepted with it: {', '.join(having)}")


def _check_experiment(name: str) -> None:
    """What an experiment chooses must be there: Hydra's own message wouldn't name the file."""
    for entry in plugins.conf("experiment", name).get("defaults", []):
        for place, choice in entry.items() if isinstance(entry, dict) else ():
            group = place.removeprefix("override ").lstrip("/")
            if group in GROUPS:
                try:
                    plugins.conf(group, str(choice))
                except RequestError as error:
                    raise RequestError(f"experiment={name}: {error}") from error


def _choices(override: Any) -> list[str]:
    """The values of one override: several when it is a sweep."""
    if override.is_choice_sweep():
        return [str(v) for v in override.value().list]
    return [str(override.value())]


def _model(choices: Sequence[str]) -> list[str]:
    """A model is a name of the group, or any checkpoint by folder or hub id."""
    known = plugins.available("model")
    if all(choice in known for choice in choices):
        return [f"model={','.join(choices)}"]
    if len(choices) > 1:
        raise RequestError(
            "a sweep over models takes names; give each checkpoint a YAML in conf/model"
        )
    choice = choices[0]
    if not Path(choice).expanduser().is_dir() and "/" not in choice:
        raise unknown("model", choice, [*known, "a checkpoint folder", "ORG/NAME of the hub"])
    quoted = choice.replace("'", "\\'")
    return ["model=checkpoint", f"model.path='{quoted}'", f"model.name='{Path(choice).name}'"]


def _check_keys(keys: Sequence[str], methods: Sequence[str]) -> None:
    fields = list(schema.Config.__dataclass_fields__)
    for key in keys:
        head, _, rest = key.lstrip("+").partition(".")
        if head == "method" and rest:
            # Of several methods it reaches those that have it: bench.grid.
            accepted = [plugins.conf("method", method) for method in methods]
            if accepted and not any(rest.split(".")[0] in each for each in accepted):
                names = {n for each in accepted for n in each} - {"name", "target"}
                raise unknown(f"parameter of {', '.join(methods)}", rest, names)
        elif head not in fields and head not in GROUPS and head != "hydra":
            near = difflib.get_close_matches(head, [*fields, *GROUPS], n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            accepted_names = ", ".join(dict.fromkeys([*GROUPS, *fields]))
            raise RequestError(f"unknown name '{head}'.{hint} Accepted: {accepted_names}")
