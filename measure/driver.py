"""Loading and launching generated kernels, and CUDA graphs, through the driver API. No torch.

The caller has made a CUDA context current (torch does). Pointers and streams are integers.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

from cuda.bindings import driver as cuda

from ..codegen.plan import LaunchPlan, TensorMapSpec

_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGNMENT = 128, 64

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device with clusters takes; Hopper takes 16 when asked to."""

_DATA_TYPES = {
    "bf16": cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "fp16": cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "fp8": cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "fp8_e5m2": cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "fp32": cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}

_SWIZZLES = {
    0: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
    32: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
    64: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
    128: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
}

_L2_PROMOTIONS = {
    0: cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    64: cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    128: cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    256: cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}


class DriverError(RuntimeError):
    """A driver call failed; `code` is the CUresult."""

    def __init__(self, call: str, code: Any) -> None:
        super().__init__(f"{call}: {getattr(code, 'name', code)}")
        self.code = code


def checked(call: str, answer: tuple[Any, ...]) -> Any:
    """What a driver call returned beside its status: nothing, one value, or a tuple.

    Raises:
        DriverError: the status is not success.
    """
    status, *values = answer
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise DriverError(call, status)
    return values[0] if len(values) == 1 else tuple(values)


class TensorMap:
    """A CUtensorMap: 128 bytes at a multiple of 64, which the bindings' own object does not promise.

    It describes the matrix at `pointer` (16-byte aligned).

    Raises:
        DriverError: the driver refuses the description.
    """

    def __init__(self, spec: TensorMapSpec, pointer: int) -> None:
        self._memory = ctypes.create_string_buffer(_TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // _TENSOR_MAP_ALIGNMENT) * _TENSOR_MAP_ALIGNMENT
        rank = len(spec.extents)
        wide, narrow, pitches = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank, ctypes.c_uint64 * (rank - 1)
        status = _encode_tiled()(
            ctypes.c_void_p(self.address),
            int(_DATA_TYPES[spec.dtype]),
            rank,
            ctypes.c_void_p(pointer),
            wide(*spec.extents),
            pitches(*spec.pitches_bytes),
            narrow(*spec.box),
            narrow(*(1 for _ in spec.box)),
            int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
            int(_SWIZZLES[spec.swizzle_bytes]),
            int(_L2_PROMOTIONS[spec.l2_promotion]),
            int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        )
        checked("cuTensorMapEncodeTiled", (cuda.CUresult(status),))


@functools.cache
def _encode_tiled() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled


class Module:
    """A cubin loaded into the current context."""

    def __init__(self, cubin: bytes) -> None:
        self._handle = checked("cuModuleLoadData", cuda.cuModuleLoadData(cubin))

    def function(self, name: str) -> Any:
        """The kernel called `name`."""
        return checked("cuModuleGetFunction", cuda.cuModuleGetFunction(self._handle, name.encode()))

    def unload(self) -> None:
        """Give the memory back; its kernels must not run any more."""
        checked("cuModuleUnload", cuda.cuModuleUnload(self._handle))


class Kernel:
    """A generated kernel, ready to be bound to problems.

    `plan` is any of its plans: block, cluster and shared memory are the same in all. `sm_count` is of the device.

    Raises:
        DriverError: the cubin cannot be loaded or asks for more than the device has.
    """

    def __init__(self, cubin: bytes, entry: str, plan: LaunchPlan, sm_count: int) -> None:
        self._module = Module(cubin)
        self.function = self._module.function(entry)
        # Once for a function: it is the largest size that a launch may ask for, not the size of one launch.
        checked(
            "cuFuncSetAttribute",
            cuda.cuFuncSetAttribute(
                self.function,
                cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                plan.smem_bytes,
            ),
        )
        if plan.cluster > PORTABLE_CLUSTER:
            checked(
                "cuFuncSetAttribute",
                cuda.cuFuncSetAttribute(
                    self.function,
                    cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                ),
            )
        self.resident_clusters = self._resident_clusters(plan, sm_count)

    def _resident_clusters(self, plan: LaunchPlan, sm_count: int) -> int:
        """Clusters that the device holds at once, with one CTA on an SM."""
        if plan.cluster == 1:
            return sm_count
        # Clusters live inside a GPC, and GPCs differ in their number of SMs: only the driver knows.
        config = launch_config(plan, plan.cluster)
        count = checked("cuOccupancyMaxActiveClusters", cuda.cuOccupancyMaxActiveClusters(self.function, config))
        if count < 1:
            raise DriverError("cuOccupancyMaxActiveClusters", f"no cluster of {plan.cluster} CTAs fits the device")
        return min(int(count), sm_count // plan.cluster)

    def workspace_bytes(self, plan: LaunchPlan) -> int:
        """Bytes of zeroed device memory that a launch of `plan` needs; never none, so that they have an address."""
        return max(1, plan.workspace_bytes(plan.grid(self.resident_clusters)))

    def unload(self) -> None:
        """Give the memory back; no launch of the kernel may follow."""
        self._module.unload()


def launch_config(plan: LaunchPlan, grid: int) -> Any:
    """The CUlaunchConfig of `grid` CTAs, with the attributes that the plan asks for."""
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.block, 1, 1
    config.sharedMemBytes = plan.smem_bytes
    attributes = []
    if plan.cluster > 1:
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x = plan.cluster
        cluster.value.clusterDim.y = 1
        cluster.value.clusterDim.z = 1
        attributes.append(cluster)
    if plan.dependent:
        dependent = cuda.CUlaunchAttribute()
        dependent.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        dependent.value.programmaticStreamSerializationAllowed = 1
        attributes.append(dependent)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


_ARGUMENTS: Mapping[str, Any] = {"address": ctypes.c_uint64, "int64": ctypes.c_int64, "float": ctypes.c_float}


class BoundLaunch:
    """A kernel bound to a problem and to `values`, the address or number of each name in `plan.needed`: everything
    encoded, ready to be launched. Names that the plan does not need are ignored.

    `workspace` is the address of `kernel.workspace_bytes(plan)` bytes, zero before the first launch; each launch leaves
    them as it needs them. Launches that may run at the same time must not share it.

    Raises:
        ValueError: a needed value is missing.
        DriverError: a tensor map is refused.
    """

    def __init__(self, kernel: Kernel, plan: LaunchPlan, values: Mapping[str, int | float]) -> None:
        if missing := [name for name in plan.needed if name not in values]:
            raise ValueError(f"the launch needs {', '.join(missing)}: valid is a value for each of {plan.needed}")
        self._kernel = kernel
        self._config = launch_config(plan, plan.grid(kernel.resident_clusters))
        self._stream = 0
        # Kept alive here: the parameters are addresses of these objects, which the driver copies at every launch.
        self._maps = [TensorMap(spec, int(values[spec.operand]) + spec.offset_bytes) for spec in plan.tensor_maps]
        self._scalars: list[Any] = [ctypes.c_int32(value) for value in plan.ints]
        for each in plan.arguments:
            self._scalars.append(_ARGUMENTS[each.type](values[each.name] if each.value is None else each.value))
        addresses = [tensor_map.address for tensor_map in self._maps]
        addresses += [ctypes.addressof(scalar) for scalar in self._scalars]
        self._parameters = (ctypes.c_void_p * len(addresses))(*addresses)
        self._parameters_address = ctypes.addressof(self._parameters)

    def launch(self, stream: int) -> None:
        """Enqueue one call on `stream`.

        Raises:
            DriverError: the launch was refused.
        """
        if stream != self._stream:
            self._config.hStream = cuda.CUstream(stream)
            self._stream = stream
        answer = cuda.cuLaunchKernelEx(self._config, self._kernel.function, self._parameters_address, 0)
        if answer[0] != cuda.CUresult.CUDA_SUCCESS:
            raise DriverError("cuLaunchKernelEx", answer[0])


class Graph:
    """A sequence of launches captured from a stream, replayed with one call."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution

    @classmethod
    def capture(cls, stream: int, enqueue: Any) -> Graph:
        """The graph of what `enqueue()` puts on `stream`, which must not be the default stream.

        Raises:
            DriverError: the capture failed.
        """
        handle = cuda.CUstream(stream)
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        checked("cuStreamBeginCapture", cuda.cuStreamBeginCapture(handle, mode))
        try:
            enqueue()
        finally:
            # Also after an error: a stream left in capture mode would refuse everything that follows.
            answer = cuda.cuStreamEndCapture(handle)
        graph = checked("cuStreamEndCapture", answer)
        try:
            return cls(checked("cuGraphInstantiate", cuda.cuGraphInstantiate(graph, 0)))
        finally:
            cuda.cuGraphDestroy(graph)

    def launch(self, stream: int) -> None:
        """Enqueue the whole graph on `stream`."""
        answer = cuda.cuGraphLaunch(self._execution, cuda.CUstream(stream))
        if answer[0] != cuda.CUresult.CUDA_SUCCESS:
            raise DriverError("cuGraphLaunch", answer[0])

    def close(self) -> None:
        """Free it; must not be running."""
        checked("cuGraphExecDestroy", cuda.cuGraphExecDestroy(self._execution))
