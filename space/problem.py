"""What to compute: D[m, n] = epilogue(A[m, k] x B[k, n]), D row-major; D[m, n / 2] with a gated epilogue."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .epilogue import Epilogue
from .errors import BadInput, shown

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_e5m2": 1}
"""Bytes per element of every operand dtype a problem may name (fp8 is e4m3)."""

OUT_DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
"""Bytes per element of every output dtype a problem may name."""

FAST = "fast"
PROMOTED = "promoted"
ACCUMULATE = (FAST, PROMOTED)
"""How products of 8-bit operands are summed. `fast`: over all of K in the tensor cores, which keep about 14 bits of
such a sum; `promoted`: every PROMOTED_K of k the sums are added up in float32."""

PROMOTED_K = 128
"""As DeepGEMM and cuBLAS without fast accumulation promote."""

LAYOUTS = ("nt", "nn", "tn", "tt")
"""Storage of A then B. `n`: A is [M, K] or B is [K, N]; `t`: A is [K, M] or B is [N, K]."""

OVERLAPS = ("none", "launch", "weights")
"""What may run before the kernel ahead in the stream has finished: nothing; the launch; also loads of B, when the
kernel ahead does not write it."""

BROADCASTS = ("", "a", "b", "ab")
"""Operands that all problems of a batch share."""

TMA_ALIGNMENT = 16
"""Bytes that addresses and pitches of a tensor map are multiples of (cuda.h, cuTensorMapEncodeTiled)."""

MATRICES = ("a", "b", "d")
"""The matrices whose rows may be aligned each in its own way; a residual is aligned as D is."""

MAX_EXTENT = 2**31 - 1
"""Largest m, n or k: tensor coordinates are signed 32-bit integers (PTX ISA, cp.async.bulk.tensor)."""

_CSV_REQUIRED = ("name", "layout", "dtype", "m", "n", "k")
_CSV_OPTIONAL = (
    *("batch", "out_dtype", "epilogue", "overlap"),
    *("broadcast", "a_align", "b_align", "d_align", "accumulate", "deterministic"),
)
_CSV_NUMBERS = ("m", "n", "k", "batch", "a_align", "b_align", "d_align")
_CSV_TRUTH = {"true": True, "false": False}


class Kind(NamedTuple):
    """A problem but for its sizes: problems of one kind can share kernels and be each other's neighbours. Of the
    geometry it has whether there is a batch, and alignments that TMA does not take."""

    dtype: str
    out_dtype: str
    a_major: str
    b_major: str
    epilogue: str
    overlap: str
    accumulate: str
    batched: str
    a_rows: str
    b_rows: str
    d_rows: str

    def __str__(self) -> str:
        """Its dtype and layout, then what is not the default: `bf16 nt`, `fp8 nt D:bf16 bias+gelu`."""
        layout = {"k": "n", "m": "t"}[self.a_major] + {"n": "n", "k": "t"}[self.b_major]
        out = f"D:{self.out_dtype}" if self.out_dtype != self.dtype else ""
        others = [word for word in self[4:] if word not in ("none", FAST)]
        return " ".join(word for word in (self.dtype, layout, out, *others) if word)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One matrix multiplication, or a batch of them.

    m, n, k and batch are in elements; n is the width of the product. `out_dtype` defaults to the operand dtype, and to
    bf16 for 8-bit operands.
    `broadcast` names the operands that all of a batch share. `a_align`, `b_align` and `d_align` are bytes that the
    address of every row of the matrix is a multiple of; 0, the default, is what rows without padding give
    (`alignment`).

    Raises:
        BadInput: a size is not a positive integer, or a word is not one of the valid ones.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "nt"
    batch: int = 1
    out_dtype: str = ""
    epilogue: str = "none"
    overlap: str = "none"
    broadcast: str = ""
    a_align: int = 0
    b_align: int = 0
    d_align: int = 0
    accumulate: str = FAST
    deterministic: bool = False
    """Whether equal inputs must give equal bits: no schedule that adds in the order of arrival."""

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_EXTENT:
                empty = "; an empty problem needs no kernel" if value == 0 else ""
                raise BadInput(f"{name} is {shown(value)}: valid is an integer from 1 to {MAX_EXTENT}{empty}")
        _one_of("dtype", self.dtype, DTYPE_BYTES)
        _one_of("layout", self.layout, LAYOUTS)
        if not self.out_dtype:
            object.__setattr__(self, "out_dtype", "bf16" if DTYPE_BYTES[self.dtype] == 1 else self.dtype)
        _one_of("out_dtype", self.out_dtype, OUT_DTYPE_BYTES)
        if Epilogue.parse(self.epilogue).gated and self.n % 2:
            raise BadInput(f"n is {self.n}: valid is an even number with a gated epilogue, for gate and up")
        _one_of("overlap", self.overlap, OVERLAPS)
        _one_of("broadcast", self.broadcast, BROADCASTS)
        if not isinstance(self.deterministic, bool):
            raise BadInput(f"deterministic is {shown(self.deterministic)}: valid are True, False")
        if not self.batched:
            object.__setattr__(self, "broadcast", "")
        for matrix in MATRICES:
            self._check_alignment(matrix)
        _one_of("accumulate", self.accumulate, ACCUMULATE)

    def _check_alignment(self, matrix: str) -> None:
        name = f"{matrix}_align"
        value = getattr(self, name)
        valid = [size for size in (1, 2, 4, 8, 16) if size >= self._element_bytes(matrix)]
        if type(value) is not int or value not in (0, *valid):
            raise BadInput(
                f"{name} is {shown(value)}: valid are {', '.join(map(str, valid))}, or 0 for rows without padding"
            )
        dense = self._dense_alignment(matrix)
        if value == dense or (matrix == "d" and value > dense):
            object.__setattr__(self, name, 0)

    @property
    def batched(self) -> bool:
        """Whether there is more than one product."""
        return self.batch > 1

    def copies(self, operand: str) -> int:
        """How many matrices an operand (`a` or `b`) of the batch consists of: one if it is broadcast."""
        return 1 if operand in self.broadcast else self.batch

    def stored(self, matrix: str) -> tuple[int, int]:
        """(rows, columns) of a matrix (`a`, `b`, `d` or `aux`) as it is stored, columns contiguous."""
        match matrix:
            case "a":
                return (self.m, self.k) if self.a_major == "k" else (self.k, self.m)
            case "b":
                return (self.n, self.k) if self.b_major == "k" else (self.k, self.n)
            case "d":
                return (self.m, self.d_columns)
            case "aux":
                return (self.m, self.n)
        raise KeyError(matrix)

    def alignment(self, matrix: str) -> int:
        """Bytes, at most 16, that the address of every row of a matrix (`a`, `b`, or `d`, the residual and the
        auxiliary output) is a multiple of; of `d` where every row ends as well, for stores by TMA write whole 16-byte
        units."""
        match matrix:
            case "a":
                return self.a_align or self._dense_alignment("a")
            case "b":
                return self.b_align or self._dense_alignment("b")
        return self.d_align or self._dense_alignment("d")

    def _dense_alignment(self, matrix: str) -> int:
        return math.gcd(TMA_ALIGNMENT, self.stored(matrix)[1] * self._element_bytes(matrix))

    def _element_bytes(self, matrix: str) -> int:
        return OUT_DTYPE_BYTES[self.out_dtype] if matrix == "d" else DTYPE_BYTES[self.dtype]

    def resized(self, m: int, n: int, k: int) -> Problem:
        """This problem with other sizes and the same alignments, so that it is of the same kind."""
        a, b, d = map(self.alignment, MATRICES)
        return replace(self, m=m, n=n, k=k, a_align=a, b_align=b, d_align=d)

    @property
    def a_major(self) -> str:
        """The contiguous axis of A: `k` for storage [M, K], `m` for [K, M]."""
        return "k" if self.layout[0] == "n" else "m"

    @property
    def b_major(self) -> str:
        """The contiguous axis of B: `n` for storage [K, N], `k` for [N, K]."""
        return "n" if self.layout[1] == "n" else "k"

    @property
    def fused(self) -> Epilogue:
        """The parts of the epilogue."""
        return _fused(self.epilogue)

    @property
    def plain(self) -> Problem:
        """The product without the epilogue."""
        return replace(self, epilogue="none")

    @property
    def bias_dtype(self) -> str:
        """The dtype of a bias: D's, but bf16 where D has 8 bits."""
        return "bf16" if OUT_DTYPE_BYTES[self.out_dtype] == 1 else self.out_dtype

    @property
    def d_columns(self) -> int:
        """Columns of D: n, or half of it where one half of the product gates the other."""
        return self.n // 2 if self.fused.gated else self.n

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Fewest bytes through device memory: operands and a residual read once, outputs written once."""
        fused = self.fused
        operands = (self.copies("a") * self.m + self.copies("b") * self.n) * self.k * DTYPE_BYTES[self.dtype]
        columns = self.d_columns * (1 + fused.residual) + self.n * fused.aux
        return operands + self.batch * self.m * columns * OUT_DTYPE_BYTES[self.out_dtype]

    @property
    def kind(self) -> Kind:
        """What decides the kernels that compute it."""
        aligned = [(matrix, self.alignment(matrix)) for matrix in MATRICES]
        return Kind(
            self.dtype,
            self.out_dtype,
            self.a_major,
            self.b_major,
            self.epilogue,
            self.overlap,
            self.accumulate,
            "batched" if self.batched else "",
            *[f"{matrix}{size}" if size < TMA_ALIGNMENT else "" for matrix, size in aligned],
        )

    @property
    def key(self) -> str:
        """A name unique to the problem, such as `m16_n6144_k4096_b1_bf16_bf16_ak_bk_none_none`; broadcast, alignments,
        how sums are accumulated and `deterministic` follow where they are not the default."""
        return (
            f"m{self.m}_n{self.n}_k{self.k}_b{self.batch}_{self.dtype}_{self.out_dtype}"
            f"_a{self.a_major}_b{self.b_major}_{self.epilogue}_{self.overlap}"
        ) + "".join(f"_{name}-{value}" for name, value in self._seldom().items())

    def _seldom(self) -> dict[str, Any]:
        """The fields that keys and JSON leave out at their defaults."""
        aligned = {f"{matrix}_align": 0 for matrix in MATRICES}
        defaults = {"broadcast": "", **aligned, "accumulate": FAST, "deterministic": False}
        return {name: value for name, default in defaults.items() if (value := getattr(self, name)) != default}

    def to_json(self) -> dict[str, Any]:
        """The JSON object of journals and tables, with the unambiguous majors in place of the layout; what is in
        `_seldom` only where it is not the default."""
        return {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batch": self.batch,
            "dtype": self.dtype,
            "out_dtype": self.out_dtype,
            "a_major": self.a_major,
            "b_major": self.b_major,
            "epilogue": self.epilogue,
            "overlap": self.overlap,
            **self._seldom(),
        }

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Problem:
        """The inverse of `to_json`; fields unknown to this version are refused.

        Raises:
            BadInput: a field is missing, unknown or has no valid value.
        """
        try:
            fields = dict(obj)
            layout = {"k": "n", "m": "t"}[fields.pop("a_major")] + {"n": "n", "k": "t"}[fields.pop("b_major")]
            return cls(layout=layout, **fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"problem object {obj!r} cannot be read: {error}") from error


@functools.cache
def _fused(epilogue: str) -> Epilogue:
    return Epilogue.parse(epilogue)


@dataclass(frozen=True, slots=True)
class NamedProblem:
    """A problem of a suite, under the name its CSV gives it."""

    name: str
    problem: Problem


def read_suite(path: str | Path) -> list[NamedProblem]:
    """The problems of a CSV file with the header `name,layout,dtype,m,n,k` and, when needed, other fields of a
    problem.

    Raises:
        BadInput: the file cannot be read, the header differs, a name repeats, or a row is not a problem (its line is
            named).
    """
    rows = _rows(path)
    header = [word.strip() for word in next(rows, (0, []))[1]]
    unknown = [word for word in header if word not in _CSV_REQUIRED + _CSV_OPTIONAL]
    missing = [word for word in _CSV_REQUIRED if word not in header]
    if unknown or missing or len(set(header)) != len(header):
        raise BadInput(
            f"{path}: the header is {','.join(header)!r}: valid is {','.join(_CSV_REQUIRED)}"
            f" and, when needed, {','.join(_CSV_OPTIONAL)}"
        )
    suite: dict[str, NamedProblem] = {}
    for line, row in rows:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{path}, line {line}"
        if len(row) != len(header):
            raise BadInput(f"{where}: {len(row)} cells where the header has {len(header)}")
        cells = {word: cell.strip() for word, cell in zip(header, row, strict=True)}
        name = cells.pop("name")
        if not name or name in suite:
            raise BadInput(f"{where}: the name {name!r} is {'used twice' if name else 'empty'}: valid is a unique name")
        suite[name] = NamedProblem(name, _from_words(cells, where))
    if not suite:
        raise BadInput(f"{path}: no problems in it: valid is at least one row under the header")
    return list(suite.values())


def _rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of a CSV file."""
    try:
        reader = csv.reader(Path(path).read_text(encoding="utf-8-sig").splitlines())
        for row in reader:
            yield reader.line_num, row
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"cannot read {path}: byte {error.start} is no text: valid is UTF-8") from error
    except csv.Error as error:
        raise BadInput(f"cannot read {path}: {error}") from error


def _from_words(cells: Mapping[str, str], where: str) -> Problem:
    fields: dict[str, Any] = {word: cell for word, cell in cells.items() if cell}
    for word in _CSV_NUMBERS:
        if word in fields:
            try:
                fields[word] = int(fields[word])
            except ValueError:
                raise BadInput(f"{where}: {word} is {shown(fields[word])}: valid is a whole number") from None
    if "deterministic" in fields:
        fields["deterministic"] = _CSV_TRUTH.get(fields["deterministic"].lower(), fields["deterministic"])
    try:
        return Problem(**fields)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    except TypeError:
        empty = [word for word in _CSV_REQUIRED if word not in fields and word != "name"]
        raise BadInput(f"{where}: {', '.join(empty)} is empty: valid is a value in every required column") from None


def _one_of(name: str, value: object, valid: Iterable[str]) -> None:
    if value not in tuple(valid):
        raise BadInput(f"{name} is {shown(value)}: valid are {', '.join(word or 'empty' for word in valid)}")
