"""The kernel of the arrangement `gemv`: a few vectors times a matrix that is streamed through registers.

One source of parts, like that of the other arrangements: constants, primitives, functions, the kernel.
"""

from __future__ import annotations

from ..space import Problem, Schedule, ceil_div
from ..space.gemv import gemv_tile
from . import fusion, ptx
from .plan import FLAG_ALIGNMENT


def parts(problem: Problem, s: Schedule, entry: str) -> list[str]:
    """The parts of the source, in order."""
    return [
        ptx.INTEGERS,
        _constants(problem, s),
        *_primitives(problem, s),
        _kernel(problem, s, entry),
    ]


def roles(problem: Problem, s: Schedule) -> str:
    """What the title says of the threads."""
    tile = gemv_tile(problem, s)
    major = "along K" if tile.k_major else "across K"
    return f"""\
// {s.consumers} warpgroups stream B, contiguous {major}, once through registers: {s.stages} slices of it in flight."""


def _constants(problem: Problem, s: Schedule) -> str:
    tile = gemv_tile(problem, s)
    lines = [
        f"constexpr int THREADS = {s.threads};",
        f"constexpr int VECTORS = {s.tile_m};  // rows of A, those that do not exist included",
        f"constexpr int TILE_N = {s.tile_n}, TILE_K = {s.tile_k};  // outputs of a CTA for each; K of a slice of B",
        f"constexpr int STAGES = {s.stages};  // slices of B in flight",
        f"constexpr int LOADS = {tile.loads};  // 16-byte loads of a thread for one slice",
    ]
    if not tile.k_major:
        lines.append(f"constexpr int LANES = {tile.lanes};  // threads side by side that read a row of B's slice")
    lines += [
        f"constexpr int OUTPUTS = {tile.outputs};  // sums of a thread for each vector",
        f"constexpr int PARTIALS = {tile.partials};  // warps that hold a part of the same sum",
        f"constexpr int RESULTS = {ceil_div(s.tile_m * s.tile_n, s.threads)};  // whole sums of a thread",
    ]
    if s.split_k > 1:
        lines.append(f"constexpr int SPLIT_K = {s.split_k};  // CTAs that share the K of a tile")
    return "\n".join(lines)


def _primitives(problem: Problem, s: Schedule) -> list[str]:
    tile = gemv_tile(problem, s)
    fused = problem.fused
    found = []
    if s.dependent_launch:
        found.append(ptx.PRIMITIVES["dependent_launch"])
    if s.evict_first:
        found.append(ptx.PRIMITIVES["evict_first"])
    found += [_load_weights(bool(s.evict_first)), _VECTOR + _load_vector(8 if tile.k_major else tile.loads)]
    found.append(_UNPACK[problem.dtype])
    found.append(_MULTIPLY_ALONG_K if tile.k_major else _MULTIPLY_ACROSS_K)
    if s.split_k > 1:
        found += [ptx.ARRIVAL, _LOAD_FLOAT]
    found.append(ptx.pack_function(problem.out_dtype))
    if fused.bias or fused.residual:
        found.append(fusion.widen_function(problem.out_dtype))
    if fused.activation:
        found.append(fusion.activation_function(fused.activation, problem.out_dtype))
    return found


def _load_weights(hinted: bool) -> str:
    parameters = ", u64 policy" if hinted else ""
    form, operand, binding = (".L2::cache_hint", ", %6", ', "l"(policy)') if hinted else ("", "", "")
    return f"""\
// Eight elements that are read once: past L1, with their neighbours on the way to L2. Zeros where `inside` is false.
__device__ __forceinline__ uint4 load_weights(const unsigned short* source, bool inside{parameters}) {{
  uint4 v = {{0, 0, 0, 0}};
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %5, 0;\\n"
               "@p ld.global.nc.L1::no_allocate{form}.L2::256B.v4.u32 {{%0, %1, %2, %3}}, [%4]{operand}; }}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(source), "r"((int)inside){binding} : "memory");
  return v;
}}"""


_VECTOR = """\
// Consecutive elements of a vector. They stay in L1 for the other warps; the kernel ahead may have written them, so
// that they are no read-only data.
"""


