"""Shared argument checks, conversion of tensors to the layouts that kernels take, and block and grid sizes."""

import math
from collections.abc import Callable
from functools import cache, reduce

import torch
from torch import Tensor

from kernels.interpreter import runtime

MULTIPROCESSORS = 132  # SMs of an H200, the course's reference GPU
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_together(operation: str, dtypes: tuple[torch.dtype, ...] = FLOATS, **tensors: torch.Tensor) -> None:
    """Check that the tensors share one of `dtypes` and one device that can run kernels; shapes may differ.

    Args:
        operation: the public function's name, for the message.
        dtypes: the dtypes that the operation takes.
        tensors: the arguments, by their public names.

    Raises:
        TypeError: an argument is not a tensor, or dtypes are unsupported or differ.
        ValueError: devices differ, or a tensor is on the CPU while kernels run on a GPU.
    """
    first = None
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(_not_a_tensor(operation, name, tensor))
        if tensor.dtype not in dtypes:
            taken = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{operation} takes {taken}, got {name} of {tensor.dtype}: convert it with .to(dtype)")
        if first is None:
            first_name, first = name, tensor
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{operation} takes one dtype, got {first_name} of {first.dtype} and {name} of {tensor.dtype}: "
                f"convert one with .to(dtype)"
            )
        _check_one_device(operation, first_name, first, name, tensor)
        check_dense(operation, name, tensor)
    if not (first.is_cuda or first.is_meta or (first.is_cpu and runtime.interprets())):
        raise ValueError(f"{operation} runs on the GPU here, got tensors on {first.device}: move them with .cuda()")


def _check_one_device(operation: str, first_name: str, first: Tensor, name: str, tensor: Tensor) -> None:
    if tensor.device != first.device:
        raise ValueError(
            f"{operation} takes tensors on one device, got {first_name} on {first.device} and {name} on "
            f"{tensor.device}: move one with .to(device)"
        )


def check_dense(operation: str, name: str, tensor: torch.Tensor) -> None:
    """Check that a tensor is dense: one strided block of memory.

    Raises:
        TypeError: it is nested, sparse, or has another layout.
    """
    if tensor.is_nested:
        raise TypeError(f"{operation} takes dense tensors, got {name} nested: use .to_padded_tensor(padding)")
    if tensor.layout is not torch.strided:
        kind = str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"{operation} takes dense tensors, got {name} in layout {kind}: use .to_dense()")


