"""Where to compute it: the facts of a GPU that decide what is valid and what is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import BadInput, shown

REGISTERS_PER_SM = 65536
"""Of compute capability 9.0, which kernels are made for."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device class: every GPU that shares these numbers shares tuned schedules.

    Sizes are in bytes, `dram_bytes_per_s` is the measured rate of reading, `tensor_flops_per_clock_per_sm`
    counts dense 16-bit multiply-adds twice; of 8-bit operands there are twice as many.
    """

    name: str
    aliases: tuple[str, ...]
    cc: str
    sm_count: int
    smem_per_cta: int
    registers_per_sm: int
    l2_bytes: int
    dram_bytes_per_s: float
    max_clock_mhz: int
    tensor_flops_per_clock_per_sm: int = 4096

    def tensor_rate(self, element_bytes: int) -> float:
        """Operations of one SM in a clock on operands of that size, multiplications and additions."""
        return self.tensor_flops_per_clock_per_sm * 2 / element_bytes

    def to_json(self) -> dict[str, Any]:
        """The `device` object of a table."""
        return {"name": self.name, "aliases": list(self.aliases), "cc": self.cc, "sm_count": self.sm_count}


H200 = Device(
    name="H200",
    aliases=("NVIDIA H200",),
    cc="9.0",
    sm_count=132,
    smem_per_cta=232448,
    registers_per_sm=REGISTERS_PER_SM,
    l2_bytes=60 * 2**20,
    dram_bytes_per_s=4.4e12,
    max_clock_mhz=1980,
)
"""NVIDIA H200 SXM: device query, and reads measured at 4.4 TB/s."""

H100 = Device(
    name="H100",
    aliases=("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
    cc="9.0",
    sm_count=132,
    smem_per_cta=232448,
    registers_per_sm=REGISTERS_PER_SM,
    l2_bytes=50 * 2**20,
    dram_bytes_per_s=3.0e12,
    max_clock_mhz=1980,
)
"""NVIDIA H100 SXM: datasheet; no time in this project was measured on one."""

DEVICES = (H200, H100)

POWER_LIMITED_MHZ = 1700.0
"""Below this effective clock (of 1980) power holds a kernel back, and cycles scatter ten times less than times:
measured on H200, where all large bf16 problems run at 1290 to 1600 MHz and the others above 1800."""


def find_device(name: str) -> Device:
    """The device class called `name`, by its name or one of its aliases, in any case.

    Raises:
        BadInput: no device class has that name.
    """
    wanted = name.strip().lower()
    for device in DEVICES:
        if wanted in (device.name.lower(), *(alias.lower() for alias in device.aliases)):
            return device
    known = ", ".join(word for device in DEVICES for word in (device.name, *device.aliases))
    raise BadInput(f"device is {shown(name)}: valid are {known}")
