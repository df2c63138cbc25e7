"""What a child says that its samples took, against a clock that the child can't reach.

After each sample of a timing loop a child sends how long it took by the clock that times it. The
kernel stamps each message when it is sent, so neither process needs to run at a given moment: the
supervisor, which would disturb what is timed, reads them later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import time
from collections import defaultdict
from typing import NamedTuple

from bench.host import linux

SO_TIMESTAMPNS = 35  # asm-generic/socket.h
LOOP_STARTS = 0
"""In place of the number of an arm: the next sample begins with this message."""
MESSAGE_BYTES = 64
PARTS_NS = 1_000_000
"""By which all samples of an arm may be longer than the time between their messages."""
SAMPLE_SLACK_NS, SAMPLE_SLACK = 100_000, 0.02
"""What may pass between two messages and in no sample, in the median."""
LOOP_SLACK_NS, LOOP_SLACK = 250_000_000, 0.1
"""The same in a whole loop, where a busy machine adds its delays."""
FEWEST = 3


class Disagreement(NamedTuple):
    """`excused`: waits for a processor may account for it."""

    text: str
    excused: bool


class ClaimedTime:
    """Reads the messages of one child; `child_end` is the descriptor that it sends them to, and
    `child` its process id."""

    def __init__(self) -> None:
        self.own, self.child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(OSError):
            self.own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for end in (self.own, self.child_end):
            end.setblocking(False)
        self.messages: list[tuple[bytes, int]] = []
        self.offset_ns = _realtime_offset_ns()
        self.child: int | None = None
        self.waited_ns = self.first_wait_ns = 0

    def __enter__(self) -> ClaimedTime:
        return self

    def __exit__(self, *_: object) -> None:
        self.own.close()
        self.child_end.close()

    def receive(self) -> None:
        """Read what was sent so far, and how long the child has waited for a processor since the
        first message. A kernel that stamps nothing (gVisor) leaves no message."""
        self._read()
        if self.messages and self.child and (waited := linux.waited_ns(str(self.child))):
            self.first_wait_ns = self.first_wait_ns or waited
            self.waited_ns = waited - self.first_wait_ns

    def _read(self) -> None:
        while True:
            try:
                content, control, *_ = self.own.recvmsg(MESSAGE_BYTES, MESSAGE_BYTES)
            except OSError:  # nothing more now, or the child's end is closed
                return
            if not content:
                return
            for _, kind, stamp in control:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = struct.unpack("ll", stamp)
                    self.messages.append((content, seconds * 10**9 + nanoseconds))

    def disagreement(self) -> Disagreement | None:
        """How the claims differ from the time between the messages; None when they don't. A clock
        that was set meanwhile tells nothing. The child's waits for a processor may lie between
        messages and in no sample, so that a difference of at most these is excused."""
        if abs(_realtime_offset_ns() - self.offset_ns) > PARTS_NS:
            return None
        arms = _spans(self.messages)
        for spans in arms.values():
            passed_ns, claimed_ns = (sum(each) for each in zip(*spans, strict=True))
            if claimed_ns > passed_ns + PARTS_NS:
                return _told(f"samples of {claimed_ns / 1e6:,.1f} ms", passed_ns, excused=False)
            hidden_ns = statistics.median(passed - claimed for passed, claimed in spans)
            sample_ns = statistics.median(claimed for _, claimed in spans)
            most_ns = SAMPLE_SLACK_NS + SAMPLE_SLACK * sample_ns
            if len(spans) >= FEWEST and hidden_ns > most_ns:
                excused = self._waited(passed_ns - claimed_ns - len(spans) * most_ns)
                claim = f"a sample of {sample_ns / 1e6:,.1f} ms"
                return _told(claim, sample_ns + hidden_ns, excused)
        every = [span for spans in arms.values() for span in spans]
        passed_ns, claimed_ns = (sum(span[i] for span in every) for i in (0, 1))
        excess_ns = passed_ns - claimed_ns - LOOP_SLACK_NS - LOOP_SLACK * passed_ns
        if excess_ns > 0:
            claim = f"samples of {claimed_ns / 1e6:,.1f} ms"
            return _told(claim, passed_ns, self._waited(excess_ns))
        return None

    def _waited(self, hidden_ns: float) -> bool:
        """Whether the child may have waited so long; it may where the kernel counts no waits."""
        return hidden_ns <= self.waited_ns or not linux.counts_waits()


def sent(descriptor: int, arm: int, claimed_ns: int) -> bool:
    """Send what a sample took that began with the last message; False when no more fit."""
    try:
        os.write(descriptor, b"%d %d" % (arm, claimed_ns))
    except (BlockingIOError, BrokenPipeError):
        return False
    return True


def _spans(messages: list[tuple[bytes, int]]) -> dict[int, list[tuple[int, int]]]:
    """For each arm the nanoseconds between messages, with those that the later one claims."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    before_ns: int | None = None
    for content, sent_ns in messages:
        try:
            arm, claimed_ns = map(int, content.split())
        except ValueError:
            continue
        if arm != LOOP_STARTS and before_ns is not None:
            spans[arm].append((sent_ns - before_ns, claimed_ns))
        before_ns = sent_ns
    return spans


def _told(claim: str, passed_ns: float, excused: bool) -> Disagreement:
    what = "busy machine" if excused else "replaces the clock"
    text = f"{what}: {claim} took {passed_ns / 1e6:,.1f} ms by the supervisor's clock"
    return Disagreement(text, excused)


def _realtime_offset_ns() -> int:
    """Between the clock of the stamps and the monotonic one, which differ when one is set."""
    return time.time_ns() - time.monotonic_ns()
