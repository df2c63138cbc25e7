"""The native kernels for other CPUs than this machine's: as a program under an emulator."""

import ctypes
import functools
import gc
import struct
import subprocess
from pathlib import Path

from torch import Tensor

from methods.kernels import build

DRIVER = Path(__file__).with_name("emulated.cpp")
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=fast", "-static", f"-I{build.SOURCE.parent}")


class Emulated:
    """Replaces the loaded library: each call of a kernel runs in a separate process, with a copy of
    the memory of all tensors that its arguments point to."""

    def __init__(self, compiler: str, flags: tuple[str, ...], emulator: str, folder: Path) -> None:
        folder.mkdir()
        self.program, self.memory, self.emulator = folder / "kernels", folder / "memory", emulator
        command = [compiler, *FLAGS, *flags, str(DRIVER), "-o", str(self.program)]
        subprocess.run(command, check=True, timeout=120)

    def __getattr__(self, kernel):
        return functools.partial(self._call, kernel)

    def _call(self, kernel, reference):
        arguments = bytes(reference._obj)
        words = struct.unpack(f"{len(arguments) // 8}q", arguments)
        gc.unfreeze()  # tests/conftest.py freezes objects that exist before the first test
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
        subprocess.run([self.emulator, self.program, self.memory], check=True, timeout=60)
        with self.memory.open("rb") as file:
            for start, size in regions:
                ctypes.memmove(start, file.read(size), size)
