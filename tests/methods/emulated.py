"""The native kernels for other CPUs than this machine's: as a program under an emulator."""

import ctypes
import functools
import gc
import os
import select
import struct
import subprocess
from pathlib import Path

from torch import Tensor

from methods.kernels import build

DRIVER = Path(__file__).with_name("emulated.cpp")
FLAGS = ("-std=c++17", "-O0", "-ffp-contract=fast", "-static", f"-I{build.SOURCE.parent}")


class Emulated:
    """Replaces the loaded library: kernels run in one process, with a copy of the memory of all
    tensors that their arguments point to, except those that tests/conftest.py freezes."""

    def __init__(self, compiler: str, flags: tuple[str, ...], emulator: str, folder: Path) -> None:
        folder.mkdir()
        program, self.memory = folder / "kernels", folder / "memory"
        command = [compiler, *FLAGS, *flags, str(DRIVER), "-o", str(program)]
        subprocess.run(command, check=True, timeout=120)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([emulator, program, self.memory], stdin=pipe, stdout=pipe)

    def __getattr__(self, kernel):
        return functools.partial(self._call, kernel)

    def _call(self, kernel, reference):
        arguments = bytes(reference._obj)
        words = struct.unpack(f"{len(arguments) // 8}q", arguments)
        tensors = (x for x in gc.get_objects() if type(x) is Tensor)
        storages = (x.untyped_storage() for x in tensors if x.device.type == "cpu")
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        regions = [
            (start, size)
            for start, size in sizes.items()
            if any(start <= word < start + size for word in words)
        ]
        with self.memory.open("wb") as file:
            file.write(struct.pack("16sq", kernel.encode(), len(arguments)))
            file.write(arguments + struct.pack("q", len(regions)))
            for start, size in regions:
                file.write(struct.pack("2q", start, size) + ctypes.string_at(start, size))
        os.write(self.process.stdin.fileno(), b".")
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        assert ready and os.read(self.process.stdout.fileno(), 1) == b".", kernel
        with self.memory.open("rb") as file:
            for start, size in regions:
                ctypes.memmove(start, file.read(size), size)
