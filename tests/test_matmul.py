"""`tileseek.matmul` on a GPU: right values for any shape, and refusals that say what is valid."""

from __future__ import annotations

from typing import Any

import pytest
from tileseek.space import BadInput

import tileseek

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def matrix(torch: Any, rows: int, columns: int, dtype: str = "bfloat16") -> Any:
    return torch.randn(rows, columns, device="cuda", dtype=getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("m", "n", "k"), [(4096, 4096, 4096), (1, 8, 8), (17, 6144, 4096), (1000, 1000, 72)])
def test_values(torch: Any, dtype: str, m: int, n: int, k: int) -> None:
    a, weight = matrix(torch, m, k, dtype), matrix(torch, n, k, dtype)
    expected = a.float() @ weight.T.float()
    for _ in range(2):
        error = (tileseek.matmul(a, weight.T).float() - expected).norm() / expected.norm()
        assert error < 0.01


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


def test_refusals(torch: Any) -> None:
    a, b = matrix(torch, 64, 128), matrix(torch, 256, 128).T
    for arguments, message in (
        ((a.cpu(), b.cpu()), "on a CUDA device"),
        ((a.float(), b.float()), "bfloat16 or float16"),
        ((a, b.half()), "of one dtype"),
        ((a, b[:64]), "valid are M x K and K x N"),
        ((a[None], b), "valid is a matrix"),
        ((a[:, ::2], b[::2]), "strides"),
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
