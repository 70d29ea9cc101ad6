"""`tileseek.matmul` on a GPU: right values for any shape and layout, and refusals that say what is valid."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from tileseek.heuristics.query import Choice
from tileseek.space import H200, BadInput, Problem, Schedule, violations

import tileseek

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def matrix(torch: Any, rows: int, columns: int, dtype: str = "bfloat16") -> Any:
    return torch.randn(rows, columns, device="cuda", dtype=getattr(torch, dtype))


def operands(torch: Any, layout: str, m: int, n: int, k: int, dtype: str = "bfloat16") -> tuple[Any, Any]:
    a = matrix(torch, m, k, dtype) if layout[0] == "n" else matrix(torch, k, m, dtype).T
    b = matrix(torch, k, n, dtype) if layout[1] == "n" else matrix(torch, n, k, dtype).T
    return a, b


def assert_right(d: Any, a: Any, b: Any) -> None:
    expected = a.double() @ b.double()
    assert d.shape == expected.shape
    assert ((d.double() - expected).norm() / expected.norm()) < 0.003


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize(("m", "n", "k"), [(1024, 2048, 512), (264, 1000, 72)])
def test_every_layout(torch: Any, layout: str, dtype: str, m: int, n: int, k: int) -> None:
    a, b = operands(torch, layout, m, n, k, dtype)
    for _ in range(2):
        assert_right(tileseek.matmul(a, b), a, b)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 8), (17, 6144, 4096), (1000, 1000, 72), (16, 8, 65536)])
def test_odd_shapes(torch: Any, m: int, n: int, k: int) -> None:
    a, b = operands(torch, "nt", m, n, k)
    assert_right(tileseek.matmul(a, b), a, b)


def test_one_column_or_row_takes_the_layout_that_has_kernels(torch: Any) -> None:
    """K = 1 is contiguous both ways, and only m- and n-major rows are multiples of 16 bytes."""
    a, b = matrix(torch, 64, 1), matrix(torch, 1, 128)
    assert_right(tileseek.matmul(a, b), a, b)


def test_out_and_streams(torch: Any) -> None:
    a, weight = matrix(torch, 512, 1024), matrix(torch, 2048, 1024)
    out = torch.full((512, 2048), float("nan"), device="cuda", dtype=torch.bfloat16)
    assert tileseek.matmul(a, weight.T, out=out) is out
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = tileseek.matmul(a, weight.T)
    stream.synchronize()
    assert torch.equal(out, other)


SPLIT = Problem(64, 1280, 8192)
SCHEDULES = [
    "coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_slots",
    "coop1_64x64x128_s5_w0_c1x1_tile_rm1_reg0-0_tma16x2_k4_atomic",
    "coop1_64x64x128_s5_w0_c1x1_pall_rm1_reg0-0_tma16x2_sk_slots",
]


@pytest.fixture(params=SCHEDULES)
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The query answers with a schedule that needs a workspace."""
    module = importlib.import_module("tileseek.matmul")
    schedule = Schedule.parse(request.param)
    assert schedule.workspace and not violations(SPLIT, schedule, H200)
    monkeypatch.setattr(module, "best_schedule", lambda problem, device: Choice(problem, device, schedule, "", 1, None))
    caches = (module._kernel, module._workspace, module._bound)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_a_workspace_serves_call_after_call_and_every_stream(torch: Any, split: None) -> None:
    a, b = operands(torch, "nt", SPLIT.m, SPLIT.n, SPLIT.k)
    for _ in range(50):
        d = tileseek.matmul(a, b)
    assert_right(d, a, b)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(tileseek.matmul(a, b))
    torch.cuda.synchronize()
    for d in results:
        assert_right(d, a, b)


def test_graphs(torch: Any, split: None) -> None:
    a, b = operands(torch, "nt", SPLIT.m, SPLIT.n, SPLIT.k)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BadInput, match="valid is a call before"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        tileseek.matmul(a, b)
    tileseek.matmul(a, b)
    with torch.cuda.graph(graph):
        first = tileseek.matmul(a, b)
        second = tileseek.matmul(a, b)
    for _ in range(3):
        a.normal_()
        graph.replay()
        assert_right(first, a, b)
        assert_right(second, a, b)
    assert_right(tileseek.matmul(a, b), a, b)


FP8 = ("float8_e4m3fn", "float8_e5m2")


def eight_bits(torch: Any, m: int, n: int, k: int, dtype: str) -> tuple[Any, Any]:
    """Integers, so that sums are exact in tensor cores too: `a` [m, k] and `b` [k, n], both contiguous along k."""
    a, b = (torch.randint(-2, 3, shape, device="cuda").float().to(getattr(torch, dtype)) for shape in ((m, k), (n, k)))
    return a, b.T


