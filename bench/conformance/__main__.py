"""`bench check method=NAME [method.PARAMETER=VALUE …]`: does it keep the contract, and where?"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Items

import yaml

from bench import plugins
from bench.conformance import check, families
from bench.conformance.subject import LONG, MIXED
from bench.errors import RequestError
from methods.base import Method


def main(arguments: Items[str]) -> int:
    """Prints a line for each family, and one for each thing that doesn't hold there; exit code 1
    when there is any. Raises RequestError for another request."""
    method = requested(arguments)
    failed = 0
    for name, family in families().items():
        tiny = family.tiny(method)
        reason = method.unsupported(tiny.shape(LONG, len(MIXED)))
        failures = check(method, tiny)
        failed += len(failures)
        print(f"{name:<12} {f'unsupported: {reason}' if reason else 'FAILS' if failures else 'ok'}")
        for line in failures:
            print(f"  {line}")
    return 1 if failed else 0


def requested(arguments: Items[str]) -> Method:
    """The method that `method=NAME method.PARAMETER=VALUE` asks for."""
    given = dict(word.split("=", 1) for word in arguments if "=" in word)
    name = given.pop("method", None)
    if name is None or len(given) + 1 != len(arguments):
        raise RequestError("check needs method=NAME; method.PARAMETER=VALUE sets its parameters")
    conf = plugins.conf("method", name)
    for key, value in given.items():
        conf[key.removeprefix("method.")] = yaml.safe_load(value)
    try:
        method: Method = plugins.build(conf)
    except (TypeError, ValueError) as error:
        raise RequestError(str(error)) from error
    return method


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RequestError as wrong:
        print(f"bench: {wrong}", file=sys.stderr)
        sys.exit(2)
