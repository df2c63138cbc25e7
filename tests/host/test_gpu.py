"""The driver's report on a GPU, from a stand-in for NVML."""

import sys
from types import SimpleNamespace

import pytest

from bench.errors import RequestError
from bench.host import gpu, host
from bench.request.parameters import check_device


class NVMLError(Exception):
    pass


class Nvml:
    """Replaces pynvml, for a machine with two GPUs; handles are their numbers."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    names = ("NVIDIA A100-SXM4-80GB", "NVIDIA GH200 480GB")

    def __init__(self):
        self.mask, self.violated, self.opened = 0x1, 10, 0

    def nvmlInit(self):
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self):
        return "570.1"

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-b": 1}[uuid]

    def nvmlDeviceGetName(self, card):
        return self.names[card]

    def nvmlDeviceGetClockInfo(self, card, kind):
        return 1000 * kind + card

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card):
        return self.mask

    def nvmlDeviceGetViolationStatus(self, card, policy):
        if policy:
            raise NVMLError("Not Supported")
        return SimpleNamespace(violationTime=self.violated)

    def nvmlDeviceGetMemoryInfo(self, card):
        return SimpleNamespace(used=3 << 30, total=80 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, card):
        return [SimpleNamespace(pid=7, usedGpuMemory=1 << 30)]


@pytest.fixture
def nvml(monkeypatch):
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield nvml
    assert not nvml.opened


def test_clocks_reasons_and_memory_are_read_by_nvml(nvml, monkeypatch):
    before = gpu.state()
    nvml.mask, nvml.violated = 0x1 | 0x4 | 0x40, 25
    columns = gpu.clock_columns(before, gpu.state())
    assert columns == {
        "gpu_clock_mhz": 1000, "gpu_memory_clock_mhz": 2000,
        "gpu_throttle_reasons": "power cap, temperature (hardware)", "gpu_throttled_ns": 15,
    }  # fmt: skip
    assert (gpu.used_bytes(), gpu.memory_bytes()) == (3 << 30, 80 << 30)
    assert gpu.process_bytes(7) == 1 << 30 and gpu.process_bytes(8) is None
    for visible, card in (("1,0", 1), ("GPU-b", 1), ("0", 0), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpu.state().sm_mhz == 1000 + card


def test_a_driver_that_reports_nothing_gives_nulls(nvml, monkeypatch):
    def unsupported(*_):
        raise NVMLError("Not Supported")

    for function in ("ClockInfo", "CurrentClocksThrottleReasons", "ViolationStatus", "MemoryInfo"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{function}", unsupported)
    assert gpu.clock_columns(gpu.state(), gpu.state()) == dict.fromkeys(
        ("gpu_clock_mhz", "gpu_memory_clock_mhz", "gpu_throttle_reasons", "gpu_throttled_ns")
    )
    assert gpu.used_bytes() is gpu.memory_bytes() is None and gpu.driver() == "570.1"


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    def no_library():
        raise NVMLError("NVML Shared Library Not Found")

    nvml = SimpleNamespace(NVMLError=NVMLError, nvmlInit=no_library)
    for module in (nvml, None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert gpu.state() == gpu.GpuState() and gpu.name() is None and gpu.used_bytes() is None


def test_only_throttling_beyond_the_power_cap_is_noise():
    for reasons in (None, "none", "power cap"):
        assert gpu.noise({"gpu_throttle_reasons": reasons}) is None
    noise = gpu.noise({"gpu_throttle_reasons": "power cap, power brake"})
    assert noise == "the GPU was throttled: power brake"


def test_throttling_of_several_processes_is_added_up():
    def of(*reasons):
        parts = [{"gpu_throttle_reasons": one, "gpu_throttled_ns": 2} for one in reasons]
        return tuple(gpu.throttled(parts).values())

    assert of("none", "power brake", "power cap") == ("power cap, power brake", 6)
    assert of("none", None) == ("none", 4) and gpu.throttled([{}, {}]) == {}


def test_a_row_has_its_name_and_driver(nvml):
    host._machine.cache_clear()
    facts = host.fingerprint(threads=1, device="cuda")
    host._machine.cache_clear()
    assert (facts["gpu_name"], facts["gpu_driver"]) == (nvml.names[0], "570.1")


@pytest.mark.parametrize(
    ("visible", "required", "line"),
    [
        ("0", "A100", None),
        ("0", "H100", "requires an H100; here: NVIDIA A100-SXM4-80GB (device=cuda takes any GPU)"),
        ("1", "H200", "requires an H200; here: NVIDIA GH200 480GB"),  # an H100's relative
        ("1", None, None),
    ],
)
def test_a_device_is_the_one_that_is_asked_for(nvml, monkeypatch, visible, required, line):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device = {"name": "x", "kind": "cuda", "require": required}
    if line is None:
        return check_device(device)
    with pytest.raises(RequestError) as wrong:
        check_device(device)
    assert line in str(wrong.value) and "\n" not in str(wrong.value)