def given(**tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the tensors that are not None, by name."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def check_alike(operation: str, dtypes: tuple[torch.dtype, ...] = FLOATS, **tensors: torch.Tensor) -> None:
    """Do the checks of check_together, and check that the tensors share one shape.

    Raises:
        TypeError: as check_together.
        ValueError: as check_together, or shapes differ.
    """
    check_together(operation, dtypes, **tensors)
    if len(tensors) == 1:
        return
    (first_name, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != first.shape:
            raise ValueError(
                f"{operation} takes one shape, got {first_name} of {tuple(first.shape)} and {name} of "
                f"{tuple(tensor.shape)}: expand one to the other's shape"
            )


def check_columns(operation: str, x: torch.Tensor, **vectors: torch.Tensor) -> None:
    """Check that x has a last dimension, and each vector one floating-point value per column of x.

    Raises:
        TypeError: a vector is not a floating-point tensor.
        ValueError: x has no dimension, or a vector's shape or device does not match x.
    """
    if x.dim() == 0:
        raise ValueError(f"{operation} takes rows, (..., cols), got x of shape (): add one with x[None]")
    check_vectors(operation, x, x.shape[-1], "x's last dimension", "column", **vectors)


def check_vectors(operation: str, x: torch.Tensor, size: int, of: str, unit: str, **vectors: torch.Tensor) -> None:
    """Check that each vector has `size` floating-point values, one per `unit`, on x's device. In the message,
    `of` names the source of `size`.

    Raises:
        TypeError: a vector is not a floating-point tensor.
        ValueError: a vector has another shape or device.
    """
    for name, vector in vectors.items():
        if not isinstance(vector, torch.Tensor):
            raise TypeError(_not_a_tensor(operation, name, vector))
        if vector.dtype not in FLOATS:
            taken = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
            raise TypeError(f"{operation} takes {taken}, got {name} of {vector.dtype}: convert it with .to(dtype)")
        check_dense(operation, name, vector)
        if vector.shape != (size,):
            raise ValueError(
                f"{operation} takes {name} of {of}, ({size},), got {tuple(vector.shape)}: pass one value per {unit}"
            )
        _check_one_device(operation, "x", x, name, vector)


def check_labels(operation: str, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Check a loss's arguments: (..., classes) logits and (...) labels.

    Raises:
        TypeError: logits are not a floating-point tensor, or labels are not int64.
        ValueError: devices differ, shapes do not match or could also be PyTorch's (N, classes, ...), or there are no
            classes.
    """
    check_alike(operation, logits=logits)
    check_columns(operation, logits)
    if not isinstance(labels, torch.Tensor) or labels.dtype != torch.int64:
        kind = labels.dtype if isinstance(labels, torch.Tensor) else type(labels).__name__
        soft = isinstance(labels, torch.Tensor) and labels.shape == logits.shape and labels.is_floating_point()
        mend = "for probabilities use torch.nn.functional.cross_entropy" if soft else "convert with .long()"
        raise TypeError(f"{operation} takes labels in a tensor of torch.int64, got {kind}: {mend}")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"{operation} takes one label per row, {tuple(logits.shape[:-1])}, got {tuple(labels.shape)}: "
            f"pass logits of (..., classes), such as logits.movedim(1, -1), and labels of (...)"
        )
    if logits.dim() > 2 and labels.numel() and labels.shape == (logits.shape[0], *logits.shape[2:]):
        raise ValueError(
            f"{operation} takes logits of (..., classes), and {tuple(logits.shape)} may be PyTorch's (N, classes, ...)"
            ": pass logits.flatten(0, -2) and labels.flatten(), or logits.movedim(1, -1).flatten(0, -2)"
        )
    _check_one_device(operation, "logits", logits, "labels", labels)
    if logits.shape[-1] == 0 and labels.numel():
        raise ValueError(f"{operation} takes at least 1 class, got logits of 0 columns: no label is valid")


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x, empty or not, as (rows, cols) with adjacent columns: a view if its strides allow it, else a copy."""
    rows = x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def channels_last(*images: torch.Tensor) -> bool:
    """Return whether all tensors, (images, channels, height, width), are channels-last and not also contiguous."""
    last = torch.channels_last
    return all(x.dim() == 4 and x.is_contiguous(memory_format=last) and not x.is_contiguous() for x in images)


@cache
def _has(device: int) -> tuple[int, int]:
    """Return a GPU's SM count, and the bytes of shared memory that a program may use."""
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count, found.shared_memory_per_block_optin


def multiprocessors(x: torch.Tensor) -> int:
    """Return the SM count of x's GPU, or an H200's without a GPU, so that the same kernels are launched.

    An observer that simulates another GPU provides that GPU's count as `multiprocessors`.
    """
    told = getattr(runtime.observer(), "multiprocessors", None)
    if told is not None:
        return told
    return _has(x.get_device())[0] if x.is_cuda else MULTIPROCESSORS


def shared_memory(x: torch.Tensor) -> int:
    """Return the bytes of shared memory that a program on x's GPU may use; an H100's when interpreted."""
    return _has(x.get_device())[1] if x.is_cuda else 227 * 2**10


def in_widest(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Under autocast, convert tensors of several dtypes to the widest of them, as PyTorch's addition does.

    Under autocast, 16-bit layers regularly meet an fp32 residual. Otherwise the checks reject
    mixed dtypes as a mistake.
    """
    dtypes = {tensor.dtype for tensor in tensors if isinstance(tensor, torch.Tensor)}
    if len(dtypes) < 2 or not (torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")):
        return tensors
    return tuple(tensor.to(reduce(torch.promote_types, dtypes)) for tensor in tensors)


def check_linear(
    operation: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    names: tuple[str, str] = ("weight", "bias"),
) -> None:
    """Check the shapes of a linear layer's arguments: x (..., K), weight (N, K), bias (N,) and residual (..., N).

    Raises:
        ValueError: the shapes do not match. The message calls weight and bias by `names`.
    """
    if x.dim() == 0 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{operation} takes x of (..., K) and {names[0]} of (N, K), got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}: transpose {names[0]}, or reshape x"
        )
    for name, tensor, of_rows in ((names[1], bias, False), ("residual", residual, True)):
        if tensor is None:
            continue
        shape = (*x.shape[:-1], weight.shape[0]) if of_rows else weight.shape[:1]
        if tensor.shape != shape:
            raise ValueError(
                f"{operation} takes {name} of {tuple(shape)} for x of {tuple(x.shape)} and {names[0]} of "
                f"{tuple(weight.shape)}, got {tuple(tensor.shape)}: expand or reshape it"
            )


def autocasts(x: torch.Tensor) -> bool:
    """Return whether autocast is on for x's device."""
    return isinstance(x, torch.Tensor) and x.device.type in ("cuda", "cpu") and torch.is_autocast_enabled(x.device.type)


def as_autocast_says(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Under autocast, convert the tensors to its dtype, as PyTorch's matmuls do; fp64 stays."""
    if not autocasts(tensors[0]):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    lowered = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype in lowered else x for x in tensors)


# Smallest and largest value of arguments that share a name in all operations.
LIMITS = {"p": (0, 1), "label_smoothing": (0, 1), "stride": (1, math.inf)}
LIMITS |= dict.fromkeys(("eps", "padding"), (0, math.inf))

# Unsupported arguments of PyTorch, FlashAttention-2 or Liger-Kernel, and their replacements: this is a course, not a
# library.
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
    "softmax": {"dim": "x.movedim(dim, -1)", "dtype": "x.to(dtype)"},
    "l2_norm": {"p": "torch.nn.functional.normalize", "dim": "x.movedim(dim, -1)"},
    "flash_attention": _ATTENTION | {"attn_mask": "kernels.attention_scores with a mask, times v"},
    "attention_scores": _ATTENTION | {"attn_mask": "mask"},
    "cross_entropy": dict.fromkeys(("weight", "ce_weight", "target"), "torch.nn.functional.cross_entropy")
    | dict.fromkeys(("softcap", "lse_square_scale", "return_z_loss"), "torch.compile on the same operation in PyTorch"),
    "conv_bn_act": dict.fromkeys(("dilation", "groups"), "torch.nn.functional.conv2d and torch.compile")
    | {"bias": "mean - bias as mean"},
}


def refuse(operation: str, given: dict) -> None:
    """Raise TypeError for the first of these unsupported keyword arguments, naming its replacement (INSTEAD) or
    the help page."""
    for name in given:
        instead = INSTEAD[operation].get(name)
        mend = f"use {instead}" if instead else f"see help(kernels.{operation})"
        raise TypeError(f"{operation} takes no {name}: {mend}")


_ORDER = "pass causal and scale by name: scaled_dot_product_attention orders them differently"
_SHAPE = "leave the shape out; the last dimension is normalized"
# (operations, argument, types, advice): values that callers pass out of habit from another function.
_MEANT = (
    (("flash_attention",), "causal", torch.Tensor, "for a mask use kernels.attention_scores with mask, times v"),
    (("flash_attention", "attention_scores"), "causal", type(None), _ORDER),
    (("cross_entropy",), "ignore_index", torch.Tensor, "for class weights use torch.nn.functional.cross_entropy"),
    (("conv_bn_act",), "stride", tuple | list, "pass one int for both directions"),
    (("conv_bn_act",), "padding", tuple | list, "pass one int for both directions"),
    (("conv_bn_act",), "padding", str, "pass (kernel size - 1) // 2 for 'same', 0 for 'valid'"),
    (("linear_act",), "residual", str, "pass act by name"),
    (("ffn",), "gate", str, "pass act by name"),
    (("softmax_dropout", "bias_dropout_residual"), "seed", float, "pass p by name"),
    (("rms_norm", "layer_norm", "layer_norm_act", "layer_norm_int8"), "weight", tuple | list | int, _SHAPE),
)


def meant(operation: str, name: str, value) -> str | None:
    """Return advice if another function takes such a value in this position, else None."""
    for operations, argument, types, instead in _MEANT:
        if operation in operations and name == argument and isinstance(value, types):
            return instead
    return None


def _not_a_tensor(operation: str, name: str, value) -> str:
    mend = meant(operation, name, value) or "use torch.tensor"
    return f"{operation} takes tensors, got {name} of type {type(value).__name__}: {mend}"


def _shown(value) -> str:
    """Describe a value for a message, in one line."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.40} of type {type(value).__name__}"


def _mend(operation: str, name: str, kind: type, value) -> str:
    if instead := meant(operation, name, value):
        return instead
    if name == "eps" and value is None:
        return "pass one float; PyTorch's None is torch.finfo(x.dtype).eps"
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return f"pass {name}.item()"
    if value is None or isinstance(value, torch.Tensor | str | tuple | list):
        return f"pass one {kind.__name__}; see help(kernels.{operation})"
    return f"pass {kind.__name__}({name})"


def check_option(operation: str, name: str, value, kind: type, *, optional: bool = False) -> None:
    """Check an argument that is not a tensor.

    Args:
        operation: the public function's name, for the message.
        name: the argument's name. LIMITS has the range of names shared by all operations.
        value: the caller's value.
        kind: bool, int, float or str. An int is accepted as a float; a bool counts as neither. NumPy and PyTorch
            scalars are rejected.
        optional: whether None is allowed: the operation then chooses a value.

    Raises:
        TypeError: it has another type.
        ValueError: it is NaN, infinite, an integer beyond 64 bits, outside LIMITS, or an eps that fp32 cannot
            represent.
    """
    if value is None and optional:
        return
    if not isinstance(value, (int, float) if kind is float else kind) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(
            f"{operation} takes {name} as {kind.__name__}, got {_shown(value)}: {_mend(operation, name, kind, value)}"
        )
    if kind in (int, float) and not (
        -(2**63) <= value < 2**63 if isinstance(value, int) else -math.inf < value < math.inf
    ):
        raise ValueError(f"{operation} takes {name} as a finite number of at most 64 bits, got {value}: choose another")
    least, most = LIMITS.get(name, (-math.inf, math.inf))
    if kind in (int, float) and not least <= value <= most:
        above = f"to {most:g}" if most < math.inf else "or above"
        raise ValueError(f"{operation} takes {name} of {least:g} {above}, got {value}: choose one in that range")
    if name == "eps" and value and not 2.0**-126 <= value < 2.0**128:
        raise ValueError(f"{operation} takes eps of 2^-126 to 2^128, fp32's range, or 0, got {value}: choose another")


def ones_unless(weight: Tensor | None, x: Tensor) -> Tensor:
    """Return weight, or if it is None, a one per column of x, filled in a small launch."""
    return x.new_ones(x.shape[-1:]) if weight is None else weight


def zeros_unless(bias: Tensor | None, x: Tensor) -> Tensor:
    """Return bias, or if it is None, a zero per column of x, filled in a small launch."""
    return x.new_zeros(x.shape[-1:]) if bias is None else bias


def over_last(norm: Callable, shape: tuple[int, ...], x: Tensor, *vectors: Tensor | None, **options) -> Tensor:
    """Apply norm(x, *vectors, **options) over x's last dimensions, `shape`, flattened into one, as are the vectors'.

    Raises:
        TypeError: x is not a tensor.
        ValueError: x's last dimensions are not `shape`.
    """
    if len(shape) == 1 and vectors[0] is not None:
        return norm(x, *vectors, **options)  # norm checks x against them
    if not isinstance(x, Tensor):
        raise TypeError(f"{norm.__name__} takes tensors, got x of type {type(x).__name__}: use torch.tensor")
    if x.shape[-len(shape) :] != shape:
        wanted = ", ".join(("...", *map(str, shape)))
        raise ValueError(f"{norm.__name__} takes x of ({wanted}), got {tuple(x.shape)}: reshape it")
    rows = x.flatten(-len(shape))
    return norm(rows, *(each if each is None else each.flatten() for each in vectors), **options).view(x.shape)


def cdiv(size: int, block: int) -> int:
    """Return how many blocks cover `size`: size / block, rounded up."""
    return -(-size // block)


def next_power_of_2(size: int) -> int:
    """Return the smallest power of two that is at least `size`, for `size` of at least 1."""
    return 1 << (size - 1).bit_length()


def largest_power_of_2(size: int) -> int:
    """Return the largest power of two that is at most `size`, or 1."""
    return 1 << (max(1, size).bit_length() - 1)