def _load_vector(elements: int) -> str:
    """`Vector` and its load: `elements` elements in 32-bit words."""
    words = max(1, elements // 2)
    kind = "u16" if elements == 1 else "u32"
    form = f".v{words}.{kind}" if words > 1 else f".{kind}"
    places = ", ".join(f"%{i}" for i in range(words))
    target = f"{{{places}}}" if words > 1 else places
    outputs = ", ".join(f'"+r"(v.words[{i}])' for i in range(words))
    if elements == 1:
        load = f"{{ .reg .u16 h; @p ld.global.u16 h, [%{words}]; @p cvt.u32.u16 %0, h; }}"
    else:
        load = f"@p ld.global{form} {target}, [%{words}];"
    return f"""\
struct Vector {{ u32 words[{words}]; }};
__device__ __forceinline__ Vector load_vector(const unsigned short* source, bool inside) {{
  Vector v = {{}};
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{words + 1}, 0;\\n"
               "{load} }}"
               : {outputs}
               : "l"(source), "r"((int)inside) : "memory");
  return v;
}}"""


_UNPACK = {
    "bf16": """\
// The two elements of a word, in fp32.
__device__ __forceinline__ float first(u32 word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float second(u32 word) { return __uint_as_float(word & 0xFFFF0000); }""",
    "fp16": """\
// The two elements of a word, in fp32.
__device__ __forceinline__ float first(u32 word) {
  float value;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(value) : "r"(word));
  return value;
}
__device__ __forceinline__ float second(u32 word) { return first(word >> 16); }""",
}

_MULTIPLY_ALONG_K = """\
// Adds the products of eight elements of K of each of the thread's rows of B with those of the vectors.
__device__ __forceinline__ void multiply(float (&sums)[OUTPUTS][VECTORS], const uint4 (&slice)[LOADS],
                                         const Vector (&x)[VECTORS]) {
  #pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const u32 w[4] = {slice[i].x, slice[i].y, slice[i].z, slice[i].w};
    #pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[i][v] += first(w[j]) * first(x[v].words[j]);
        sums[i][v] += second(w[j]) * second(x[v].words[j]);
      }
    }
  }
}"""

_MULTIPLY_ACROSS_K = """\
// Adds the products of the thread's rows of the slice, each eight columns of B at one k, with the vectors at that k.
__device__ __forceinline__ void multiply(float (&sums)[OUTPUTS][VECTORS], const uint4 (&slice)[LOADS],
                                         const Vector (&x)[VECTORS]) {
  #pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const u32 w[4] = {slice[i].x, slice[i].y, slice[i].z, slice[i].w};
    #pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const u32 word = x[v].words[i / 2];
      const float factor = i % 2 ? second(word) : first(word);
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[2 * j][v] += first(w[j]) * factor;
        sums[2 * j + 1][v] += second(w[j]) * factor;
      }
    }
  }
}"""

_LOAD_FLOAT = """\
// From L2: what another SM wrote is not looked for in this one's L1.
__device__ __forceinline__ float load_float(const float* source) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(source) : "memory");
  return value;
}"""


def _kernel(problem: Problem, s: Schedule, entry: str) -> str:
    fused = problem.fused
    split = s.split_k > 1
    arguments = [
        "int m, int n, int k",
        "const unsigned short* a, long long a_pitch",
        "const unsigned short* b, long long b_pitch",
    ]
    if split:
        arguments.append("u32* workspace")
    if fused.bias:
        arguments.append("const unsigned short* bias")
    if fused.residual:
        arguments.append("const unsigned short* c, long long c_pitch")
    arguments.append("unsigned short* d, long long d_pitch")
    arguments += [f"float {name}" for name in ("alpha", "beta") if getattr(fused, name)]
    body = [
        "extern __shared__ float partials[];  // of every sum, one for each of PARTIALS warps",
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
        *_share(s),
        *_addresses(problem, s),
        *_loads(problem, s),
        "",
        *_stream(s),
        *_fused_inputs(problem, s),
        "",
        *_main_loop(),
        "",
        *_reduce(problem, s),
        *(_combine() if split else []),
        "",
        *_store(problem, s),
    ]
    return f"""\
extern "C" __global__ void __launch_bounds__(THREADS)
{entry}({("," + chr(10) + " " * (len(entry) + 1)).join(arguments)}) {{
{chr(10).join("  " + line if line else "" for line in body)}
}}"""


def _share(s: Schedule) -> list[str]:
    """Which outputs and which part of K are the CTA's."""
    if s.split_k == 1:
        return [
            "const int column = blockIdx.x * TILE_N;  // the first of the CTA's outputs",
            "const u32 first_block = 0, k_blocks = (k + TILE_K - 1) / TILE_K, k_end = k;",
        ]
    return [
        "const int tile = blockIdx.x / SPLIT_K, part = blockIdx.x % SPLIT_K;",
        "const int column = tile * TILE_N;  // the first of the CTA's outputs",
        "const u32 all_blocks = (k + TILE_K - 1) / TILE_K;",
        "const u32 first_block = all_blocks * part / SPLIT_K, k_blocks = all_blocks * (part + 1) / SPLIT_K;",
        "const u32 k_end = min((u32)k, k_blocks * TILE_K);",
    ]


def _addresses(problem: Problem, s: Schedule) -> list[str]:
    if gemv_tile(problem, s).k_major:
        return [
            "",
            "// A warp reads 256 elements of K of LOADS rows of B; PARTIALS warps side by side share these rows.",
            "const u32 first_k = warp % PARTIALS * 256 + lane * 8;",
            "const int first_row = warp / PARTIALS * LOADS;  // of the CTA's",
            "const unsigned short* rows[LOADS];",
            "#pragma unroll",
            "for (int i = 0; i < LOADS; ++i) rows[i] = b + min(column + first_row + i, n - 1) * b_pitch;",
        ]
    return [
        "",
        "// LANES threads read the CTA's columns of LOADS consecutive rows of B, others the rows that follow.",
        "const u32 first_k = threadIdx.x / LANES * LOADS;",
        "const unsigned short* const columns = b + min(column + (int)threadIdx.x % LANES * 8, n - 8);",
    ]


def _loads(problem: Problem, s: Schedule) -> list[str]:
    policy = ", once" if s.evict_first else ""
    source = "rows[i] + at" if gemv_tile(problem, s).k_major else "columns + (at + i) * b_pitch"
    return [
        *(["const u64 once = evict_first();"] if s.evict_first else []),
        "auto load_slice = [&](uint4 (&slice)[LOADS], u32 block) {",
        "  const u32 at = block * TILE_K + first_k;",
        "  #pragma unroll",
        f"  for (int i = 0; i < LOADS; ++i) slice[i] = load_weights({source}, at < k_end{policy});",
        "};",
        "auto load_vectors = [&](Vector (&x)[VECTORS], u32 block) {",
        "  const u32 at = block * TILE_K + first_k;",
        "  #pragma unroll",
        "  for (int v = 0; v < VECTORS; ++v) x[v] = load_vector(a + min(v, m - 1) * a_pitch + at, at < k_end);",
        "};",
    ]


def _stream(s: Schedule) -> list[str]:
    """The first loads; with a dependent launch those of the weights may come before the wait."""
    fill = [
        "uint4 slices[STAGES][LOADS];",
        "#pragma unroll",
        "for (int i = 0; i < STAGES; ++i) load_slice(slices[i], first_block + i);",
    ]
    if not s.dependent_launch:
        return fill
    wait = "wait_for_dependencies();"
    order = [*fill, wait] if s.dependent_launch == "weights" else [wait, *fill]
    return ["launch_dependents();", *order]


def _fused_inputs(problem: Problem, s: Schedule) -> list[str]:
    """Loads of what the epilogue adds: they arrive while the main loop runs."""
    fused = problem.fused
    if not fused.bias and not fused.residual:
        return []
    names = ["bias"] * bool(fused.bias) + ["c"] * fused.residual
    lines = [f"float {', '.join(f'{name}_values[RESULTS]' for name in names)};", *_each_result(s)]
    lines.append("  const bool inside = at < VECTORS * TILE_N && vector < m && output < n;")
    if fused.bias:
        along = "output" if fusion.bias_axis(problem, s) == "column" else "vector"
        lines.append(f"  bias_values[i] = inside ? widen(bias[{along}]) : 0;")
    if fused.residual:
        lines.append(f"  c_values[i] = inside ? widen(c[{_place(s, 'c')}]) : 0;")
    return [*lines, "}"]


def _each_result(s: Schedule) -> list[str]:
    """The head of a loop over the thread's whole sums: consecutive threads have consecutive elements of D."""
    vector, output = "at / TILE_N", "at % TILE_N"
    if s.swap_ab:
        vector, output = "at % VECTORS", "at / VECTORS"
    return [
        "#pragma unroll",
        "for (int i = 0; i < RESULTS; ++i) {",
        "  const int at = threadIdx.x + i * THREADS;",
        f"  const int vector = {vector}, output = column + {output};",
    ]


def _place(s: Schedule, matrix: str) -> str:
    """The element of D, or of a matrix like it."""
    row, column = ("output", "vector") if s.swap_ab else ("vector", "output")
    return f"{row} * {matrix}_pitch + {column}"


def _main_loop() -> list[str]:
    return [
        "float sums[OUTPUTS][VECTORS] = {};",
        "Vector x[VECTORS], next[VECTORS];",
        "load_vectors(x, first_block);",
        "#pragma unroll 1",
        "for (u32 block = first_block; block < k_blocks; block += STAGES) {",
        "  #pragma unroll",
        "  for (int i = 0; i < STAGES; ++i) {  // what lies beyond the last block is zeros",
        "    load_vectors(next, block + i + 1);",
        "    multiply(sums, slices[i], x);",
        "    load_slice(slices[i], block + i + STAGES);",
        "    #pragma unroll",
        "    for (int v = 0; v < VECTORS; ++v) x[v] = next[v];",
        "  }",
        "}",
    ]


def _reduce(problem: Problem, s: Schedule) -> list[str]:
    """Sums of the lanes by shuffles, then of the warps through shared memory."""
    tile = gemv_tile(problem, s)
    if tile.k_major:
        first, lanes, place = 1, "lane == 0", "(warp % PARTIALS * VECTORS + v) * TILE_N + first_row + j"
    else:
        first, lanes, place = tile.lanes, "lane < LANES", "(warp * VECTORS + v) * TILE_N + lane * 8 + j"
    lines = [
        "#pragma unroll",
        "for (int j = 0; j < OUTPUTS; ++j) {",
        "  #pragma unroll",
        "  for (int v = 0; v < VECTORS; ++v) {",
    ]
    if first < 32:
        lines += [
            "    #pragma unroll",
            f"    for (int apart = 16; apart >= {'1' if first == 1 else 'LANES'}; apart /= 2)"
            " sums[j][v] += __shfl_xor_sync(0xffffffff, sums[j][v], apart);",
        ]
    guard = f"if ({lanes}) " if first < 32 else ""
    return [
        *lines,
        f"    {guard}partials[{place}] = sums[j][v];",
        "  }",
        "}",
        "__syncthreads();",
        "float results[RESULTS];",
        *_each_result(s)[:3],
        "  results[i] = 0;",
        "  if (at < VECTORS * TILE_N) {",
        "    #pragma unroll",
        f"    for (int part = 0; part < PARTIALS; ++part)"
        f" results[i] += partials[part * VECTORS * TILE_N + {_partial(s)}];",
        "  }",
        "}",
    ]


def _partial(s: Schedule) -> str:
    """Where a sum lies among those of a warp, which are in the order of vectors, then outputs."""
    return "at % VECTORS * TILE_N + at / VECTORS" if s.swap_ab and s.tile_m > 1 else "at"


def _combine() -> list[str]:
    """The last CTA of a tile to arrive adds the sums of all, in their order."""
    return [
        "",
        "// Every CTA keeps its sums in a slot of the workspace. The last of a tile to arrive adds them, always in",
        "// the same order; the counter of arrivals is zero again afterwards.",
        "const long long tiles = gridDim.x / SPLIT_K;",
        f"float* const slots = (float*)((char*)workspace + (tiles * 4 + {FLAG_ALIGNMENT - 1})"
        f" / {FLAG_ALIGNMENT} * {FLAG_ALIGNMENT});",
        "float* const first_slot = slots + (long long)tile * SPLIT_K * VECTORS * TILE_N;",
        "#pragma unroll",
        "for (int i = 0; i < RESULTS; ++i) {",
        "  const int at = threadIdx.x + i * THREADS;",
        "  if (at < VECTORS * TILE_N) first_slot[part * VECTORS * TILE_N + at] = results[i];",
        "}",
        "device_fence();",
        "__syncthreads();",
        "__shared__ bool last;",
        "if (threadIdx.x == 0) {",
        "  last = arrive_global(workspace + tile) == SPLIT_K - 1;",
        "  if (last) workspace[tile] = 0;",
        "}",
        "__syncthreads();",
        "if (!last) return;",
        "device_fence();",
        "#pragma unroll",
        "for (int i = 0; i < RESULTS; ++i) {",
        "  const int at = threadIdx.x + i * THREADS;",
        "  if (at < VECTORS * TILE_N) {",
        "    float parts[SPLIT_K];  // loaded together, then added",
        "    #pragma unroll",
        "    for (int p = 0; p < SPLIT_K; ++p) parts[p] = load_float(first_slot + p * VECTORS * TILE_N + at);",
        "    results[i] = 0;",
        "    #pragma unroll",
        "    for (int p = 0; p < SPLIT_K; ++p) results[i] += parts[p];",
        "  }",
        "}",
    ]


def _store(problem: Problem, s: Schedule) -> list[str]:
    fused = problem.fused
    result = "alpha * results[i]" if fused.alpha else "results[i]"
    if fused.bias:
        result += " + bias_values[i]"
    if fused.activation:
        result = f"activation({result})"
    if fused.residual:
        result += f" + {'beta * ' * fused.beta}c_values[i]"
    return [
        *_each_result(s),
        "  if (at >= VECTORS * TILE_N || vector >= m || output >= n) continue;",
        f"  d[{_place(s, 'd')}] = (unsigned short)pack({result}, 0);",
        "}",
    ]
