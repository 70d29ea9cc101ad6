"""Measuring without a GPU: statistics, tolerances, plausibility, and the supervisor with a simulated GPU in real
processes."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from fake_gpu import REFERENCE_US, FakeSample
from tileseek.measure import check, lock, scoring
from tileseek.measure.library import LibraryCall, cublaslt_call, torch_call
from tileseek.measure.operands import set_count
from tileseek.measure.policy import FINAL, POLICIES, SCREEN
from tileseek.measure.results import RATIOS, STATUSES, Candidate, Result
from tileseek.measure.roofline import floor_us, roofline_us
from tileseek.measure.stats import estimate, geomean, interval_rank, paired
from tileseek.measure.supervisor import MeasureError, Measurer
from tileseek.space import (
    DTYPE_BYTES,
    H200,
    LAYOUTS,
    OUT_DTYPE_BYTES,
    BadInput,
    Problem,
    Schedule,
    nearest,
    unsupported,
    violations,
)
from tileseek.space.rules import SPLIT_K, TILE_K

SCHEDULE = Schedule.parse("coop2_128x256x64_s4_w0_c2x1_pall_rm8_reg40-232_tma64x2")
PROBLEM = Problem(512, 512, 512)
QUICK = replace(SCREEN, timeout_s=1.0)


# ---- statistics


def test_estimate_is_the_median_with_an_interval_of_order_statistics() -> None:
    values = [float(value) for value in range(25)]
    result = estimate(values[::-1])
    assert (result.median, result.low, result.high) == (12.0, 7.0, 17.0)


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (2, 0), (5, 0), (6, 0), (9, 1), (25, 7), (100, 39)])
def test_interval_rank_is_that_of_the_binomial_tables(count: int, rank: int) -> None:
    assert interval_rank(count) == rank


def test_interval_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = rng.lognormal(size=(4000, 25))
    held = 0
    for row in samples:
        result = estimate(row.tolist())
        held += result.low <= 1.0 <= result.high
    assert 0.945 <= held / len(samples) <= 0.97


def test_paired_ratio_cancels_a_drift_that_both_see() -> None:
    drift = [1.0, 1.1, 0.9, 1.3]
    ratios = paired([2.0 * d for d in drift], [1.0 * d for d in drift])
    assert ratios == pytest.approx([2.0] * 4)
    assert paired([1.0, None, 3.0], [1.0, 2.0, None]) == [1.0]


def test_geomean() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([]) == 0.0


# ---- plausibility and operands


def test_floor_is_the_tensor_peak_or_the_memory_peak() -> None:
    square, skinny = Problem(8192, 8192, 8192), Problem(16, 57344, 8192)
    assert floor_us(square, H200) == pytest.approx(2 * 8192**3 / (132 * 4096 * 1980e6) * 1e6)
    assert floor_us(skinny, H200) == pytest.approx(skinny.bytes / 4.8e12 * 1e6)
    # Measured on an H200: 1546.6 us at 1338 MHz, and 217.7 us. Neither may be refused.
    assert floor_us(square, H200) < 1546.6
    assert floor_us(skinny, H200) < 217.7
    assert roofline_us(square, H200, 1338) == pytest.approx(1520, rel=0.01)


@pytest.mark.parametrize("size", [(16, 1280, 8192), (1000, 1000, 1000), (8192, 8192, 8192)])
def test_operand_sets_exceed_three_times_the_l2(size: tuple[int, int, int]) -> None:
    problem = Problem(*size)
    sets = set_count(problem, H200, 3.0)
    assert sets >= 2
    assert sets * problem.bytes > 3 * H200.l2_bytes


def test_policies_have_keys_that_see_every_field() -> None:
    assert len({policy.key for policy in POLICIES.values()}) == len(POLICIES)
    assert replace(SCREEN, rounds=6).key != SCREEN.key
    assert FINAL.slot(1350.0) == 25.0
    assert FINAL.slot(1850.0) == 4.0


# ---- tolerances: the planted bugs that a check must catch


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """x rounded to nearest even in `dtype`, as float32."""
    x = x.astype(np.float32)
    if dtype == "fp16":
        return x.astype(np.float16).astype(np.float32)
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


class Product:
    """N(0, 1) operands in `dtype`, and their exact product."""

    def __init__(self, dtype: str, k: int) -> None:
        rng = np.random.default_rng(k)
        self.dtype, self.k = dtype, k
        self.a = rounded(rng.standard_normal((96, k)), dtype)
        self.b = rounded(rng.standard_normal((k, 80)), dtype)
        self.exact = (self.a.astype(np.float64) @ self.b.astype(np.float64)).astype(np.float32)

    def right(self, d: np.ndarray, allowed: check.Tolerance | None = None) -> bool:
        allowed = allowed or check.tolerance(Problem(96, 80, self.k, self.dtype))
        parts = []
        for rows in check.row_slices(*d.shape, elements=1000):
            worst, error, size = check.errors(d[rows], self.exact[rows], allowed)
            parts.append((float(worst), float(error), float(size)))
        return check.verdict(parts, allowed).right

    def summed(self, step: int, dtype: str | None) -> np.ndarray:
        """The product as a sum over chunks of K, the running sum rounded to `dtype`."""
        total = np.zeros_like(self.exact)
        for start in range(0, self.k, step):
            total = total + self.a[:, start : start + step] @ self.b[start : start + step]
            total = rounded(total, dtype) if dtype else total
        return total


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("k", [64, 1000, 4096, 32768])
def test_a_right_product_passes(dtype: str, k: int) -> None:
    product = Product(dtype, k)
    assert product.right(rounded(product.exact, dtype))
    assert product.right(rounded(product.summed(16, None), dtype))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("k", [64, 1000, 4168, 16904])
def test_planted_bugs_are_caught(dtype: str, k: int) -> None:
    product = Product(dtype, k)
    right = rounded(product.exact, dtype)
    never = np.full_like(right, np.nan)
    one_left = right.copy()
    one_left[17, 3] = np.nan
    edge = right.copy()
    edge[-1, :] = right[-2, :]
    bugs = {
        "never written": never,
        "one element never written": one_left,
        "zeros": np.zeros_like(right),
        "skips the last 8 of K": rounded(product.a[:, :-8] @ product.b[:-8], dtype),
        "last row is another": edge,
        "accumulates in the output dtype": rounded(product.summed(16, dtype), dtype),
        "adds two rounded halves": rounded(product.summed(k // 2, dtype), dtype),
    }
    assert [name for name, d in bugs.items() if product.right(d)] == []


@pytest.mark.parametrize("k", [1024, 16384])
def test_a_library_may_add_many_rounded_parts_and_not_compute_something_else(k: int) -> None:
    product = Product("bf16", k)
    allowed = check.library_tolerance(Problem(96, 80, k, "bf16"))
    step = k // 64
    parts = [product.a[:, start : start + step] @ product.b[start : start + step] for start in range(0, k, step)]
    total = np.zeros_like(product.exact)
    for part in parts:
        total = rounded(total + rounded(part, "bf16"), "bf16")
    assert not product.right(total)
    assert product.right(total, allowed)
    for wrong in (product.exact[::-1], np.roll(product.exact, 1, axis=1), 1.05 * product.exact, total - parts[0]):
        assert not product.right(rounded(wrong, "bf16"), allowed)


def e4m3(x: np.ndarray) -> np.ndarray:
    """x rounded to e4m3."""
    _, exponent = np.frexp(x)
    unit = np.exp2(np.maximum(exponent - 1, -6) - 3)
    return np.clip(np.rint(x / unit) * unit, -448, 448)


def short(terms: np.ndarray) -> np.ndarray:
    """Sums over the last axis as Hopper's tensor cores add 8-bit products: 13 bits after the leading one of the
    largest, truncated."""

    def truncated(x: np.ndarray, largest: np.ndarray) -> np.ndarray:
        unit = np.exp2(np.frexp(largest)[1] - 14)
        return np.trunc(x / unit) * unit

    total = truncated(terms, abs(terms).max(-1, keepdims=True)).sum(-1)
    return truncated(total, abs(total))


def summed_shortly(a: np.ndarray, b: np.ndarray, promoted: int = 0) -> np.ndarray:
    """Rows of a times rows of b, 32 of k at a time, added up outside of the tensor cores every `promoted`."""
    total, running = np.zeros(len(a)), np.zeros(len(a))
    for k in range(0, a.shape[1], 32):
        running = short(np.concatenate([running[:, None], a[:, k : k + 32] * b[:, k : k + 32]], axis=1))
        if promoted and (k + 32) % promoted == 0:
            total, running = total + running, np.zeros(len(a))
    return total + running


@pytest.mark.parametrize("k", [128, 4096])
def test_short_sums_meet_the_tolerance_of_their_kind(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = e4m3(rng.standard_normal((200, k))), e4m3(rng.standard_normal((200, k)))
    exact = (a * b).sum(1)

    def right(d: np.ndarray, accumulate: str) -> bool:
        problem = Problem(200, 16, k, "fp8", out_dtype="fp32", accumulate=accumulate)
        allowed = check.tolerance(problem)
        return check.verdict([tuple(map(float, check.errors(d, exact, allowed)))], allowed).right

    fast, promoted = summed_shortly(a, b), summed_shortly(a, b, 128)
    assert right(fast, "fast")
    assert right(promoted, "promoted")
    assert right(fast, "promoted") == (k == 128), "a precision that is not there"
    assert not right(exact - (a * b)[:, -64:].sum(1), "fast"), "the last 64 of K left out"


@pytest.mark.parametrize(
    ("problem", "call"),
    [
        (Problem(64, 64, 64), LibraryCall("bf16", "bf16")),
        (Problem(64, 64, 64, out_dtype="fp32", layout="tn"), LibraryCall("bf16", "fp32")),
        (Problem(64, 64, 64, "fp16", out_dtype="bf16"), LibraryCall("fp16", "fp32")),
        (Problem(64, 64, 64, epilogue="scale_m"), LibraryCall("bf16", "bf16")),
        (Problem(64, 64, 64, "fp8"), LibraryCall("fp8", "bf16")),
        (Problem(64, 64, 64, "fp8", out_dtype="fp8", epilogue="scale"), LibraryCall("fp8", "fp8", ("scale",))),
        (Problem(64, 64, 64, "fp8", out_dtype="fp8", epilogue="relu"), LibraryCall("fp8", "bf16")),
        (Problem(64, 64, 64, "fp8", epilogue="scale_n+bias"), LibraryCall("fp8", "bf16", ("scale_n",))),
        (Problem(64, 64, 64, "fp8", out_dtype="fp16", epilogue="scale_n"), LibraryCall("fp8", "fp16")),
        (Problem(64, 64, 64, "fp8", epilogue="scale+scale_m"), LibraryCall("fp8", "bf16", ("scale",))),
        (Problem(64, 72, 64, "fp8"), LibraryCall("bf16", "bf16")),
        (Problem(64, 64, 64, "fp8", batch=2), LibraryCall("bf16", "bf16")),
        (Problem(64, 64, 64, "fp8_e5m2", out_dtype="fp16"), LibraryCall("bf16", "fp32")),
    ],
    ids=lambda value: value.key if isinstance(value, Problem) else "",
)
def test_what_torch_computes_in_one_call(problem: Problem, call: LibraryCall) -> None:
    assert torch_call(problem) == call
    if problem.dtype == "fp8":
        assert cublaslt_call(problem).operands == "fp8"
        assert not cublaslt_call(replace(problem, batch=3, epilogue="scale_m+scale_n")).scales


def test_the_first_wrong_element_is_named() -> None:
    product = Product("bf16", 64)
    d = rounded(product.exact, "bf16")
    allowed = check.tolerance(Problem(8, 8, 64))
    assert check.wrong_elements(d, product.exact, allowed) == (0, -1, -1)
    d[17, 3] = np.nan
    d[90, 0] += 50
    assert check.wrong_elements(d, product.exact, allowed) == (2, 17, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile_k", TILE_K)
def test_every_split_of_k_has_a_companion(layout: str, tile_k: int) -> None:
    problem = Problem(64, 1280, 32768, layout=layout)
    for split_k in SPLIT_K[1:]:
        split = Schedule("coop", 1, 64, 64, tile_k, 2, epilogue_n=32, split_k=split_k, reduction="slots")
        assert not violations(problem, split, H200)
        assert any(-(-companion.k // tile_k) >= split_k for companion in check.companions(problem, split, H200))


@pytest.mark.parametrize("out_dtype", ["bf16", "fp16", "fp32", "fp8"])
@pytest.mark.parametrize(("dtype", "layout"), [("fp8", "nt"), ("fp8_e5m2", "nt"), ("bf16", "nn"), ("fp16", "tt")])
def test_companions_are_aligned_to_their_elements_and_no_more(dtype: str, layout: str, out_dtype: str) -> None:
    problem = Problem(4096, 4096, 8192, dtype, layout, out_dtype=out_dtype)
    if any(unsupported(problem, H200)):
        pytest.skip("has no kernel")
    split = nearest({"tile_m": 64, "tile_n": 64, "tile_k": 128, "split_k": 64, "reduction": "slots"}, problem, H200)
    found = check.companions(problem, split, H200)
    assert any(-(-companion.k // split.tile_k) >= split.split_k == 64 for companion in found)
    every = check.companions(problem, nearest({"split_k": 1}, problem, H200), H200)
    assert len(every) == len(check.COMPANION_SIZES)
    for companion in every:
        rows = companion.n * min(OUT_DTYPE_BYTES[out_dtype], DTYPE_BYTES[dtype] if layout[1] == "n" else 16)
        assert rows % 16 == 0 and rows // 16 % 2 == 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("split_k", [2, 5, 16, 64])
def test_a_companion_shows_mistakes_of_a_split_to_the_bit(dtype: str, split_k: int) -> None:
    """Integers: the right sum of parts is exact in any order, and a wrong one has other bits somewhere."""
    m, n, k = check.COMPANION_SIZES[2]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    ends = [64 * (-(-k // 64) * part // split_k) for part in range(split_k)] + [k]
    parts = [a[:, i:j] @ b[i:j] for i, j in itertools.pairwise(ends)]
    exact = rounded(a @ b, dtype)
    assert np.array_equal(rounded(np.sum(parts[::-1], axis=0), dtype), exact)
    tail = a[:, -8:] @ b[-8:]
    bugs = {
        "skips the tail of K": np.sum(parts, axis=0) - tail,
        "adds the tail of K twice": np.sum(parts, axis=0) + tail,
        "loses a part": np.sum(parts[:-1], axis=0),
        "adds a part twice": np.sum([*parts, parts[0]], axis=0),
    }
    assert [name for name, d in bugs.items() if np.array_equal(rounded(d, dtype), exact)] == []


def test_companions_are_valid_and_no_tile_divides_them() -> None:
    found = check.companions(Problem(16, 4096, 4096, dtype="fp16"), SCHEDULE, H200)
    assert len(found) == 4
    assert all(not violations(companion, SCHEDULE, H200) and companion.dtype == "fp16" for companion in found)
    for m, n, k in check.COMPANION_SIZES[:2]:
        assert m % 64 and n % 16 and k % 64
    # More tiles than SMs, even of the largest.
    m, n, _ = check.COMPANION_SIZES[0]
    assert -(-m // 256) * -(-n // 256) > H200.sm_count


# ---- from samples to results


def field(reference: list[FakeSample], best: list[FakeSample]) -> scoring.Field:
    return scoring.Field(Problem(4096, 4096, 4096), H200, {"cublas": reference, "cublaslt1": best}, 4.0)


def test_score_pairs_rounds_in_time_and_in_cycles() -> None:
    clocks = [1300.0, 1400.0, 1350.0, 1250.0, 1320.0]
    # The same cycles take less time at a higher clock; the candidate needs 5 % fewer.
    reference = [FakeSample(270_000 / mhz, mhz) for mhz in clocks]
    best = [FakeSample(261_000 / mhz, mhz) for mhz in clocks]
    own = [FakeSample(0.95 * 270_000 / mhz, mhz) for mhz in clocks]
    result = scoring.score(field(reference, best), Candidate(SCHEDULE, b"", "k", 168), 1000, {}, own)
    assert result.correct
    assert result.power_limited
    assert result.ratio_to_ref == pytest.approx(1 / 0.95)
    assert result.ratio_cycles == pytest.approx(1 / 0.95)
    assert result.best == "cublaslt1"
    assert result.ratio_cycles_best == pytest.approx(261 / 270 / 0.95)
    assert set(result.ci95) == {*RATIOS, "median_us"}
    assert result.ci95["median_us"] == (min(result.times_us), max(result.times_us))
    assert result.median_cycles == pytest.approx(0.95 * 270_000)
    assert result.to_json()["ci95"]["ratio_cycles"] == pytest.approx([1 / 0.95] * 2, rel=1e-5), "six digits"


def test_the_best_reference_may_be_the_default() -> None:
    own = [FakeSample(300.0)] * 5
    result = scoring.score(
        field([FakeSample(280.0)] * 5, [FakeSample(290.0)] * 5), Candidate(SCHEDULE, b"", "k", 168), 0, {}, own
    )
    assert (result.best, result.best_us) == ("cublas", 280.0)


def test_a_contestant_that_sat_out_is_paired_with_the_rounds_it_took() -> None:
    reference = [FakeSample(us) for us in (100.0, 200.0, 300.0, 400.0)]
    own = [FakeSample(200.0), None, FakeSample(600.0), None]
    result = scoring.score(field(reference, reference), Candidate(SCHEDULE, b"", "k", 168), 0, {}, own)
    assert (result.times_us, result.rounds) == ((200.0, 600.0), (0, 2))
    assert result.ratio_to_ref == pytest.approx(0.5)


# ---- the supervisor


def candidates(*behaviours: str) -> list[Candidate]:
    return [Candidate(SCHEDULE, b"cubin", behaviour, 168) for behaviour in behaviours]


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(backend="fake_gpu:FakeGpu", uuid=f"FAKE-{os.getpid()}") as measurer:
        yield measurer


def test_results_come_in_order_and_as_they_are_known(measurer: Measurer) -> None:
    seen: list[Result] = []
    results = measurer.measure(PROBLEM, candidates("fine", "fast", "wrong"), QUICK, seen.append)
    assert [result.status for result in results] == ["correct", "correct", "correctness"]
    assert [len(result.times_us) for result in results] == [QUICK.rounds, QUICK.rounds, 0]
    assert results[1].ratio_to_ref == results[1].ratio_to_best == pytest.approx(2.0)
    assert sorted(map(id, seen)) == sorted(map(id, results))
    assert measurer.device is H200
    assert measurer.measure(PROBLEM, [], QUICK) == []


def test_every_failure_costs_one_candidate(measurer: Measurer) -> None:
    behaviours = ["fine", "abort", "exit", "fine", "lost", "hang", "odd", "lie", "wrong later", "fine", "fast"]
    start = time.monotonic()
    results = measurer.measure(PROBLEM, candidates(*behaviours), QUICK)
    expected = {
        "fine": "correct",
        "fast": "correct",
        "abort": "runtime",
        "exit": "runtime",
        "lost": "runtime",
        "odd": "runtime",
        "hang": "timeout",
        "lie": "implausible",
        "wrong later": "correctness",
    }
    assert [result.status for result in results] == [expected[behaviour] for behaviour in behaviours]
    assert all(result.status in STATUSES for result in results)
    by_behaviour = dict(zip(behaviours, results, strict=True))
    assert "signal 6" in by_behaviour["abort"].reason
    assert "ILLEGAL_ADDRESS" in by_behaviour["lost"].reason
    assert "something unforeseen" in by_behaviour["odd"].reason
    assert [results[index].median_us for index in (0, 3, 9)] == [REFERENCE_US] * 3
    assert time.monotonic() - start < 60


def test_a_crash_in_the_race_is_narrowed_down_to_one_candidate(measurer: Measurer) -> None:
    results = measurer.measure(PROBLEM, candidates("fine", "fine", "abort in the race", "fine"), QUICK)
    assert [result.status for result in results] == ["correct", "correct", "runtime", "correct"]
    # Verified once, by the first worker: what later workers timed was not verified again.
    assert len({result.check["verified_by"] for result in results if result.correct}) == 1


def test_a_problem_that_cannot_be_measured(measurer: Measurer) -> None:
    with pytest.raises(BadInput, match="m is 13"):
        measurer.measure(Problem(13, 512, 512), candidates("fine"), QUICK)
    results = measurer.measure(Problem(14, 512, 512), candidates("fine", "fast"), QUICK)
    assert [result.status for result in results] == ["memory", "memory"]
    results = measurer.measure(Problem(16, 512, 512), candidates("fine", "fast"), QUICK)
    assert [result.reason for result in results] == ["cuBLAS itself: 7 wrong elements"] * 2


def test_a_gpu_that_always_fails_ends_the_measurement(measurer: Measurer) -> None:
    with pytest.raises(MeasureError, match="prepare"):
        measurer.measure(Problem(15, 512, 512), candidates("fine"), QUICK)
    assert measurer.measure(PROBLEM, candidates("fine"), QUICK)[0].correct


def test_an_error_of_the_caller_leaves_a_measurer_that_works(measurer: Measurer) -> None:
    def fail(result: Result) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        measurer.measure(PROBLEM, candidates("fine", "fine"), QUICK, fail)
    assert measurer.measure(PROBLEM, candidates("fine"), QUICK)[0].correct


def test_the_lock_is_exclusive_and_released(measurer: Measurer) -> None:
    with pytest.raises(BadInput, match="another process"):
        Measurer(backend="fake_gpu:FakeGpu", uuid=measurer.uuid)
    uuid = f"FAKE-lock-{os.getpid()}"
    for _ in range(2):
        descriptor = lock.acquire(uuid)
        with pytest.raises(BadInput):
            lock.acquire(uuid)
        os.close(descriptor)
    lock.lock_path(uuid).unlink()


def test_a_worker_that_does_not_start_is_reported() -> None:
    with pytest.raises(MeasureError, match="no_such_module"):
        Measurer(backend="no_such_module:Backend", uuid=f"FAKE-none-{os.getpid()}")


_PARENT = """
import sys
from fake_gpu import FakeGpu
from test_measure import PROBLEM, QUICK, candidates
from dataclasses import replace
from tileseek.measure.supervisor import Measurer
measurer = Measurer(backend="fake_gpu:FakeGpu", uuid=sys.argv[1])
print(measurer.env["pid"], flush=True)
measurer.measure(PROBLEM, candidates("hang"), replace(QUICK, timeout_s=1000.0))
"""


def test_killing_the_parent_leaves_no_orphan_and_no_lock() -> None:
    uuid = f"FAKE-orphan-{os.getpid()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, uuid], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent:
        worker = int(parent.stdout.readline())
        with pytest.raises(BadInput):
            lock.acquire(uuid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(worker)
    os.close(lock.acquire(uuid))
    lock.lock_path(uuid).unlink()


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has reaped yet does not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False


# ---- what can be known of the GPU side without one


def test_structures_have_the_sizes_of_their_headers() -> None:
    from tileseek.measure.cublas import _HeuristicResult
    from tileseek.measure.nvml import _FieldValue, _Memory, _ProcessInfo

    assert ctypes.sizeof(_HeuristicResult) == 96
    assert ctypes.sizeof(_FieldValue) == 40
    assert ctypes.sizeof(_ProcessInfo) == ctypes.sizeof(_Memory) == 24


def test_the_clock_probe_compiles_and_a_clock_is_cycles_over_time() -> None:
    pytest.importorskip("cuda.bindings")
    from tileseek.codegen.nvrtc import compile_source
    from tileseek.measure.clock import MAX_SMS, PROBE_SOURCE, effective_mhz

    compilation = compile_source(PROBE_SOURCE)
    assert compilation.cubin, compilation.log
    start, end = np.zeros((MAX_SMS, 2), np.int64), np.zeros((MAX_SMS, 2), np.int64)
    start[:132] = [1000, 5000]
    end[:131] = [1000 + 1_350_000, 5000 + 1_000_000]  # one SM was not seen at the end
    assert effective_mhz(start, end) == pytest.approx(1350.0)
    with pytest.raises(RuntimeError, match="saw no SM"):
        effective_mhz(start, np.zeros_like(start))
