"""The epilogue: what is done to a product before it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .errors import BadInput

SCALES = ("scale", "scale_m", "scale_n")
"""Words for what the product is multiplied by: a number, a vector along m, a vector along n, in float32."""

BIASES = {"bias": "n", "bias_m": "m"}
"""Words for a bias vector and the axis it runs along."""

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
"""As torch.nn.functional has them; gelu_tanh is its gelu with approximate="tanh"."""

RESIDUAL = "residual"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """D = activation(scales x A x B + bias) + residual, each part optional, all in float32, rounded once."""

    scales: tuple[str, ...] = ()
    """Those of SCALES that multiply the product, which all lie in device memory."""
    bias: str = ""
    """The axis that the bias vector runs along: `n`, `m`, or none."""
    activation: str = ""
    residual: bool = False
    """A matrix of D's shape, dtype and layout."""

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """The epilogue written as `none` or as words joined by `+`, such as `scale_m+scale_n+bias+gelu+residual`.

        Raises:
            BadInput: a word is unknown, out of order, or one too many of its kind.
        """
        if text == "none":
            return cls()
        words = text.split("+") if isinstance(text, str) else [""]
        places = [_STEPS.get(word, -1) for word in words]
        if -1 in places or any(a >= b for a, b in pairwise(places)):
            raise BadInput(
                f"epilogue is {text!r}: valid is none, or joined by + any of {', '.join(SCALES)},"
                f" then one of {', '.join(BIASES)}, one of {', '.join(ACTIVATIONS)}, then {RESIDUAL}, each optional"
            )
        return cls(
            scales=tuple(word for word in words if word in SCALES),
            bias=next((BIASES[word] for word in words if word in BIASES), ""),
            activation=next((word for word in words if word in ACTIVATIONS), ""),
            residual=RESIDUAL in words,
        )


_STEPS = {
    **{word: step for step, word in enumerate(SCALES)},
    **dict.fromkeys(BIASES, len(SCALES)),
    **dict.fromkeys(ACTIVATIONS, len(SCALES) + 1),
    RESIDUAL: len(SCALES) + 2,
}
