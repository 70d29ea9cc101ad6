"""CUDA functions around single PTX instructions, as source text. A kernel gets those it uses."""

from __future__ import annotations

from ..space import DTYPE_BYTES
from ..space.resources import WGMMA_K_BYTES

INTEGERS = """\
typedef unsigned int u32;
typedef unsigned long long u64;"""

TYPES = f"""\
{INTEGERS}
struct alignas(64) TensorMap {{ char bytes[128]; }};"""

ARRIVAL = """\
// Counts an arrival of this CTA, whose earlier writes the last to arrive will see. Returns those before it.
__device__ __forceinline__ u32 arrive_global(u32* counter) {
  u32 before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
// Orders what this thread wrote before what it signals next, and what it was told before what it reads next.
__device__ __forceinline__ void device_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }"""

C_TYPES = {"bf16": "unsigned short", "fp16": "unsigned short", "fp32": "float", "fp8": "unsigned char"}
"""What a pointer to elements of a dtype points to."""

VOTE = """\
__device__ __forceinline__ void store_word(u32 address, u32 word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ __forceinline__ u32 load_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}"""

WAIT_FOR_COUNT = """\
// Returns when the counter has come to `count`; what those who counted had written before is then visible.
__device__ __forceinline__ void wait_for_count(const u32* counter, u32 count) {
  u32 now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  } while (now < count);
}"""

LOAD_GLOBAL = """\
// From L2: what another SM wrote is not looked for in this one's L1.
__device__ __forceinline__ float4 load_global(const float4* source) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(source) : "memory");
  return v;
}"""

PRIMITIVES: dict[str, str] = {
    "shared_address": """\
// The 32-bit address of a pointer into shared memory.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  u32 address;
  asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(address) : "l"(pointer));
  return address;
}""",
    "elect_one": """\
// True in one thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
  u32 elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
  return elected != 0;
}""",
    "mbarrier_init": """\
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}""",
    "mbarrier_init_fence": """\
// Makes initialised mbarriers visible to the copy engine and to the other CTAs of the cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}""",
    "mbarrier_wait": """\
// Returns when the phase of the given parity has completed.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}""",
    "mbarrier_expect": """\
// Arrives, and lets the phase complete only once `bytes` have landed.
__device__ __forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}""",
    "mbarrier_arrive": """\
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}""",
    "mbarrier_arrive_peer": """\
// Arrives on a barrier of another CTA. Relaxed: a stage that is handed back publishes no data, its wgmmas
// have read it and the refill is the copy engine's; a release would flush to the whole GPU every k-block.
__device__ __forceinline__ void mbarrier_arrive_peer(u32 cluster_address) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address) : "memory");
}""",
    "peer_address": """\
// The address, in the cluster's window, of `address` in the shared memory of CTA `rank`.
__device__ __forceinline__ u32 peer_address(u32 address, u32 rank) {
  u32 peer;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}""",
    "cluster_rank": """\
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}""",
    "cluster_sync": """\
// Every thread of every CTA of the cluster has come here.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed;\\n barrier.cluster.wait.acquire;" ::: "memory");
}""",
    "named_sync": """\
// Waits until `threads` threads have come to named barrier `id`, by named_sync or named_arrive.
__device__ __forceinline__ void named_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}""",
    "named_arrive": """\
__device__ __forceinline__ void named_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}""",
    "cluster_arrive": """\
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }""",
    "store_peer": """\
// Stores 16 bytes in the shared memory of another CTA; they count on its `barrier` when they have landed.
__device__ __forceinline__ void store_peer(u32 target, float4 v, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
               ::"r"(target), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier) : "memory");
}
__device__ __forceinline__ float4 load_shared(u32 source) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(source) : "memory");
  return v;
}""",
    "tensor_map_prefetch": """\
__device__ __forceinline__ void tensor_map_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}""",
    "workspace": f"""\
{ARRIVAL}
{VOTE}
{LOAD_GLOBAL}""",
    "shares": f"""\
{ARRIVAL}
{WAIT_FOR_COUNT}
{LOAD_GLOBAL}""",
    "add_global": """\
__device__ __forceinline__ void add_global(float4* target, float4 v) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               ::"l"(target), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}""",
    "dependent_launch": """\
// Lets the kernel after this one start as soon as SMs are free; it waits for this one where it must.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Returns when the kernel before this one has finished and its writes are visible.
__device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }""",
    "evict_first": """\
// Cache policy of data that is read only once.
__device__ __forceinline__ u64 evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}""",
    "tma_store": "",  # of the rank that the kernel needs: `primitives`
    "tma_store_wait": """\
// Returns when at most PENDING of this thread's stores still read shared memory.
template <int PENDING>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}""",
    "proxy_fence": """\
// Orders this thread's writes to shared memory before what the copy engine reads next.
__device__ __forceinline__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""",
    "set_registers": """\
template <int COUNT>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}""",
    "wgmma_sync": """\
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}""",
}
"""Name -> source, in the order in which a kernel prints them."""


def primitives(rank: int) -> dict[str, str]:
    """PRIMITIVES, with stores through tensor maps of `rank` dimensions."""
    return {**PRIMITIVES, "tma_store": _tma_store_function(rank)}


def _coordinates(rank: int) -> list[str]:
    """Names of the coordinates of a box, contiguous first."""
    return ["column", "row", "batch"][:rank]


def _tma_store_function(rank: int) -> str:
    axes = _coordinates(rank)
    parameters = ", ".join(f"int {axis}" for axis in axes)
    places = ", ".join(f"%{1 + i}" for i in range(rank))
    inputs = ", ".join(f'"r"({axis})' for axis in axes)
    return f"""\
__device__ __forceinline__ void tma_store(const TensorMap& map, {parameters}, u32 source) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%0, {{{places}}}], [%{1 + rank}];\\n"
               "cp.async.bulk.commit_group;"
               ::"l"(&map), {inputs}, "r"(source) : "memory");
}}"""


