"""How CTAs of a cluster share loads, compiled for the CPU from generated text: who loads what for whom, and who tells
whom that a stage is free, is what the model of the pipeline takes it to be."""

from __future__ import annotations

import ctypes
import itertools
import re

import native
import pytest
from pipeline import Pipeline
from tileseek.codegen import generate
from tileseek.space import COOPERATIVE, H200, PINGPONG, Problem, Schedule, violations
from tileseek.space.rules import CLUSTERS, MULTICAST_KINDS

PROBLEM = Problem(8192, 8192, 8192)
ARRANGEMENTS = ((COOPERATIVE, 1), (COOPERATIVE, 2), (PINGPONG, 2))

HEAD = """
typedef unsigned int u32;
static bool* told;
static u32 first;
static u32 peer_address(u32, u32 rank) { return rank; }
static void mbarrier_arrive_peer(u32 barrier) { told[barrier - first] = true; }
"""


def schedule(arrangement: str, consumers: int, cluster: tuple[int, int], kind: str) -> Schedule:
    tile_m = 64 * (1 if arrangement == PINGPONG else consumers)
    m, n = cluster
    return Schedule(
        arrangement, consumers, tile_m, 64, 64, 3, cluster_m=m, cluster_n=n, epilogue_n=32, multicast_kind=kind
    )


CASES = {
    f"{arrangement}{consumers}_{m}x{n}_{kind}": (schedule(arrangement, consumers, (m, n), kind))
    for (arrangement, consumers), (m, n), kind in itertools.product(ARRANGEMENTS, CLUSTERS, MULTICAST_KINDS)
    if m * n > 1
}


def excerpt(name: str, s: Schedule) -> str:
    """A function of a CTA's rank with the parts of the kernel's text that concern its cluster."""
    text = generate(PROBLEM, s).text

    def find(pattern: str) -> str:
        match = re.search(pattern, text, re.DOTALL)
        return match[1] if match else ""

    loads = {x: find(rf"auto load_{x} = .*?\{{\n(.*?) *#pragma").replace("return", f"{x} = 0") for x in "ab"}
    arrivals = find(r"mbarrier_init\(empty \+ 8 \* threadIdx.x,(.*?)\);").replace("threadIdx.x", "stage")
    return f"""
extern "C" void {name}(u32 rank, u32 stage, int* arrivals, bool* released, u32* mask_a, u32* mask_b) {{
  constexpr int CLUSTER_M = {s.cluster_m}, CLUSTER_N = {s.cluster_n};
  constexpr u32 empty = 0;
  {find(r"(const int cluster_row = .*?;)")}
  *arrivals = {arrivals};
  u32 a_peers = 1u << rank, b_peers = a_peers, a = 1, b = 1;
  {{ {find(r"const u32 (a_peers = .*?;)")} {find(r"const u32 (b_peers = .*?;)")} {loads["a"]} {loads["b"]} }}
  *mask_a = a * a_peers;
  *mask_b = b * b_peers;
  told = released, first = 8 * stage;
  for (int thread = 0; thread < 128; ++thread) {{
{find(r"(  // Thread (?:i|0) hands stages back.*?  };)")}
    hand_back(stage);
  }}
}}"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = HEAD + "".join(excerpt(*case) for case in CASES.items())
    return native.library(source, tmp_path_factory.mktemp("cluster"), "cluster")


@pytest.mark.parametrize("name", CASES)
def test_kernel_shares_loads_as_the_model_does(compiled: ctypes.CDLL, name: str) -> None:
    s = CASES[name]
    assert violations(PROBLEM, s, H200) == []
    p = Pipeline(s.arrangement, s.consumers, cluster_m=s.cluster_m, cluster_n=s.cluster_n, kind=s.multicast_kind)
    a_boxes = s.cluster_n if s.multicast_kind == "slice" else 1
    for stage in range(s.stages):
        received: dict[int, list[tuple[int, str]]] = {cta: [] for cta in p.ctas}
        for cta in p.ctas:
            arrivals, released = ctypes.c_int(), (ctypes.c_bool * 16)()
            masks = ctypes.c_uint32(), ctypes.c_uint32()
            getattr(compiled, name)(cta, stage, ctypes.byref(arrivals), released, *map(ctypes.byref, masks))
            assert arrivals.value == p.arrivals(cta, stage)
            assert [peer for peer in range(16) if released[peer]] == p.loaders(cta, stage)
            for operand, mask in zip("ab", masks, strict=True):
                for target in (target for target in range(16) if mask.value >> target & 1):
                    received[target].append((cta, operand))
            loads = list(p.loads(cta, stage))
            assert sorted(t for t, box in loads if box < a_boxes) == bits(masks[0].value)
            assert sorted(t for t, box in loads if box >= a_boxes) == bits(masks[1].value)
        for cta, found in received.items():
            assert {source for source, _ in found} <= set(p.loaders(cta, stage)), "who loads for a CTA hears from it"
            assert len(found) == p.boxes


def bits(mask: int) -> list[int]:
    return [bit for bit in range(16) if mask >> bit & 1]
