"""What every launcher asks of its arguments that are no tensors: a kernel computes with whatever it is given."""

import math

# Smallest and largest of what has one name in all operations.
LIMITS = {
    "eps": (0, math.inf),
    "p": (0, 1),
    "label_smoothing": (0, 1),
    "stride": (1, math.inf),
    "padding": (0, math.inf),
}

# What PyTorch, FlashAttention-2 or Liger-Kernel take besides, and what to use for it: this is a course, not a library.
_FLEX = "torch.nn.attention.flex_attention.flex_attention with a {}"
_ATTENTION = {
    "softcap": _FLEX.format("score_mod"),
    "alibi_slopes": _FLEX.format("score_mod"),
    "window_size": _FLEX.format("block_mask"),
    "cu_seqlens_q": _FLEX.format("block_mask"),
    "cu_seqlens_k": _FLEX.format("block_mask"),
    "dropout_p": "torch.nn.functional.scaled_dot_product_attention",
    "is_causal": "causal",
    "softmax_scale": "scale",
}
INSTEAD = {
    "flash_attention": _ATTENTION | {"attn_mask": "kernels.attention_scores with a mask, times v"},
    "attention_scores": _ATTENTION | {"attn_mask": "mask"},
    "cross_entropy": dict.fromkeys(("weight", "ce_weight", "target"), "torch.nn.functional.cross_entropy")
    | dict.fromkeys(("softcap", "lse_square_scale", "return_z_loss"), "torch.compile of it written out in PyTorch"),
    "conv_bn_act": dict.fromkeys(("dilation", "groups"), "torch.nn.functional.conv2d and torch.compile")
    | {"bias": "mean - bias as mean"},
}


def refuse(operation: str, given: dict) -> None:
    """Raise TypeError for the first of these keyword arguments, which the operation does not have: what to use instead
    (INSTEAD), or where to look."""
    for name in given:
        instead = INSTEAD[operation].get(name)
        mend = f"use {instead}" if instead else f"see help(kernels.{operation})"
        raise TypeError(f"{operation} takes no {name}: {mend}")


def check_option(operation: str, name: str, value, kind: type, *, optional: bool = False) -> None:
    """Check an argument that is no tensor.

    Args:
        operation: the public function's name, for the message.
        name: of the argument. LIMITS has the range of those that are alike in all operations.
        value: what the caller gave.
        kind: bool, int, float or str. A whole number is a float, a bool neither, a scalar of NumPy or PyTorch none.
        optional: whether None stands for a value that the operation chooses.

    Raises:
        TypeError: another type.
        ValueError: NaN, infinity, an integer beyond 64 bits, or what LIMITS leaves out.
    """
    if value is None and optional:
        return
    if not isinstance(value, (int, float) if kind is float else kind) or (kind is not bool and isinstance(value, bool)):
        given = f"{value!r:.40} of type {type(value).__name__}"
        raise TypeError(f"{operation} takes {name} as {kind.__name__}, got {given}: pass {kind.__name__}({name})")
    if kind in (int, float) and not (
        -(2**63) <= value < 2**63 if isinstance(value, int) else -math.inf < value < math.inf
    ):
        raise ValueError(f"{operation} takes {name} as a finite number of at most 64 bits, got {value}: choose another")
    least, most = LIMITS.get(name, (-math.inf, math.inf))
    if kind in (int, float) and not least <= value <= most:
        above = f"to {most:g}" if most < math.inf else "or above"
        raise ValueError(f"{operation} takes {name} of {least:g} {above}, got {value}: choose one in that range")
