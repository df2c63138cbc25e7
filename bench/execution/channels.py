"""What joins a child to its supervisor."""

from __future__ import annotations

from typing import NamedTuple


class Channels(NamedTuple):
    """Descriptors of a child: pipes for its output and its progress, a socket for the time that its
    samples took (bench.execution.claimed_time), and its request and its result in files in
    memory, of which nothing stays however either process ends."""

    output: int
    progress: int
    claims: int
    request: int
    result: int
