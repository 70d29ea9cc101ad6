"""(problem, schedule) -> one self-contained CUDA source -> cubin -> audit. NVRTC, no GPU."""

from .audit import Audit, KLoop
from .cache import Cache, cache_dir
from .compiler import CompiledKernel, CompilePool, compile_kernel
from .nvrtc import compiler_version
from .plan import LaunchPlan, TensorMapSpec, launch_plan
from .sass import disassemble
from .source import GENERATOR_VERSION, KernelSource, generate

__all__ = [
    "GENERATOR_VERSION",
    "Audit",
    "Cache",
    "CompilePool",
    "CompiledKernel",
    "KLoop",
    "KernelSource",
    "LaunchPlan",
    "TensorMapSpec",
    "cache_dir",
    "compile_kernel",
    "compiler_version",
    "disassemble",
    "generate",
    "launch_plan",
]
