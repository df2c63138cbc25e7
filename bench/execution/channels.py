"""What joins a child to its supervisor."""

from __future__ import annotations

from typing import NamedTuple


class Channels(NamedTuple):
    """Descriptors of a child: pipes for its output and its messages, a socket on which the
    supervisor sends requests while the child runs, and the request and the result in files in
    memory, of which nothing stays however either process ends."""

    output: int
    messages: int
    link: int
    request: int
    result: int
