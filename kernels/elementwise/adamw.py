"""One step of AdamW over many tensors, in place, in one kernel.

    g = grad / grad_scale
    m = m + (1 - beta1) (g - m),    v = beta2 v + (1 - beta2) g**2
    p = (1 - lr weight_decay) p - lr / (1 - beta1**step) m / (sqrt(v / (1 - beta2**step)) + eps)

    unfused   a dozen elementwise kernels per tensor      p, m, v and temporaries read and written again and again
    fused     read p, g, m and v once, write p, m and v   one launch for all tensors

A program owns one chunk of one tensor. Two tables in device memory list the chunks and tensors: chunk_ptr has each
chunk's tensor and first element, tensor_ptr each tensor's four addresses and its size. If found_inf is set, no program
writes.

Source: Loshchilov and Hutter, arXiv:1711.05101 (AdamW); torch.optim.AdamW(fused=True), which passes the tables as
launch arguments and so limits the number of tensors per launch.
"""

import math
from operator import attrgetter
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import cdiv, check_dense, check_together
from kernels.interpreter import runtime
from kernels.op import FusedOp, Work


@triton.jit
def update(
    p_ptr, g_ptr, m_ptr, v_ptr, col, mask, scale, shrink, rate, root2, rest1, beta2, rest2, eps
):  # fmt: skip
    """Load the elements `col` of a tensor, take one step in fp32, and store them, each rounded once."""
    p = tl.load(p_ptr + col, mask=mask).to(tl.float32)
    g = tl.load(g_ptr + col, mask=mask).to(tl.float32) * scale
    m = tl.load(m_ptr + col, mask=mask).to(tl.float32)
    v = tl.load(v_ptr + col, mask=mask).to(tl.float32)
    m += rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    p = shrink * p - rate * m / (tl.sqrt_rn(v) / root2 + eps)
    tl.store(p_ptr + col, p.to(p_ptr.dtype.element_ty), mask=mask)
    tl.store(m_ptr + col, m.to(m_ptr.dtype.element_ty), mask=mask)
    tl.store(v_ptr + col, v.to(v_ptr.dtype.element_ty), mask=mask)


@triton.jit
def adamw_kernel(
    tensor_ptr,  # (tensors, 5) int64: addresses of parameter, gradient and both moments, then the number of elements
    chunk_ptr,  # (programs, 2) int64: tensor and first element
    step_ptr,  # one fp32 element, or None to use `step`
    scale_ptr,  # one fp32 element that the gradients are divided by, or None
    found_inf_ptr,  # one fp32 element, nonzero to skip the step, or None
    memory,  # the tensors that the addresses point into, where the interpreter checks and meters accesses, or None
    step,
    lr,
    shrink,  # 1 - lr * weight_decay
    log1,  # log(beta1)
    log2,  # log(beta2)
    rest1,  # 1 - beta1, subtracted in Python's float64
    beta2,
    rest2,  # 1 - beta2
    eps,
    P: tl.constexpr,  # dtype of parameters and gradients
    M: tl.constexpr,  # dtype of the moments
    ALIGNED: tl.constexpr,  # whether all addresses are multiples of 16 bytes
    CHUNK: tl.constexpr,  # elements per program, a power of two
):
    row = tensor_ptr + tl.load(chunk_ptr + 2 * tl.program_id(0)) * 5
    start = tl.load(chunk_ptr + 2 * tl.program_id(0) + 1)
    p_ptr = tl.load(row).to(tl.pointer_type(P)) + start
    g_ptr = tl.load(row + 1).to(tl.pointer_type(P)) + start
    m_ptr = tl.load(row + 2).to(tl.pointer_type(M)) + start
    v_ptr = tl.load(row + 3).to(tl.pointer_type(M)) + start
    left = tl.load(row + 4) - start
    if ALIGNED:  # the alignment of a loaded address is unknown, and the compiler would load element by element
        p_ptr, g_ptr = tl.multiple_of(p_ptr, 16), tl.multiple_of(g_ptr, 16)
        m_ptr, v_ptr = tl.multiple_of(m_ptr, 16), tl.multiple_of(v_ptr, 16)
    if step_ptr is not None:
        step = tl.load(step_ptr)
    scale = 1.0
    if scale_ptr is not None:
        scale = 1.0 / tl.load(scale_ptr)
    skipped = False
    if found_inf_ptr is not None:
        skipped = tl.load(found_inf_ptr) != 0
    # fp64: in fp32, 1 - beta**step would lose the digits that cancel.
    rate = lr / (1 - tl.exp(step.to(tl.float64) * log1)).to(tl.float32)
    root2 = tl.sqrt_rn((1 - tl.exp(step.to(tl.float64) * log2)).to(tl.float32))
    col = tl.arange(0, CHUNK)
    if not skipped:
        if left >= CHUNK:  # without masks, which would depend on a size that may be odd, loads are wide
            update(p_ptr, g_ptr, m_ptr, v_ptr, col, None, scale, shrink, rate, root2, rest1, beta2, rest2, eps)
        else:
            update(p_ptr, g_ptr, m_ptr, v_ptr, col, col < left, scale, shrink, rate, root2, rest1, beta2, rest2, eps)


