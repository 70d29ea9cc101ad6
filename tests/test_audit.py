"""The audit reads machine code and compiler logs right, and rejects what the road map forbids."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from tileseek.codegen import Audit, disassemble, generate
from tileseek.codegen.audit import _messages, audit_kernel
from tileseek.codegen.nvrtc import compile_source
from tileseek.codegen.sass import Instruction, decode, in_wgmma_loops, k_loops
from tileseek.space import BadInput, Problem, Schedule
from toolchain import OVERFULL, PINGPONG, PROBLEM, SMALL, SPLIT

CLUSTER = Schedule.parse("coop2_128x128x128_s2_w0_c2x2_pall_rm8_reg24-240_tma64x2")
WIDE = Schedule.parse("coop1_64x176x64_s2_w1_c1x2_pall_rm8_reg0-0_tma16x1")
ODD = Problem(m=512, n=504, k=500, dtype="bf16", layout="tt")
COPIED = Schedule.parse("coop2_128x24x64_s3_w1_c1x1_pall_rm8_reg0-0_tma16x1_ld-copy")
FEW = Problem(m=40, n=512, k=512, dtype="bf16", layout="nt")
CLIPPED = Schedule.parse("pp2_128x200x64_s4_w1_c1x1_pall_rm1_reg24-240_tma64x1_clip")

EVERYTHING = """
extern "C" __global__ void __launch_bounds__(384, 1) everything(float* p, int n, unsigned s) {
  float local[64];
  for (int i = 0; i < n; ++i) local[i % 64] = p[i];
  for (int i = 0; i < n; ++i) {
    p[i] = local[i * 7 % 64];
    __threadfence();
    __threadfence_block();
    __threadfence_system();
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("bar.arrive %0, 256;" ::"r"(n) : "memory");
    asm volatile("bar.sync %0, 256;" ::"r"(i) : "memory");
    asm volatile("bar.sync 1, 128;" ::: "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(s), "r"(n) : "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(s) : "memory");
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(s) : "l"(p) : "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
}
"""
"""Operations that generated kernels do not have, or not often."""


@functools.cache
def compiled(text: str) -> tuple[bytes, str]:
    compilation = compile_source(text)
    assert compilation.cubin, compilation.log
    return compilation.cubin, compilation.log


def audit(schedule: Schedule, *changes: tuple[str, str], problem: Problem = PROBLEM) -> Audit:
    """The audit of a kernel whose source was changed in places."""
    source = generate(problem, schedule)
    text = source.text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    cubin, log = compiled(text)
    return audit_kernel(problem, schedule, log, cubin, source.entry)


# --- machine code ---


def listed(listing: str) -> list[Instruction]:
    """The instructions of a listing of nvdisasm, by the names of `sass`."""
    labels: dict[str, int] = {}
    pending: list[str] = []
    found: list[tuple[int, str, str]] = []
    for line in listing.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            pending.append(label[1])
        elif at := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z]\S*)(.*?)\s*;", line):
            labels.update(dict.fromkeys(pending, int(at[1], 16)))
            pending = []
            found.append((int(at[1], 16), at[2], at[3]))
    return [_named(offset, name, operands, labels) for offset, name, operands in found]


def _named(offset: int, mnemonic: str, operands: str, labels: dict[str, int]) -> Instruction:
    family, *modifiers = mnemonic.split(".")
    if family == "BRA":
        target = re.search(r"`\((\.L_\w+)\)", operands)
        assert target is not None
        return Instruction(offset, "BRA", labels[target[1]])
    plain = ("ELECT", "STSM", "R2UR", "BAR", "LDL", "STL", "CCTL", "MEMBAR", "UTMASTG", "USETMAXREG")
    if family in plain:
        return Instruction(offset, family)
    if family in ("HGMMA", "QGMMA"):
        return Instruction(offset, "HGMMA.gsb0" if "gsb0" in operands else "HGMMA")
    for name, modifier in (
        ("WARPGROUP", "ARRIVE"),
        ("WARPGROUP", "DEPBAR"),
        ("UTMALDG", "MULTICAST"),
        ("SYNCS", "EXCH"),
    ):
        if family == name and modifier in modifiers:
            return Instruction(offset, f"{name}.{modifier}")
    return Instruction(offset, family if family in ("UTMALDG", "SYNCS") else "")


@pytest.mark.parametrize(
    ("text", "entry"),
    (
        (EVERYTHING, "everything"),
        *(
            (source.text, source.entry)
            for source in (generate(PROBLEM, s) for s in (CLUSTER, WIDE, PINGPONG, OVERFULL))
        ),
    ),
    ids=("everything", "cluster", "wide", "pingpong", "overfull"),
)
def test_machine_code_reads_as_nvdisasm_reads_it(text: str, entry: str) -> None:
    cubin, _ = compiled(text)
    expected = listed(disassemble(cubin))
    assert len(expected) > 50
    assert list(decode(cubin, entry)) == expected


def test_comparison_covered_every_name() -> None:
    seen = set()
    for text, entry in (
        (EVERYTHING, "everything"),
        *((generate(PROBLEM, s).text, "tileseek_matmul") for s in (CLUSTER, WIDE)),
    ):
        seen |= {at.name for at in decode(compiled(text)[0], entry)}
    assert seen >= {
        *("BAR", "BRA", "CCTL", "ELECT", "HGMMA", "HGMMA.gsb0", "LDL", "MEMBAR", "R2UR", "STL", "STSM", "SYNCS"),
        *(
            "SYNCS.EXCH",
            "USETMAXREG",
            "UTMALDG",
            "UTMALDG.MULTICAST",
            "UTMASTG",
            "WARPGROUP.ARRIVE",
            "WARPGROUP.DEPBAR",
        ),
    }


def code(*names: str | tuple[str, int]) -> list[Instruction]:
    """Instructions from names; a pair is a branch to the instruction of that number."""
    return [
        Instruction(16 * i, name, None) if isinstance(name, str) else Instruction(16 * i, name[0], 16 * name[1])
        for i, name in enumerate(names)
    ]


def test_k_loop_is_the_innermost_loop_with_wgmmas() -> None:
    # tile loop 1..7 > K loop 3..5; the wait at 2 spins behind the end of the kernel and branches back into the loop.
    program = code("", "SYNCS", "SYNCS", "", "HGMMA", ("BRA", 3), "STSM", ("BRA", 1), "", ("BRA", 2))
    (loop,) = k_loops(program)
    assert (loop.instructions, loop.counts["HGMMA"], loop.counts["STSM"]) == (3, 1, 0)


def test_spin_that_branches_back_from_behind_is_no_k_loop() -> None:
    program = code("", ("BRA", 6), "HGMMA", "", ("BRA", 1), "", "SYNCS", ("BRA", 6), ("BRA", 2))
    (loop,) = k_loops(program)
    assert loop.instructions == 4


def test_peeled_iteration_is_not_a_loop_of_its_own() -> None:
    program = code("", "HGMMA", "", "HGMMA", ("BRA", 2), "", ("BRA", 0))
    (loop,) = k_loops(program)
    assert loop.counts["HGMMA"] == 1


def test_unrolled_and_repeated_loops() -> None:
    program = code("HGMMA", "HGMMA", ("BRA", 0), "HGMMA", ("BRA", 3))
    assert [loop.counts["HGMMA"] for loop in k_loops(program)] == [2, 1]
    assert k_loops(code("HGMMA", "", ("BRA", 1))) == []


def test_instructions_of_outer_loops_count_once() -> None:
    program = code("SYNCS.EXCH", "SYNCS.EXCH", "HGMMA", ("BRA", 2), ("BRA", 1), ("BRA", 1))
    assert in_wgmma_loops(program, "SYNCS.EXCH") == 1


@pytest.mark.parametrize("cubin", (b"", b"\x7fELF\x02", b"not an ELF file", b"\x7fELF\x02" + bytes(100)))
def test_damaged_cubin_is_refused(cubin: bytes) -> None:
    with pytest.raises(ValueError):
        decode(cubin, "kernel")
    with pytest.raises(BadInput, match=f"cubin of {len(cubin)} bytes"):
        disassemble(cubin)


def test_missing_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no section \.text\.other"):
        decode(compiled(generate(PROBLEM, SMALL).text)[0], "other")


# --- generated kernels ---


@pytest.mark.parametrize(
    ("problem", "schedule"),
    (
        *((PROBLEM, schedule) for schedule in (SMALL, SPLIT, PINGPONG, CLUSTER, WIDE)),
        (ODD, COPIED),
        (ODD, replace(COPIED, consumers=3, tile_m=192)),
        (FEW, CLIPPED),
    ),
    ids=lambda value: getattr(value, "key", str(value)),
)
def test_generated_kernels_pass(problem: Problem, schedule: Schedule) -> None:
    facts = audit(schedule, problem=problem)
    assert facts.problems == ()
    (loop,) = facts.loops
    assert loop.hgmma == schedule.m64_per_warpgroup * schedule.tile_k // 16
    assert (loop.gsb0, loop.arrive, loop.depbar, loop.r2ur, loop.local) == (1, 1, 1, 0, 0)
    assert facts.setmaxnreg == (2 if schedule.consumer_regs else 0)
    assert (facts.multicast_loads > 0) == (schedule.cluster_size > 1)
    assert (facts.stores > 0) == (schedule.store == "tma")
    assert 0 < facts.registers <= 255
    assert facts.instructions_per_wgmma <= 10
    assert Audit.from_json(facts.to_json()) == facts


FOR_EACH_BLOCK = "for (int i = 0; i < M64; ++i"
UNIFORM_WARP = "int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0)"
A_STEP = "a + ((step / 4 * A_SLAB + step % 4 * 32 + i * 64 * 128) >> 4)"
A_BUILT = "descriptor(smem + SMEM_A + ring.stage * A_STAGE + step % 4 * 32, 16)"
NEXT, COMMIT = "      ring.next();\n", "      wgmma_commit();\n"


@pytest.mark.parametrize(
    ("schedule", "old", "new", "reason"),
    (
        (SPLIT, "      wgmma_fence();\n", "", "C7519"),
        (SPLIT, "    wgmma_wait<0>();\n", "", "C7517"),
        (SMALL, FOR_EACH_BLOCK, FOR_EACH_BLOCK + ", wgmma_fence()", "wgmma fences in the K loop, not 1"),
        (SMALL, COMMIT, COMMIT + "wgmma_wait<0>();", "2 wgmma waits in the K loop, not 1"),
        (SPLIT, UNIFORM_WARP, "int warp = threadIdx.x / 32", "moves to uniform registers"),
        (SMALL, A_STEP, A_BUILT, "in the K loop for 4 wgmmas, over the budget of 48"),
        (SMALL, NEXT, NEXT + "__threadfence();", "memory fences in the K loop"),
        (SMALL, NEXT, NEXT + "__syncthreads();", "1 CTA barriers in the K loop, not 0"),
        (SPLIT, "grow_registers<232>();", "", "1 setmaxnreg instructions, not 2"),
    ),
)
def test_planted_mistake_is_rejected(schedule: Schedule, old: str, new: str, reason: str) -> None:
    assert audit(schedule).problems == ()
    assert any(reason in problem for problem in audit(schedule, (old, new)).problems)


def test_spills_and_serialised_wgmmas_are_rejected() -> None:
    problems = audit(OVERFULL).problems
    for words in ("bytes of spills", "bytes of stack", "on local memory", "C7511", "over the budget"):
        assert any(words in problem for problem in problems)


def test_kernel_of_another_schedule_is_rejected() -> None:
    """What the schedule asks for is compared with what is there."""
    source = generate(PROBLEM, SPLIT)
    cubin, log = compiled(source.text)

    def problems(schedule: Schedule) -> str:
        return "; ".join(audit_kernel(PROBLEM, schedule, log, cubin, source.entry).problems)

    assert problems(SPLIT) == ""
    assert problems(replace(SPLIT, tile_k=128)) == "4 wgmmas in the K loop, not 8"
    assert problems(replace(SPLIT, cluster_m=1)) == "1 multicast loads, none expected"
    assert problems(replace(SPLIT, producer_regs=0, consumer_regs=0)) == "2 setmaxnreg instructions, not 0"
    assert problems(replace(SPLIT, epilogue_n=32)) == "1 TMA stores, not 2"
    assert "1 TMA stores, not 0" in problems(replace(SPLIT, store="direct"))


# --- facts from the log, and as JSON ---

LOG = """\
kernel.cu(9): warning #177-D: variable "x" was declared but never referenced

ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to a call
ptxas info    : 80 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
ptxas         .     8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 8 bytes cumulative stack size
ptxas info    : Compile time = 159.035 ms
ptxas warning : something that no version has said yet
"""


def test_messages_are_what_is_not_known_to_be_harmless() -> None:
    assert [message[:12] for message in _messages(LOG)] == ["(C7510) Pote", "something th"]


def test_statistics_come_from_the_log() -> None:
    cubin, _ = compiled(generate(PROBLEM, SMALL).text)
    facts = audit_kernel(PROBLEM, SMALL, LOG, cubin, "tileseek_matmul")
    assert (facts.registers, facts.stack_bytes, facts.spill_bytes) == (168, 8, 40)
    assert {"40 bytes of spills", "8 bytes of stack"} < set(facts.problems)
    for line, following in pairwise(LOG.splitlines()):
        if "spill" in line or "registers" in line:
            with pytest.raises(ValueError, match="no line with"):
                audit_kernel(PROBLEM, SMALL, LOG.replace(f"{line}\n{following}", following), cubin, "tileseek_matmul")


@pytest.mark.parametrize(
    "change",
    (
        lambda o: o.pop("registers"),
        lambda o: o.update(registers="168"),
        lambda o: o.update(unknown=1),
        lambda o: o["loops"][0].update(hgmma=None),
        lambda o: o.update(loops=3),
        lambda o: o.update(expected_multicast=1),
    ),
)
def test_damaged_audit_is_refused(change: object) -> None:
    obj = audit(SMALL).to_json()
    obj["loops"] = [dict(loop) for loop in obj["loops"]]
    change(obj)  # type: ignore[operator]
    with pytest.raises(ValueError, match="audit object cannot be read"):
        Audit.from_json(obj)
