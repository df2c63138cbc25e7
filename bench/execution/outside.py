"""Times calls of the method and of vanilla by the supervisor's clock, each in a separate process;
vanilla's never imports the method (bench.measure.two_arms). Imports no torch.

The two take turns, so that other processes that start or end disturb both, and each is stopped
while the other answers: idle threads of OpenMP spin for milliseconds.
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from multiprocessing.connection import Connection
from time import perf_counter_ns
from typing import Any

from bench.execution.spawn import run_in_fork
from bench.execution.supervisor import Running

ECHOES = 3
MOST, LONGEST_ANSWER = 256, 1 << 28
"""Numbers in a request: calls of a sample, samples, and bytes of an answer."""
ANSWER_TOLERANCE = 0.05
"""Relative to an answer's norm; summation order changes at most about a thousandth of it."""
OWN_RANDOMNESS = 3.0
"""Accepted difference between answers, in multiples of the method's own randomness."""


def time_both(
    message: Mapping[str, Any],
    method: Running,
    vanilla: AbstractContextManager[Running],
    scored: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The reply to the `message` of the method's process: nanoseconds of a call of either arm, and
    the differences of their answers. With `scored` inputs of the quality stage, a `fault` if the
    method gives another answer here. A `reason` if the calls can't be timed."""
    method.send_signal(signal.SIGSTOP)
    try:
        with vanilla as base, _connected(base) as asked_base, _connected(method) as asked:
            try:
                return _timed(message, (method, asked), (base, asked_base), scored)
            except EOFError as error:
                detail = base.outcome().detail if error.args == (base,) else "the method's ended"
                return {"reason": f"vanilla in a process without the method: {detail}"}
            finally:
                method.send_signal(signal.SIGCONT)
                asked.send_bytes(b"stop")
    except OSError as error:
        return {"reason": f"vanilla in a process without the method: {error}"}
    finally:
        method.send_signal(signal.SIGCONT)


def _timed(
    message: Mapping[str, Any],
    method: tuple[Running, Connection],
    base: tuple[Running, Connection],
    scored: Mapping[str, Any] | None,
) -> dict[str, Any]:
    calls, samples = (max(1, min(int(message[name]), MOST)) for name in ("calls", "samples"))
    dropped = int(bool(message["dropped"]))
    _ask(base, b"echo")  # once it is loaded and warm
    echo_ns = statistics.median(_ask(base, b"echo")[0] for _ in range(ECHOES))
    drawn = [_ask(base, b"draw%d" % calls)[1] for _ in range(dropped + samples)]
    base[0].send_signal(signal.SIGSTOP)
    for child in (base, method):
        _ask_alone(child, b"read" + drawn[0])
    turns = [[_ask_alone(child, b"call" + inputs) for child in (base, method)] for inputs in drawn]
    base_answers, method_answers = zip(*turns[dropped:], strict=True)
    text = _ask_alone(method, b"text")[1] if scored else b""
    given, exact = ([answer for _, answer in arm] for arm in (method_answers, base_answers))
    result = run_in_fork(lambda: _compared(given, exact, text, scored))
    for name, arm in (("lat_ns", method_answers), ("base_ns", base_answers)):
        result[name] = [max(1, int((ns - echo_ns) / calls)) for ns, _ in arm]
    return result


def _ask_alone(child: tuple[Running, Connection], request: bytes) -> tuple[int, bytes]:
    """As `_ask`, for a process that is stopped before and afterwards."""
    child[0].send_signal(signal.SIGCONT)
    try:
        return _ask(child, request)
    finally:
        child[0].send_signal(signal.SIGSTOP)


def _ask(child: tuple[Running, Connection], request: bytes) -> tuple[int, bytes]:
    """Nanoseconds until the answer, and the answer. Raises OSError at the child's deadline, and
    EOFError if the child has ended without an answer."""
    running, connection = child
    started = perf_counter_ns()
    try:
        connection.send_bytes(request)
        if not connection.poll(running.limits.left_s):
            raise OSError("no answer before the deadline")
        answer = connection.recv_bytes(LONGEST_ANSWER)
    except (EOFError, ConnectionError) as error:
        raise EOFError(running) from error
    return perf_counter_ns() - started, answer


def _connected(running: Running) -> Connection:
    return Connection(os.dup(running.link.fileno()))


def _compared(
    given: Sequence[bytes], exact: Sequence[bytes], text: bytes, scored: Mapping[str, Any] | None
) -> dict[str, Any]:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        answers = [(load(mine), load(other)) for mine, other in zip(given, exact, strict=True)]
        timed = load(text)["answer"] if text else None
    except SafetensorError as error:
        raise ValueError(f"an answer is no tensor: {error}") from error
    rel_l2: list[float] = []
    top1: list[float] = []
    for mine, other in answers:
        for name, b in other.items():
            a = mine.get(name, np.zeros(0))
            same = a.shape == b.shape
            difference = np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0) if same else 1.0
            rel_l2.append(float(difference))
            top1.append(float((a.argmax(-1) == b.argmax(-1)).mean()) if same else 0.0)
    result: dict[str, Any] = {"rel_l2": rel_l2, "top1": top1}
    if scored and timed is not None:
        first, again = (np.array(answer) for answer in scored["answers"])
        norm = np.linalg.norm(first) or 1.0
        differs, own = (float(np.linalg.norm(x - first) / norm) for x in (timed, again))
        if not differs <= max(ANSWER_TOLERANCE, OWN_RANDOMNESS * own):
            result["fault"] = (
                f"gives another answer when it is timed than when it is scored: they differ by "
                f"{differs:.3g} of the answer's norm, two answers when it is scored by {own:.3g}"
            )
    return result


def fields(rounds: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The times from each process, as fields of a comparison; empty if there are none."""
    timed = {number: found for number, found in rounds.items() if "lat_ns" in found}
    reasons = [found["reason"] for found in rounds.values() if "reason" in found]
    found: dict[str, Any] = {"outside_reason": reasons[0]} if reasons else {}
    if not timed:
        return found
    return {
        **found,
        "outside_samples_ns": [ns for one in timed.values() for ns in one["lat_ns"]],
        "base_outside_samples_ns": [ns for one in timed.values() for ns in one["base_ns"]],
        "outside_process": [n for n, one in timed.items() for _ in one["lat_ns"]],
        **answers("outside", timed.values()),
    }


def answers(name: str, found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Differences of answers from vanilla's, as fields of a comparison."""
    found = list(found)
    rel_l2, top1 = (
        list(chain.from_iterable(each[of] for each in found)) for of in ("rel_l2", "top1")
    )
    return {
        f"{name}_rel_l2": statistics.median(rel_l2) if rel_l2 else None,
        f"{name}_top1_agree": statistics.fmean(top1) if top1 else None,
    }