def settings(dtype: torch.dtype = torch.float32) -> dict:
    """Return CHUNK and num_warps: 8 elements per thread from each of the four tensors at a time.

    Times on an H100, against torch.optim.AdamW fused, foreach and compiled: 128 M fp32 elements take 1489 us against
    1694, 4312 and 1816; 64 M bf16 elements take 446 us against 631, 1383 and 596. Four warps take 2 to 3 % longer.
    """
    return {"CHUNK": 2048, "num_warps": 8}


class Tables(NamedTuple):
    """A step's lists of tensors, checked and packed for the kernel."""

    tensors: Tensor  # the kernel's two tables, for the non-empty tensors
    chunks: Tensor
    types: dict  # the kernel's P, M and ALIGNED


MAX_TABLES = 16
_known: dict[tuple, Tables] = {}  # _identity() of an earlier step's lists -> its tables
_kind = attrgetter("dtype", "shape", "device")


def _identity(lists: dict[str, list[Tensor]]) -> tuple | None:
    """Return everything that the checks and the tables depend on, or None if a list holds anything but tensors with an
    address. This takes a third of the checks' time."""
    try:
        return tuple(
            (type(each), *map(Tensor.data_ptr, each), *map(Tensor.is_contiguous, each), *map(_kind, each))
            for each in lists.values()
        )
    except (AttributeError, RuntimeError, TypeError):
        return None


def _tables(lists: dict[str, list[Tensor]], chunk: int) -> Tables:
    """Return the tables of lists that passed the checks."""
    params, moments = lists["params"], lists["exp_avgs"]
    found = [(*(x.data_ptr() for x in each), each[0].numel()) for each in zip(*lists.values(), strict=True)]
    tensors = torch.tensor([each for each in found if each[4]], dtype=torch.int64).view(-1, 5)
    chunks = (tensors[:, 4] + chunk - 1) // chunk
    index = torch.repeat_interleave(torch.arange(len(tensors)), chunks)
    first = (torch.arange(len(index)) - (chunks.cumsum(0) - chunks)[index]) * chunk
    aligned = bool((tensors[:, :4] % 16 == 0).all())
    types = {"P": TRITON[params[0].dtype], "M": TRITON[moments[0].dtype], "ALIGNED": aligned}
    device = params[0].device
    return Tables(tensors.to(device), torch.stack([index, first], dim=1).to(device), types)


TRITON = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _scalars(step, lr, betas, weight_decay, eps) -> tuple[float, ...]:
    beta1, beta2 = betas
    log1, log2 = (math.log(beta) if beta else -math.inf for beta in betas)
    return float(step), lr, 1 - lr * weight_decay, log1, log2, 1 - beta1, beta2, 1 - beta2, eps


