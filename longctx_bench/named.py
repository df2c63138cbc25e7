"""Methods by their names in the configuration, plugins included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.errors import unknown
from bench.request import parameters as accepted
from bench.request import plugins
from methods.base import Method


def built(name: str, parameters: Mapping[str, Any]) -> Method:
    """The method with its default parameters but for these. Raises RequestError."""
    written = plugins.undescribed(plugins.conf("method", name))
    for parameter in parameters:
        names = written.keys() - {*plugins.NOT_PARAMETERS}
        if parameter not in names:
            raise unknown(f"parameter of {name}", parameter, names)
    conf = accepted.checked("method", accepted.resolved({**written, **parameters}))
    method: Method = plugins.build(conf, Method)
    return method
