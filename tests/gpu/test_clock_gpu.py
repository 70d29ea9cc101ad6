"""What `measure.clock` asks of the hardware, on a Hopper GPU."""

from __future__ import annotations

import ctypes
import random

import pytest
from tileseek.codegen.nvrtc import compile_source
from tileseek.measure.policy import DEALINGS

pytestmark = pytest.mark.gpu

WHERE = """\
extern "C" __global__ void where(int* sms) {
  int sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (threadIdx.x == 0) sms[blockIdx.x] = sm;
}"""
"""Each block notes its SM."""

ALONE = 200 * 1024
"""Bytes of shared memory that leave no room for a second block on an SM."""


def test_dealing_begins_where_it_is_told_to() -> None:
    """Whatever ran before. Of the first eight blocks nothing is said: they go to half a GPC that is not in turn."""
    torch = pytest.importorskip("torch")
    from cuda.bindings import driver as cuda
    from tileseek.measure.clock import Clock
    from tileseek.measure.driver import Module, checked

    torch.cuda.init()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    stream = torch.cuda.Stream()
    module = Module(compile_source(WHERE).cubin or b"")
    where = module.function("where")
    most = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked("cuFuncSetAttribute", cuda.cuFuncSetAttribute(where, most, ALONE))
    rng = random.Random(3)
    with torch.cuda.stream(stream):
        clock = Clock(stream.cuda_stream, sms)
        clock.reset(1)
        out = torch.zeros(4 * sms, dtype=torch.int32, device="cuda")

        def placed(blocks: int) -> list[int]:
            parameters = ((out.data_ptr(),), (ctypes.c_void_p,))
            handle = cuda.CUstream(stream.cuda_stream)
            checked("cuLaunchKernel", cuda.cuLaunchKernel(where, blocks, 1, 1, 32, 1, 1, ALONE, handle, parameters, 0))
            stream.synchronize()
            return [int(sm) for sm in out[:blocks].tolist()]

        begins: dict[int, set[tuple[int, ...]]] = {dealing: set() for dealing in range(DEALINGS)}
        for _ in range(6):
            for dealing in rng.sample(range(DEALINGS), DEALINGS):
                placed(rng.randint(1, 4 * sms))
                clock.deal_from(dealing)
                clock.mark(0, end=False)  # as in a slot
                found = placed(sms)
                assert sorted(found) == list(range(sms))
                begins[dealing].add(tuple(found[8:16]))
    assert {len(found) for found in begins.values()} == {1}
    assert len(set.union(*begins.values())) == DEALINGS