def stmatrix_functions(transposed: bool) -> str:
    """`stmatrix_x4` and `stmatrix_x2`: register fragments of 8x8 blocks to shared memory, as rows or as columns."""
    form = ".trans" if transposed else ""
    comment = ", transposed" if transposed else ""
    return f"""\
// Stores 8x8 blocks of 16-bit elements{comment}, each lane giving the address of one row.
__device__ __forceinline__ void stmatrix_x4(u32 row, u32 r0, u32 r1, u32 r2, u32 r3) {{
  asm volatile("stmatrix.sync.aligned.m8n8.x4{form}.shared.b16 [%0], {{%1, %2, %3, %4}};"
               ::"r"(row), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}}
__device__ __forceinline__ void stmatrix_x2(u32 row, u32 r0, u32 r1) {{
  asm volatile("stmatrix.sync.aligned.m8n8.x2{form}.shared.b16 [%0], {{%1, %2}};"
               ::"r"(row), "r"(r0), "r"(r1) : "memory");
}}"""


def tma_load_function(multicast: bool, hinted: bool, rank: int) -> str:
    """`tma_load[_multicast][_evict_first]`: one box of a tensor map of `rank` dimensions to shared memory."""
    name = load_name(multicast, hinted)
    axes = _coordinates(rank)
    parameters = ["u32 target", "const TensorMap& map", *(f"int {axis}" for axis in axes), "u32 barrier"]
    places = ", ".join(f"%{2 + i}" for i in range(rank))
    operands = f"[%0], [%1, {{{places}}}], [%{2 + rank}]"
    inputs = ['"r"(target)', '"l"(&map)', *(f'"r"({axis})' for axis in axes), '"r"(barrier)']
    head = 2 + rank  # on the first line
    box = ", ".join(axes)
    form = ".mbarrier::complete_tx::bytes"
    comment = f"// Copies the box at ({box}) to shared memory; its bytes count on `barrier`."
    if multicast:
        comment = (
            f"// Copies the box at ({box}) to the same place in every CTA of `mask`; its bytes count on the same\n"
            "// barrier of each."
        )
        form += ".multicast::cluster"
        parameters.append("u32 mask")
        operands += f", %{len(inputs)}"
        inputs.append('"h"((unsigned short)mask)')
    if hinted:
        form += ".L2::cache_hint"
        parameters.append("u64 policy")
        operands += f", %{len(inputs)}"
        inputs.append('"l"(policy)')
    return f"""\
{comment}
__device__ __forceinline__ void {name}({", ".join(parameters[:head])},
{" " * 33}{", ".join(parameters[head:])}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
               "{form} {operands};"
               ::{", ".join(inputs[:head])},
                 {", ".join(inputs[head:])} : "memory");
}}"""


def load_name(multicast: bool, hinted: bool) -> str:
    """The name of the load function for these flags."""
    return "tma_load" + "_multicast" * multicast + "_hinted" * hinted


def pack_function(dtype: str) -> str:
    """`pack`: two fp32 values rounded to one register of two elements of D; no function for fp32."""
    if dtype == "fp32":
        return ""
    if dtype == "fp8":
        return _PACK_FP8
    kind = {"bf16": "bf16x2", "fp16": "f16x2"}[dtype]
    return f"""\
// Two fp32 values rounded to one register of {dtype}, the first in the lower half.
__device__ __forceinline__ u32 pack(float low, float high) {{
  u32 packed;
  asm("cvt.rn.{kind}.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}}"""


_PACK_FP8 = """\
// Two fp32 values rounded to two bytes of e4m3, the first in the lower; what is beyond 448 becomes 448.
__device__ __forceinline__ unsigned short pack(float low, float high) {
  unsigned short packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}"""


def wgmma_function(n: int, dtype: str, a_k_major: bool, b_k_major: bool) -> str:
    """`wgmma`: one m64n{n} instruction over 32 bytes of K, both operands in shared memory, fp32 accumulators."""
    count = n // 2
    kind = {"bf16": "bf16", "fp16": "f16", "fp8": "e4m3", "fp8_e5m2": "e5m2"}[dtype]
    k = WGMMA_K_BYTES // DTYPE_BYTES[dtype]
    # Which way operands are contiguous: only 16-bit types have the choice.
    majors = f", {int(not a_k_major)}, {int(not b_k_major)}" if k == 16 else ""
    registers = _wrap([f"%{i}" for i in range(count)], '               "', '"\n', ", ")
    bindings = _wrap([f'"+f"(d[{i}])' for i in range(count)], "                 ", "\n", ", ", 6)
    return f"""\
// d (+)= A[64, {k}] x B[{n}, {k}]^T; overwrites d when `accumulate` is 0.
__device__ __forceinline__ void wgmma(float (&d)[{count}], u64 a, u64 b, int accumulate) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} {{"
{registers}               "}}, %{count}, %{count + 1}, p, 1, 1{majors}; }}"
               :
{bindings}               : "l"(a), "l"(b), "r"(accumulate));
}}"""


def _wrap(items: list[str], prefix: str, suffix: str, separator: str, width: int = 16) -> str:
    """The items joined, `width` to a line, each line between `prefix` and `suffix`."""
    rows = [separator.join(items[i : i + width]) for i in range(0, len(items), width)]
    last = len(rows) - 1
    return "".join(prefix + row + (separator.rstrip() if i < last else "") + suffix for i, row in enumerate(rows))
