"""What a training step moves and keeps, stored or recomputed: the model behind the explorer of lesson 04.

Each operation in three versions: written out in PyTorch; fused, storing what the backward pass asks for; fused,
computing it again. Below, N = rows * columns and b = bytes of an element; a bias, its gradient and a seed are left
out, a few bytes among N. Every kernel reads each of its tensors once and writes each once.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Bytes moved in the forward and in the backward pass, and bytes kept in between."""

    forward: int
    backward: int
    kept: int

    @property
    def moved(self) -> int:
        return self.forward + self.backward


@dataclass(frozen=True)
class Steps:
    """The three versions of an operation."""

    unfused: Step
    stored: Step
    recomputed: Step


def bias_dropout_residual(n: int, b: int) -> Steps:
    """residual + dropout(x + bias). A stored mask takes 1 B an element.

    Unfused: add (2b), dropout (2b + 1), add (3b); backward, dropout (2b + 1) and the bias's sum (b). Fused, the sum is
    made on the way.
    """
    return Steps(
        Step(n * (7 * b + 1), n * (3 * b + 1), n),
        Step(n * (3 * b + 1), n * (2 * b + 1), n),
        Step(n * 3 * b, n * 2 * b, 0),
    )


def gated(n: int, b: int) -> Steps:
    """act(gate) * up, both inputs kept.

    Unfused: act (2b), product (3b), which keeps act(gate); backward, two products and act's gradient (3b each). Fused,
    the backward reads the gradient, gate and up, and act(gate) if it was stored; it writes two gradients.
    """
    return Steps(
        Step(n * 5 * b, n * 9 * b, n * 3 * b),
        Step(n * 4 * b, n * 6 * b, n * 3 * b),
        Step(n * 3 * b, n * 5 * b, n * 2 * b),
    )


def residual_gelu(n: int, b: int) -> Steps:
    """gelu(x + residual). To recompute the sum, x and residual must be kept; stored, the sum alone.

    Unfused: add (3b), gelu (2b); backward, gelu's gradient (3b), which x and residual share. Recomputed, the backward
    reads the gradient, x and residual and writes one gradient.
    """
    return Steps(
        Step(n * 5 * b, n * 3 * b, n * b),
        Step(n * 4 * b, n * 3 * b, n * b),
        Step(n * 3 * b, n * 4 * b, n * 2 * b),
    )


OPERATIONS: dict[str, Callable[[int, int], Steps]] = {
    "bias+dropout+residual": bias_dropout_residual,
    "SwiGLU": gated,
    "GeGLU": gated,
    "residual+GELU": residual_gelu,
}
