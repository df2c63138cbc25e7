"""`python -m bench.children.nursery DESCRIPTOR`: the process that children are forked from.

It imports what they all need and then waits at a socket (bench.spawn): a request with the child's
two descriptors comes in, the child's number goes out, and its exit code when it has ended. It never
computes, so no thread of torch's is there to be lost in a fork.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import bench.children.latency
import bench.children.memory
import bench.models.hf  # noqa: F401
from bench import system
from bench.children import child

MESSAGE_BYTES = 1 << 20


def main() -> None:
    system.die_with_parent()
    link = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages that it shares with this process
    while True:
        message, descriptors, *_ = socket.recv_fds(link, MESSAGE_BYTES, 2)
        if not message:
            return
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            link.close()
            begin(json.loads(message), descriptors[0], descriptors[1], parent)
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        link.send(str(os.waitstatus_to_exitcode(status)).encode())


def begin(asked: dict[str, Any], output: int, progress: int, parent: int) -> NoReturn:
    """Be the child, and end as a Python of its own would."""
    code = 1
    try:
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.environ.clear()
        os.environ.update(asked["environment"])
        child.run(asked["module"], Path(asked["work"]), progress, parent)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