@torch.no_grad()
def adamw(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    step: int | Tensor,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Take one AdamW step: update params, exp_avgs and exp_avg_sqs in place, in one launch.

    Args:
        params: contiguous tensors of any sizes, of one dtype, fp32, fp16 or bf16, on one device.
        grads: their gradients, of the same shapes and dtype; only read (torch.optim writes the unscaled gradients
            back).
        exp_avgs, exp_avg_sqs: both moments, either all in the parameters' dtype, as in torch.optim, or all in fp32.
        step: this step's number, counting from 1: an int, or an fp32 tensor of one element on the device; only read.
        lr, betas, eps, weight_decay: as in torch.optim.AdamW.
        grad_scale: the loss's scale, an fp32 tensor of one element. Gradients are divided by it, in fp32.
        found_inf: an fp32 tensor of one element. If it isn't 0, nothing is written.

    Raises:
        TypeError: arguments are not lists of tensors, or have unsupported dtypes.
        ValueError: lists differ in length, shapes don't match, tensors aren't contiguous, devices differ, tensors are
            on the CPU while kernels run on a GPU, or a number is out of range.
    """
    lists = {"params": params, "grads": grads, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    identity = _identity(lists)
    tables = _known.get(identity)
    if tables is None:
        _check_lists(lists)
    _check_numbers(step, lr, betas, eps, weight_decay)
    if not len(params):
        return
    single = {"step": step if isinstance(step, Tensor) else None, "grad_scale": grad_scale, "found_inf": found_inf}
    for name, x in single.items():
        _check_single(name, x, params[0].device)
    options = settings(params[0].dtype)
    if tables is None:
        tables = _tables(lists, options["CHUNK"])
        if len(_known) == MAX_TABLES:
            _known.clear()
        if identity is not None:
            _known[identity] = tables
    if not len(tables.chunks):
        return
    numbers = _scalars(0 if single["step"] is not None else step, lr, betas, weight_decay, eps)
    with torch.cuda.device_of(params[0]):
        memory = tuple(x for each in lists.values() for x in each) if runtime.interprets() else None
        adamw_kernel[(len(tables.chunks),)](
            tables.tensors, tables.chunks, *single.values(), memory, *numbers, **tables.types, **options
        )


def _check_lists(lists: dict[str, list[Tensor]]) -> None:
    params = lists["params"]
    for name, each in lists.items():
        if not isinstance(each, list | tuple):
            raise TypeError(f"adamw takes lists of tensors, got {name} of type {type(each).__name__}: pass [{name}]")
        if len(each) != len(params):
            raise ValueError(
                f"adamw takes lists of one length, got {len(params)} params and {len(each)} {name}: drop parameters "
                f"without a gradient from all four"
            )
    if not params:
        return
    names = [f"{name}[{i}]" for name in ("params", "grads") for i in range(len(params))]
    check_together("adamw", OP.dtypes, **dict(zip(names, (*params, *lists["grads"]), strict=True)))
    moments = {f"{name}[{i}]": x for name in ("exp_avgs", "exp_avg_sqs") for i, x in enumerate(lists[name])}
    for name, x in moments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"adamw takes tensors, got {name} of type {type(x).__name__}: use torch.tensor")
        check_dense("adamw", name, x)
        if x.dtype not in (params[0].dtype, torch.float32):
            raise TypeError(
                f"adamw takes moments of the parameters' dtype or float32, got {name} of {x.dtype} for parameters of "
                f"{params[0].dtype}: convert with .float()"
            )
        if x.dtype != lists["exp_avgs"][0].dtype:
            raise TypeError(f"adamw takes moments of one dtype, got {name} of {x.dtype}: convert it with .to(dtype)")
        if x.device != params[0].device:
            raise ValueError(
                f"adamw takes tensors on one device, got params on {params[0].device} and {name} on {x.device}: "
                f"move one"
            )
    for name, each in lists.items():
        for i, (x, p) in enumerate(zip(each, params, strict=True)):
            if x.shape != p.shape:
                raise ValueError(
                    f"adamw takes params[{i}]'s shape {tuple(p.shape)}, got {name}[{i}] of {tuple(x.shape)}: reshape it"
                )
            if not x.is_contiguous():
                raise ValueError(f"adamw takes contiguous tensors, got {name}[{i}] with strides {x.stride()}: copy it")


def _check_numbers(step, lr, betas, eps, weight_decay) -> None:
    if not isinstance(step, Tensor) and (isinstance(step, bool) or not isinstance(step, int) or step < 1):
        raise ValueError(f"adamw takes step as an int of at least 1 or a tensor, got {step!r}: count this step too")
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        if isinstance(value, Tensor) or not 0 <= value < math.inf:
            raise ValueError(f"adamw takes {name} as a number of at least 0, got {value!r}: pass a float")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"adamw takes betas as two numbers in [0, 1), got {betas!r}: the usual ones are (0.9, 0.999)")


def _check_single(name: str, x: Tensor | None, device: torch.device) -> None:
    if x is None:
        return
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or x.numel() != 1:
        kind = f"{tuple(x.shape)} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"adamw takes {name} as a tensor of one fp32 element, got {kind}: use torch.tensor(1.0)")
    if x.device != device:
        raise ValueError(f"adamw takes tensors on one device, got params on {device} and {name} on {x.device}: move it")


@torch.no_grad()
def adamw_reference(
    params,
    grads,
    exp_avgs,
    exp_avg_sqs,
    step,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=1e-2,
    grad_scale=None,
    found_inf=None,
) -> None:
    """Do the same in PyTorch, unfused, one tensor at a time."""
    if found_inf is not None and found_inf.item():
        return
    beta1, beta2 = betas
    step = float(step)
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        g = g if grad_scale is None else g / grad_scale.to(p.dtype if p.dtype == torch.float64 else torch.float32)
        g = g.to(m.dtype)
        p.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p.addcdiv_(m.to(p.dtype), (v.sqrt() / math.sqrt(correction2) + eps).to(p.dtype), value=-lr / correction1)


def adamw_work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
    """Return FLOPs and minimum traffic for tensors of these sizes, with moments in `dtype`: 14 operations per element;
    parameter, gradient and moments read once, parameter and moments written once, without the tables."""
    elements = sum(shape)
    return Work(
        flops=14 * elements, bytes_read=4 * elements * dtype.itemsize, bytes_written=3 * elements * dtype.itemsize
    )


def _inputs(*sizes: int, device="cpu", **options) -> tuple:
    params, grads, first, second = ([torch.randn(n, device=device, **options) for n in sizes] for _ in range(4))
    return params, grads, first, [x.square() for x in second], 3


def _compile_arguments(*sizes: int, dtype: torch.dtype) -> tuple[tuple, dict]:
    table = torch.empty(len(sizes), 5, dtype=torch.int64, device="meta")
    one = torch.empty((), device="meta")
    types = {"P": TRITON[dtype], "M": TRITON[dtype], "ALIGNED": True}
    return (table, table, None, one, one, None, *_scalars(3, 1e-3, (0.9, 0.999), 1e-2, 1e-8)), types | settings(dtype)


def programs(*sizes: int, dtype: torch.dtype = torch.float32) -> int:
    """Return the number of programs in a launch for tensors of these sizes: one per chunk."""
    return sum(cdiv(n, settings(dtype)["CHUNK"]) for n in sizes)


OP = FusedOp(
    name="adamw",
    fused=adamw,
    reference=adamw_reference,
    work=adamw_work,
    kernel=adamw_kernel,
    settings=settings,
    inputs=_inputs,
    compile_arguments=_compile_arguments,
    interpreter_shapes=((1,), (1, 127, 1025, 4096)),
    gpu_shapes=((4096 * 4096,) * 4,),
    writes=(0, 2, 3),
)
