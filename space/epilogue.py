"""The epilogue: what is done to a product before it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .errors import BadInput

BIASES = {"bias": "n", "bias_m": "m"}
"""Words for a bias vector and the axis it runs along."""

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
"""As torch.nn.functional has them; gelu_tanh is its gelu with approximate="tanh"."""

RESIDUAL = "residual"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """D = activation(A x B + bias) + residual, each part optional, all in float32, rounded once."""

    bias: str = ""
    """The axis that the bias vector runs along: `n`, `m`, or none."""
    activation: str = ""
    residual: bool = False
    """A matrix of D's shape, dtype and layout."""

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """The epilogue written as `none` or as words joined by `+`, such as `bias+gelu+residual`.

        Raises:
            BadInput: a word is unknown, out of order, or one too many of its kind.
        """
        if text == "none":
            return cls()
        words = text.split("+") if isinstance(text, str) else [""]
        places = [_STEPS.get(word, -1) for word in words]
        if -1 in places or any(a >= b for a, b in pairwise(places)):
            raise BadInput(
                f"epilogue is {text!r}: valid is none, or joined by + one of {', '.join(BIASES)},"
                f" then one of {', '.join(ACTIVATIONS)}, then {RESIDUAL}, each optional"
            )
        return cls(
            bias=next((BIASES[word] for word in words if word in BIASES), ""),
            activation=next((word for word in words if word in ACTIVATIONS), ""),
            residual=RESIDUAL in words,
        )


_STEPS = {**dict.fromkeys(BIASES, 0), **dict.fromkeys(ACTIVATIONS, 1), RESIDUAL: 2}
