"""Random kernels of one kind on random small shapes, on integers: a program, so that a hang costs a timeout.

Arguments: dtype, layout, epilogue, seed. Prints one line for each output that is wrong.
"""

from __future__ import annotations

import random
import sys

import torch
from tileseek.codegen import CompilePool, launch_plan
from tileseek.measure.driver import BoundLaunch, Kernel
from tileseek.measure.fused import finish_exact
from tileseek.measure.gpu import wrong_on_integers
from tileseek.measure.operands import integer_set
from tileseek.space import Problem, Schedule, find_device, sample, unsupported, violations

KERNELS, SHAPES, LARGEST = 12, 6, 300


def main(dtype: str, layout: str, epilogue: str, seed: str) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.zeros(1, device="cuda")  # makes the context current
    properties = torch.cuda.get_device_properties(0)
    device = find_device(properties.name)
    rng = random.Random(" ".join((dtype, layout, epilogue, seed)))

    def problem() -> Problem:
        while True:
            m, n, k = (rng.randint(1, LARGEST) for _ in range(3))
            align = 16 if rng.random() < 0.5 else 0  # operands whose rows are padded, or sizes that need none
            k = k if align else k // 8 * 8 + 8
            m = m if align or layout[0] == "n" else m // 8 * 8 + 8
            found = Problem(m, n // 16 * 16 + 16, k, dtype, layout, epilogue=epilogue, a_align=align, b_align=align)
            if not any(unsupported(found, device)):
                return found

    first = problem()
    schedules = [sample(problem(), device, rng) for _ in range(KERNELS)]
    with CompilePool() as pool:
        kernels = pool.compile_many([(first, schedule) for schedule in schedules])
    tried = 0
    for schedule, compiled in zip(schedules, kernels, strict=True):
        if compiled.status == "ok":
            shapes = [
                shape for shape in (problem() for _ in range(20 * SHAPES)) if not violations(shape, schedule, device)
            ]
            kernel = Kernel(
                compiled.cubin, compiled.entry, launch_plan(first, schedule), properties.multi_processor_count
            )
            for shape in shapes[:SHAPES]:
                tried += 1
                run(kernel, shape, schedule)
            kernel.unload()
    print(f"{tried} launches", file=sys.stderr)
    assert tried >= KERNELS


def run(kernel: Kernel, problem: Problem, schedule: Schedule) -> None:
    operands = integer_set(problem, seed=1)
    product = operands.a.float() @ operands.b.float()
    exact = {name: d.to(operands.d.dtype) for name, d in finish_exact(problem, product, operands).items()}
    plan = launch_plan(problem, schedule)
    workspace = torch.zeros(kernel.workspace_bytes(plan), dtype=torch.uint8, device="cuda")
    launch = BoundLaunch(kernel, plan, {**operands.values, "workspace": workspace.data_ptr()})
    launch.launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    wrong, outside = int(wrong_on_integers(problem, operands, exact)), int(operands.guards_touched())
    if wrong or outside:
        print(f"{problem.key} {schedule}: {wrong} wrong elements, {outside} bytes outside the outputs")


if __name__ == "__main__":
    main(*sys.argv[1:])
