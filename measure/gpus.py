"""The GPUs of this machine, asked of the driver alone: no CUDA package is needed, and no context is made."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, replace
from uuid import UUID

from ..space import DEVICES, H200, BadInput, Device

_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_MULTIPROCESSOR_COUNT = 16
"""CUdevice_attribute (cuda.h)."""

HOPPER = "9.0"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the CUDA driver numbers them. `memory` is in bytes; `uuid` is as CUDA_VISIBLE_DEVICES takes it."""

    index: int
    uuid: str
    name: str
    cc: str
    sm_count: int
    memory: int

    @property
    def device(self) -> Device:
        """Its device class. A GPU of an unknown name is a class of its own, with the numbers of an H200 where the
        driver gives none: tables of other classes then answer for it with a warning."""
        for device in DEVICES:
            if self.name in (device.name, *device.aliases) and self.sm_count == device.sm_count:
                return device
        return replace(H200, name=self.name, aliases=(), cc=self.cc, sm_count=self.sm_count)


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The visible GPUs; none when there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_gpu(cuda, index) for index in range(count.value))


def hopper(index: int = 0) -> Gpu:
    """GPU number `index`, which has to be a Hopper.

    Raises:
        BadInput: there is no such GPU, or it is another one.
    """
    found = gpus()
    if index not in range(len(found)):
        raise BadInput(f"GPU {index} is not there: {len(found)} visible, valid is a Hopper GPU (H100, H200)")
    if found[index].cc != HOPPER:
        raise BadInput(
            f"GPU {index} is {found[index].name!r} of compute capability {found[index].cc}: valid is {HOPPER} (Hopper)"
        )
    return found[index]


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    handle = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    memory = ctypes.c_size_t()
    uuid = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    cuda.cuDeviceGetUuid_v2(uuid, handle)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value

    return Gpu(
        index=index,
        uuid=f"GPU-{UUID(bytes=bytes(uuid))}",
        name=name.value.decode(),
        cc=f"{attribute(_COMPUTE_CAPABILITY_MAJOR)}.{attribute(_COMPUTE_CAPABILITY_MINOR)}",
        sm_count=attribute(_MULTIPROCESSOR_COUNT),
        memory=memory.value,
    )
