"""NVML through ctypes: the limits of a GPU, and what it is doing. Creates no CUDA context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_CLOCK_SM = 1
_TEMPERATURE_GPU = 0
_FIELD_POWER_INSTANT = 186
_TEXT_BYTES = 96
_MOST_PROCESSES = 64


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True, slots=True)
class Reading:
    """What the GPU says of itself at one moment.

    `sm_mhz` is NVML's clock, 9 to 10 % above the effective one under tensor load. `power_w` is the instantaneous board
    power. `throttle` holds NVML's bits of clock event reasons: 4 is the software power cap.
    """

    power_w: float
    sm_mhz: int
    temperature_c: int
    throttle: int


class NvmlError(RuntimeError):
    """An NVML call failed."""


class Nvml:
    """One GPU, by its UUID."""

    def __init__(self, uuid: str) -> None:
        self._library = _load()
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._device))

    def read(self) -> Reading:
        """The present reading: the GPU's work does not notice."""
        mhz, celsius, throttle = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        self._call("nvmlDeviceGetClockInfo", self._device, _CLOCK_SM, ctypes.byref(mhz))
        self._call("nvmlDeviceGetTemperature", self._device, _TEMPERATURE_GPU, ctypes.byref(celsius))
        self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._device, ctypes.byref(throttle))
        return Reading(self._power_w(), mhz.value, celsius.value, throttle.value)

    def _power_w(self) -> float:
        """The instantaneous power: the other that NVML has is a mean over a second."""
        value = _FieldValue(field_id=_FIELD_POWER_INSTANT)
        self._call("nvmlDeviceGetFieldValues", self._device, 1, ctypes.byref(value))
        if value.status:
            raise NvmlError(f"NVML has no instantaneous power here: error {value.status}")
        return float(value.value & 0xFFFFFFFF) / 1000

    def energy_mj(self) -> int:
        """Energy of the board since the driver was loaded, in millijoules. The counter moves in steps."""
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._device, ctypes.byref(millijoules))
        return millijoules.value

    def power_limit_w(self) -> float:
        """The enforced limit of board power in watts."""
        milliwatts = ctypes.c_uint()
        self._call("nvmlDeviceGetEnforcedPowerLimit", self._device, ctypes.byref(milliwatts))
        return milliwatts.value / 1000

    def compute_processes(self) -> int:
        """How many processes have a CUDA context on the GPU."""
        count = ctypes.c_uint(_MOST_PROCESSES)
        self._call(
            "nvmlDeviceGetComputeRunningProcesses_v3",
            self._device,
            ctypes.byref(count),
            (_ProcessInfo * _MOST_PROCESSES)(),
        )
        return count.value

    def free_bytes(self) -> int:
        """Device memory that nobody has taken."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._device, ctypes.byref(memory))
        return int(memory.free)

    def max_sm_mhz(self) -> int:
        """The highest SM clock of this GPU."""
        mhz = ctypes.c_uint()
        self._call("nvmlDeviceGetMaxClockInfo", self._device, _CLOCK_SM, ctypes.byref(mhz))
        return mhz.value

    def driver(self) -> str:
        """The driver's version."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlSystemGetDriverVersion", text, _TEXT_BYTES)
        return text.value.decode()

    def _call(self, name: str, *arguments: Any) -> None:
        _call(self._library, name, *arguments)


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise NvmlError(f"no NVIDIA driver ({error})") from error
    _call(library, "nvmlInit_v2")
    return library


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        describe = library.nvmlErrorString
        describe.restype = ctypes.c_char_p
        raise NvmlError(f"{name}: {(describe(status) or b'').decode()}")
