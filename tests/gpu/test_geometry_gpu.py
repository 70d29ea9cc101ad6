"""`tileseek.matmul` on views, batches, odd sizes and sizes beyond 2^31 elements, in a process of its own with a time
limit: a kernel that hangs costs its test."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

LAYOUTS = ("nt", "nn", "tn", "tt")


def in_a_child(name: str, *arguments: Any, seconds: float = 180.0) -> None:
    """Run a function of this module, which asserts what has to hold."""
    command = [sys.executable, __file__, name, json.dumps(arguments)]
    done = subprocess.run(command, timeout=seconds, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_view_of_any_size_is_right_to_the_bit(layout: str) -> None:
    in_a_child("views", layout, 10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_with_any_strides_are_right_to_the_bit(layout: str) -> None:
    in_a_child("batches", layout, 6)


def test_empty_matrices_give_what_torch_gives() -> None:
    in_a_child("empty")


@pytest.mark.parametrize("name", ["output_beyond_31_bits", "odd_output_beyond_31_bits", "operand_beyond_31_bits"])
def test_beyond_31_bits(name: str) -> None:
    in_a_child(name)


def test_gated_products_of_views_and_batches() -> None:
    in_a_child("gated")


# What the child runs.


def stored(torch: Any, rng: random.Random, rows: int, columns: int, row_major: bool, batch: int, what: str) -> Any:
    """A view of integers from -2 to 2, [rows, columns] or a batch, with odd strides and addresses as they come; `what`
    is `dense`, or `any`. The memory around it is NaN."""
    across, along = (columns, rows) if row_major else (rows, columns)
    pad, offset = (0, 0) if what == "dense" else (rng.choice((0, 1, 2, 4, 8)), rng.choice((0, 1, 2, 4, 8)))
    pitch = across + pad
    step = along * pitch + (0 if what == "dense" else rng.choice((0, 0, 1, 8)))
    memory = torch.full((offset + max(1, batch) * step + 64,), float("nan"), device="cuda", dtype=torch.bfloat16)
    shape, strides = (along, across), (pitch, 1)
    if batch:
        shape, strides = (batch, *shape), (step, *strides)
    view = memory.as_strided(shape, strides, offset)
    view.copy_(torch.randint(-2, 3, shape, device="cuda"))
    return view if row_major else view.mT


def check(torch: Any, a: Any, b: Any, out: Any, **extras: Any) -> None:
    """`matmul` into `out` is right to the bit, and nothing else of its memory changes."""
    import tileseek

    whole = out.as_strided((out.untyped_storage().nbytes() // 2,), (1,), 0)
    mask = torch.ones_like(whole, dtype=torch.bool)
    mask.as_strided(out.shape, out.stride(), out.storage_offset()).fill_(False)
    before = whole.view(torch.int16)[mask].clone()
    out.fill_(float("nan"))
    result = tileseek.matmul(a, b, out=out, **extras)
    assert result is out
    exact = torch.matmul(a.double(), b.double()) * extras.get("alpha", 1)
    if "bias" in extras:
        exact += extras["bias"].double()
    if extras.get("activation") == "relu":
        exact = exact.relu()
    if "residual" in extras:
        exact += extras["residual"].double() * extras.get("beta", 1)
    words = f"{tuple(a.shape)} {a.stride()} x {tuple(b.shape)} {b.stride()} -> {out.stride()} {[*extras]}"
    wrong = (out != exact.to(out.dtype)).sum().item()
    assert wrong == 0, f"{wrong} of {out.numel()} elements are wrong: {words}"
    assert torch.equal(whole.view(torch.int16)[mask], before), f"written outside: {words}"


def extras_of(torch: Any, rng: random.Random, m: int, n: int, batch: int) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if rng.random() < 0.5:
        axis = rng.choice(((n,), (m, 1)))
        extras["bias"] = torch.randint(-2, 3, axis, device="cuda").to(torch.bfloat16)
    if rng.random() < 0.3:
        extras["activation"] = "relu"
    if rng.random() < 0.5:
        extras["residual"] = stored(torch, rng, m, n, True, batch, rng.choice(("dense", "any")))
        extras["beta"] = rng.choice((1, -2))
    extras["alpha"] = rng.choice((1, 1, 2))
    return extras


def views(layout: str, count: int) -> None:
    import torch

    rng = random.Random(layout)
    for _ in range(count):
        m, n, k = (rng.choice((rng.randint(1, 300), rng.randint(1, 40))) for _ in range(3))
        what = rng.choice(("dense", "any", "any"))
        a = stored(torch, rng, m, k, layout[0] == "n", 0, what)
        b = stored(torch, rng, k, n, layout[1] == "n", 0, what)
        check(torch, a, b, stored(torch, rng, m, n, True, 0, what), **extras_of(torch, rng, m, n, 0))


def batches(layout: str, count: int) -> None:
    import torch

    rng = random.Random(f"batch {layout}")
    for i in range(count):
        m, n, k = (rng.randint(1, 300) for _ in range(3))
        batch = rng.randint(2, 7)
        what = ("dense", "any")[i % 2]
        if i % 3 == 0:
            m, n, k = (8 * -(-extent // 8) for extent in (m, n, k))
        shared = ("", "a", "b")[i // 2 % 3]
        a = stored(torch, rng, m, k, layout[0] == "n", 0 if shared == "a" else batch, what)
        b = stored(torch, rng, k, n, layout[1] == "n", 0 if shared == "b" else batch, what)
        check(torch, a, b, stored(torch, rng, m, n, True, batch, what), **extras_of(torch, rng, m, n, batch))
    a, b = stored(torch, rng, 24, 64, True, 0, "dense"), stored(torch, rng, 64, 40, True, 0, "dense")
    check(torch, a.expand(3, -1, -1), b.expand(3, -1, -1), stored(torch, rng, 24, 40, True, 3, "dense"))


def empty() -> None:
    import torch

    import tileseek

    bias = torch.ones(16, device="cuda", dtype=torch.bfloat16)
    for shape_a, shape_b in (
        ((0, 8), (8, 16)),
        ((8, 8), (8, 0)),
        ((4, 0), (0, 16)),
        ((0, 4, 8), (8, 16)),
        ((2, 4, 0), (0, 16)),
    ):
        a, b = (torch.ones(shape, device="cuda", dtype=torch.bfloat16) for shape in (shape_a, shape_b))
        assert torch.equal(tileseek.matmul(a, b), torch.matmul(a, b))
    a, b = torch.ones(4, 0, device="cuda", dtype=torch.bfloat16), torch.ones(0, 16, device="cuda", dtype=torch.bfloat16)
    residual = torch.full((4, 16), 3.0, device="cuda", dtype=torch.bfloat16)
    d = tileseek.matmul(a, b, bias=bias - 3, activation="relu", residual=residual)
    assert torch.equal(d, residual)
    aux = torch.empty(4, 16, device="cuda", dtype=torch.bfloat16)
    d = tileseek.matmul(a, b, bias=bias, activation="relu", gated=True, residual=residual[:, :8], beta=2.0, aux=aux)
    assert torch.equal(d, torch.full_like(d, 7)) and torch.equal(aux, torch.ones_like(aux))


def gated() -> None:
    import torch
    from tileseek.space import BadInput

    import tileseek

    rng = random.Random("gated")
    bfloat16 = {"device": "cuda", "dtype": torch.bfloat16}
    wide = torch.randint(-2, 3, (4, 72, 160), device="cuda").to(torch.bfloat16)
    b = stored(torch, rng, 128, 96, True, 0, "dense")
    for a in (wide[0, :, :128], wide[:, :, :128], wide[:, :, 16:144].contiguous()):
        aux = torch.full((*a.shape[:-1], 112), float("nan"), **bfloat16)[..., :96]
        residual = torch.randint(-2, 3, (*a.shape[:-1], 48), device="cuda").to(torch.bfloat16)
        arguments = {"alpha": 2, "activation": "relu", "gated": True, "residual": residual, "beta": -1}
        d = tileseek.matmul(a, b, aux=aux, **arguments)
        before = 2 * (a.double() @ b.double())
        gate, up = before.chunk(2, -1)
        assert torch.equal(aux, before.to(torch.bfloat16))
        assert torch.equal(d, (gate.relu() * up - residual.double()).to(torch.bfloat16))
        assert torch.equal(tileseek.matmul(a, b, **arguments), d)
    for message, refused, extras in (
        ("rows of A lie at multiples of 2 bytes", wide[0, :, 1:129], {"gated": True}),
        ("rows of D lie at multiples of 2 bytes", a, {"aux": aux.new_empty((*aux.shape[:-1], 97))[..., :96]}),
    ):
        try:
            tileseek.matmul(refused, b, activation="relu", **extras)
        except BadInput as error:
            assert message in str(error), error
        else:
            raise AssertionError(message)


def output_beyond_31_bits() -> None:
    _large_output(46400)


def odd_output_beyond_31_bits() -> None:
    _large_output(46401)


def _large_output(size: int) -> None:
    import torch

    import tileseek

    a, b = (torch.randint(-2, 3, (size, 64), device="cuda").to(torch.bfloat16) for _ in range(2))
    d = tileseek.matmul(a, b.T)
    assert d.numel() > 2**31
    boundary = 2**31 // size
    for rows in (slice(0, 300), slice(boundary - 150, boundary + 100), slice(size - 300, size)):
        exact = (a[rows].float() @ b.float().T).to(torch.bfloat16)
        assert torch.equal(d[rows], exact), rows


def operand_beyond_31_bits() -> None:
    import torch

    import tileseek

    k, n = 2**20 + 8, 2056
    assert k * n > 2**31
    a = torch.randint(-2, 3, (64, k), device="cuda").to(torch.bfloat16)
    b = torch.empty(k, n, device="cuda", dtype=torch.bfloat16)
    for rows in b.split(2**16):
        rows.copy_(torch.randint(-2, 3, rows.shape, device="cuda"))
    d = tileseek.matmul(a, b)
    exact = torch.zeros(64, n, device="cuda", dtype=torch.float32)
    for columns, rows in zip(a.split(2**16, dim=1), b.split(2**16), strict=True):
        exact += columns.float() @ rows.float()  # integers below 2^24
    assert torch.equal(d, exact.to(torch.bfloat16))


if __name__ == "__main__":
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))
