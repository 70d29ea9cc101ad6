"""The epilogue: what is done to a product before it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .errors import BadInput, shown

SCALES = ("scale", "scale_m", "scale_n")
"""Words for what the product is multiplied by: a number, a vector along m, a vector along n, in float32."""

BIASES = {"bias": "n", "bias_m": "m"}
"""Words for a bias vector and the axis it runs along."""

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
"""As torch.nn.functional has them; gelu_tanh is its gelu with approximate="tanh"."""

EPILOGUE_WORDS = (*SCALES, "alpha", tuple(BIASES), "aux", ACTIVATIONS, "gated", "residual", "beta")
"""The words of an epilogue in the order in which they are written and computed; of alternatives at most one."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """D = activation(scales x alpha x A x B + bias) [x up] + beta x residual, each part optional, in float32, rounded
    once."""

    scales: tuple[str, ...] = ()
    """Those of SCALES that multiply the product, which all lie in device memory."""
    alpha: bool = False
    """A number given at run time multiplies the product."""
    bias: str = ""
    """The axis that the bias vector runs along: `n`, `m`, or none."""
    aux: bool = False
    """What comes before the activation is a second output, [m, n] in D's dtype."""
    activation: str = ""
    gated: bool = False
    """The first half of the columns is a gate: D[m, n / 2] = activation(gate) x up."""
    residual: bool = False
    """A matrix of D's shape, dtype and layout."""
    beta: bool = False
    """A number given at run time multiplies the residual."""

    @property
    def product_apart(self) -> bool:
        """Whether a product that is kept whole needs memory beside D's: it is an output too, or wider than D."""
        return self.aux or self.gated

    @property
    def activated(self) -> str:
        """When kernels whose tensor cores multiply activate an element: as the residual is `added` to it, as it is
        `stored`, or `before`, with all of its piece; no word where there is nothing to activate.

        The compiler begins activations early where it can, those of a whole tile, and does not find registers for them.
        Before a gate, or after a bias has been read from shared memory, it cannot.
        """
        if not self.activation:
            return ""
        if self.gated:
            return "before"
        if self.residual:
            return "added"
        return "before" if self.bias else "stored"

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """The epilogue written as `none` or as words joined by `+`, such as `scale_m+scale_n+bias+gelu+residual`.

        Raises:
            BadInput: a word is unknown, out of order, or one too many of its kind, `beta` has no residual, or `aux`
                nothing that comes after it.
        """
        if text == "none":
            return cls()
        words = text.split("+") if isinstance(text, str) else [""]
        places = [_PLACES.get(word, -1) for word in words]
        if -1 in places or any(a >= b for a, b in pairwise(places)):
            one_of = [word if isinstance(word, str) else "|".join(word) for word in EPILOGUE_WORDS]
            raise BadInput(
                f"epilogue is {shown(text)}: valid is none, or joined by + and in this order any of {', '.join(one_of)}"
            )
        if "beta" in words and "residual" not in words:
            raise BadInput(f"epilogue is {shown(text)}: valid is beta after residual, which it multiplies")
        if words[-1] == "aux":
            raise BadInput(
                f"epilogue is {shown(text)}: valid is aux before an activation, gated or residual, or without it"
            )
        return cls(
            scales=tuple(word for word in words if word in SCALES),
            alpha="alpha" in words,
            bias=next((BIASES[word] for word in words if word in BIASES), ""),
            aux="aux" in words,
            activation=next((word for word in words if word in ACTIVATIONS), ""),
            gated="gated" in words,
            residual="residual" in words,
            beta="beta" in words,
        )

    def __str__(self) -> str:
        """The text that parses to it."""
        words = [
            *self.scales,
            "alpha" * self.alpha,
            next((word for word, axis in BIASES.items() if axis == self.bias), ""),
            "aux" * self.aux,
            self.activation,
            "gated" * self.gated,
            "residual" * self.residual,
            "beta" * self.beta,
        ]
        return "+".join(word for word in words if word) or "none"


_PLACES = {
    word: place for place, words in enumerate(EPILOGUE_WORDS) for word in ([words] if isinstance(words, str) else words)
}
