"""`python -m bench.execution.fork_server PARENT DESCRIPTOR MODULE …`: the process from which
children are forked (bench.execution.spawn.ForkServer).

It imports the modules and waits at a socket. Each request comes with the child's descriptors and a
socket, on which it sends the child's process id, and once the child has ended, the exit code and
the resources used by this process and its children. It computes with one thread, so torch has no
thread here that a fork would lose.

Two of its forks serve too: one has loaded a cell's model, and a fork of that one its encoded
inputs. They never import a method.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
import traceback
from typing import Any, NoReturn

from bench.execution import worker
from bench.execution.worker import Channels
from bench.host import linux

MESSAGE_BYTES = 1 << 20


def main() -> None:
    supervisor, socket_number, *modules = sys.argv[1:]
    linux.die_with_parent(int(supervisor))  # before the imports, which take seconds
    gc.disable()  # imports allocate no garbage: saves 0.5 s
    with linux.kept_affinity():
        for module in modules:
            importlib.import_module(module)
    serve(int(socket_number))


def serve(number: int) -> None:
    """Fork a child for each request at the socket with this descriptor, until its other end is
    closed."""
    link = socket.socket(fileno=number)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages that it shares with this process
    gc.enable()
    children: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(link, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in children:
                poll.unregister(ready)
                os.close(ready)
                pid, reply = children.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with reply, contextlib.suppress(OSError):
                    reply.send(json.dumps([code, *linux.usage()]).encode())
                continue
            message, received, *_ = socket.recv_fds(link, MESSAGE_BYTES, 1 + len(Channels._fields))
            if not message:
                return
            reply, channels = socket.socket(fileno=received[0]), Channels(*received[1:])
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                for end in (link, reply, *(other for _, other in children.values())):
                    end.close()
                run_child(json.loads(message), channels, parent)
            for descriptor in channels:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                reply.send(str(pid).encode())
            ended = os.pidfd_open(pid)
            children[ended] = (pid, reply)
            poll.register(ended, select.POLLIN)


def run_child(request: dict[str, Any], channels: Channels, parent: int) -> NoReturn:
    """Run the request in this fork, and exit as a fresh interpreter would."""
    code = 1
    try:
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(channels.output, descriptor)
        os.environ.clear()
        os.environ.update(request["environment"])
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda._is_in_bad_fork():
            # An import has started CUDA: a fresh interpreter takes the place of this one.
            for descriptor in channels:
                os.set_inheritable(descriptor, True)
            program = ["-m", "bench.execution.worker", request["module"], str(parent)]
            os.execv(sys.executable, [sys.executable, *program, *map(str, channels)])
        worker.run(request["module"], channels, parent)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """Load the request's cell, report that it is loaded, and fork children until the supervisor
    ends this process. With `encodes`, encode inputs too: those of all texts, or of timed ones.

    malloc returns freed memory from the start, as measurements of peak memory require."""
    import torch

    from bench.execution import arms
    from bench.request.cell import Cell

    cell = Cell.from_json(request["cell"])
    worker.return_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(cell.seed)
    family = arms.load(cell, arms.vanilla())
    inputs = None
    if request["encodes"]:
        count = None if request["encodes"] == "all" else arms.timed_texts(cell)
        inputs = arms.inputs(cell, cell.build_task(), family.tokenizer, count)
    arms.parent = arms.Loaded(cell, family, inputs)
    report.send("loaded")
    serve(report.link)
    return {}


if __name__ == "__main__":
    main()