@pytest.mark.parametrize("accumulate", ["fast", "promoted"])
@pytest.mark.parametrize("out_dtype", [None, "float16", "float32", "float8_e4m3fn"])
@pytest.mark.parametrize("dtype", FP8)
def test_eight_bits_are_right_to_the_bit(torch: Any, dtype: str, out_dtype: str | None, accumulate: str) -> None:
    a, b = eight_bits(torch, 257, 720, 1040, dtype)
    out = None if out_dtype is None else getattr(torch, out_dtype)
    d = tileseek.matmul(a, b, out_dtype=out, accumulate=accumulate)
    assert d.dtype == (out or torch.bfloat16)
    exact = (a.float() @ b.float()).clamp(-448, 448) if out_dtype == FP8[0] else a.float() @ b.float()
    assert torch.equal(d.float(), exact.to(d.dtype).float())


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", ["none", "number", "vector"])
@pytest.mark.parametrize("columns", ["none", "number", "vector"])
def test_scales_are_right_to_the_bit(torch: Any, rows: str, columns: str, out_dtype: str) -> None:
    m, n, k = 257, 720, 1040
    a, b = eight_bits(torch, m, n, k, FP8[0])

    def powers(kind: str, *shape: int) -> Any:
        if kind == "none":
            return None
        exponents = torch.randint(-2, 3, shape if kind == "vector" else (), device="cuda")
        return torch.exp2(exponents.float())

    scale_a, scale_b = powers(rows, m, 1), powers(columns, n)
    bias = torch.randint(-2, 3, (n,), device="cuda").to(getattr(torch, out_dtype))
    d = tileseek.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=bias.dtype)
    exact = a.float() @ b.float()
    exact *= 1 if scale_a is None else scale_a
    exact *= 1 if scale_b is None else scale_b
    assert torch.equal(d, (exact + bias).to(d.dtype))


@pytest.mark.parametrize(("k", "accumulate", "most"), [(8192, "fast", 6e-3), (8192, "promoted", 7e-4)])
def test_sums_have_the_precision_that_is_asked_for(torch: Any, k: int, accumulate: str, most: float) -> None:
    a, b = (torch.randn(shape, device="cuda").to(torch.float8_e4m3fn) for shape in ((512, k), (1024, k)))
    d = tileseek.matmul(a, b.T, accumulate=accumulate, out_dtype=torch.float32)
    exact = a.double() @ b.double().T
    assert (d - exact).norm() / exact.norm() < most


def test_refusals_of_eight_bits(torch: Any) -> None:
    a, b = eight_bits(torch, 64, 256, 128, FP8[0])
    number, vector = torch.ones((), device="cuda"), torch.ones(64, device="cuda")
    for arguments, message in (
        ({"b": b.T.contiguous().T.contiguous()}, "layout nn of fp8: valid is nt"),
        ({"scale_a": vector.double()}, "scale_a is 64 of torch.float64"),
        ({"scale_b": vector}, r"scale_b is 64 of .*: valid is one number, \[256\] or \[1, 256\]"),
        ({"scale_a": number.cpu()}, "scale_a is a scalar of .* on cpu"),
        ({"out_dtype": torch.float64}, "out_dtype is torch.float64: valid are bfloat16"),
        ({"accumulate": "exact"}, "accumulate is 'exact': valid are fast, promoted"),
        ({"bias": torch.ones(256, device="cuda")}, "of torch.bfloat16"),
    ):
        with pytest.raises(BadInput, match=message):
            tileseek.matmul(**{"a": a, "b": b, **arguments})


def test_what_is_fused(torch: Any) -> None:
    m, n, k = 264, 1040, 512
    a, weight = matrix(torch, m, k), matrix(torch, n, k) / k**0.5
    bias, residual = torch.randn(n, device="cuda", dtype=a.dtype), matrix(torch, m, n // 2)
    aux = torch.full((m, n), float("nan"), device="cuda", dtype=a.dtype)
    d = tileseek.matmul(
        a, weight.T, alpha=0.5, bias=bias, activation="silu", gated=True, residual=residual, beta=-2.0, aux=aux
    )
    before = 0.5 * (a.double() @ weight.double().T) + bias.double()
    gate, up = before.chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up - 2 * residual.double()
    assert d.shape == (m, n // 2)
    for got, exact in ((d, expected), (aux, before)):
        assert ((got.double() - exact).norm() / exact.norm()) < 0.003
    assert torch.equal(tileseek.matmul(a, weight.T, alpha=3), tileseek.matmul(a, weight.T, alpha=3.0))
    for arguments, message in (
        ({"beta": 2.0}, "beta is 2.0 without a residual"),
        ({"alpha": "x"}, "alpha is 'x'"),
        ({"aux": aux}, "valid is aux before an activation"),
        ({"activation": "relu", "aux": aux[:, 8:]}, "aux is"),
        ({"gated": True, "residual": matrix(torch, m, n)}, f"valid is {m} x {n // 2}"),
    ):
        with pytest.raises(BadInput, match=message):
            tileseek.matmul(a, weight.T, **arguments)


def test_refusals(torch: Any) -> None:
    a, b = matrix(torch, 64, 128), matrix(torch, 256, 128).T
    for arguments, message in (
        ((a.cpu(), b.cpu()), "on a CUDA device"),
        ((a.float(), b.float()), "valid is a matrix of bfloat16, float16, float8_e4m3fn, float8_e5m2"),
        ((a, b.half()), "of one dtype"),
        ((a, b[:64]), "valid are M x K and K x N"),
        ((a[None, None], b), "valid is a matrix"),
        ((a[None].expand(2, -1, -1), b[None].expand(3, -1, -1)), "equal batches"),
        ((a[:, ::2], b[::2]), "strides"),
        ((a.clone().requires_grad_(), b), "no_grad"),
    ):
        with pytest.raises(BadInput, match=message):
            tileseek.matmul(*arguments)
    for out in (a, torch.empty(64, 256, device="cuda"), torch.empty(256, 64, device="cuda", dtype=a.dtype).T):
        with pytest.raises(BadInput, match=r"out (is|has)"):
            tileseek.matmul(a, b, out=out)
