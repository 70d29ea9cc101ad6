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


def test_refusals(torch: Any) -> None:
    a, b = matrix(torch, 64, 128), matrix(torch, 256, 128).T
    for arguments, message in (
        ((a.cpu(), b.cpu()), "on a CUDA device"),
        ((a.float(), b.float()), "bfloat16 or float16"),
        ((a, b.half()), "of one dtype"),
        ((a, b[:64]), "valid are M x K and K x N"),
        ((a[None], b), "valid is a matrix"),
        ((a[:, ::2], b[::2]), "strides"),
        ((a[:0], b), "m is 0"),
        ((matrix(torch, 64, 100), matrix(torch, 256, 100).T), "valid are multiples of 16 bytes"),
        ((a.requires_grad_(), b), "no_grad"),
    ):
        with pytest.raises(BadInput, match=message):
            tileseek.matmul(*arguments)
    a = a.detach()
    for out in (a, torch.empty(64, 256, device="cuda"), torch.empty(256, 64, device="cuda", dtype=a.dtype).T):
        with pytest.raises(BadInput, match="out is"):
            tileseek.matmul(a, b, out=out)
    shifted = torch.empty(64 * 128 + 1, device="cuda", dtype=a.dtype)[1:].view(64, 128)
    with pytest.raises(BadInput, match="a starts at"):
        tileseek.matmul(shifted, b)
