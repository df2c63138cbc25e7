"""`bench check method=NAME [method.PARAMETER=VALUE …]`: checks a method in every family."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml

from bench.conformance import check, families
from bench.conformance.subject import LONG, MIXED
from bench.errors import RequestError, errors_of
from bench.request import parameters, plugins
from methods.base import Method, refusal


class FamilyCheck(NamedTuple):
    """Failures of a method in one family; `unsupported` is the method's own reason."""

    family: str
    unsupported: str | None
    failures: list[str]


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each family, followed by its failures; exit code 1 where there are any.
    Raises RequestError for other arguments."""
    failed = False
    for name, reason, failures in checked(arguments):
        print(f"{name:<12} {f'unsupported: {reason}' if reason else 'FAILS' if failures else 'ok'}")
        for line in failures:
            print(f"  {line}")
        failed |= bool(failures)
    return int(failed)


def checked(arguments: Sequence[str]) -> Iterator[FamilyCheck]:
    """The method of such arguments in each family. Raises RequestError."""
    method = requested(arguments)
    for name, family in families().items():
        tiny = family.tiny(method)
        with errors_of("unsupported", type(method).__module__):
            reason = refusal(method, tiny.workload(LONG, len(MIXED)))
        yield FamilyCheck(name, reason, list(check(method, tiny)))


def requested(arguments: Sequence[str]) -> Method:
    """The method of the arguments `method=NAME method.PARAMETER=VALUE`."""
    overrides = dict(word.split("=", 1) for word in arguments if "=" in word)
    name = overrides.pop("method", None)
    if name is None or len(overrides) + 1 != len(arguments):
        raise RequestError("check needs method=NAME; method.PARAMETER=VALUE sets its parameters")
    conf = plugins.conf("method", name)
    for key, value in overrides.items():
        conf[key.removeprefix("method.")] = yaml.safe_load(value)
    method: Method = plugins.build(parameters.resolved(parameters.checked("method", conf)), Method)
    return method


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RequestError as wrong:
        print(f"bench: {wrong}", file=sys.stderr)
        sys.exit(2)
