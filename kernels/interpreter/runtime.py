"""Run kernels: compiled on a GPU, in Triton's interpreter without one.

Importing this module is enough. `@triton.jit` still returns an ordinary `JITFunction`, so Triton's compiler can compile
any kernel at any time, for any GPU; only launches differ. Without a GPU, `kernel[grid](...)` runs the kernel's own
source on NumPy arrays, one program after another, and refuses a block too large for its threads' registers, which would
compile for minutes. With a GPU, importing this module changes nothing in Triton: kernels launch as usual, and the
interpreter takes over only inside `observed`.

Triton's interpreter silently differs from the GPU in a few places. Here each is corrected or refused:

    bfloat16                  Triton computes on the raw 16 bits; here on ml_dtypes' bfloat16, rounding to nearest even
    sums of 16-bit floats     rounded at every addition, in a GPU's order (see Reduce.sum): convert to fp32 first
    maximum, minimum, clamp   drop NaN, as PTX's max and min do, unless propagate_nan is set
    tl.dot in tf32            operands lose their low 13 mantissa bits first, as in Hopper's tensor cores
    tl.dot with K < 16        refused, as the compiler refuses it
    tl.fma                    one rounding
    float to int              saturates, NaN gives 0 (int64: the minimum), as PTX's cvt does; 8 bits are the low byte
    device_assert             fires when the launch has debug=True
    a block as a condition    refused: `if` and `while` take one value
    float arguments           arrive as fp32, as in a compiled launch
    unknown launch options    refused
    multiple_of and the like  checked against the values: a false promise is refused
    accesses outside          every tensor of the launch: refused, because they would hit this process's memory
    masked lanes              of a load without `other` hold NaN, or a value that is not an index: no guarantees
    loops that do not end     stopped after MAX_PASSES, or MAX_SECONDS
    grids that take hours     refused beyond MAX_PROGRAMS
    libdevice                 computed with the errors that CUDA documents, or smaller (see libdevice.py)
    @autotune, @heuristics    the first configuration that fits runs (see configurations.py)
    pointers from numbers     refused unless they point into a tensor of the launch
    float8, inline assembly, bfloat16 atomics, dot_scaled, map_elementwise, clocks    refused: they need a GPU

Some differences remain. a*b + c is rounded twice here and often once on a GPU. Approximate divisions and exponentials
are exact to the last bit but one. A reduction by your own function combines neighbours; a GPU takes any order, so that
the function must be commutative, and argmax of NaN may differ. Programs run one after another, so races don't show.
Programs of a cooperative launch take turns, so that they can wait for each other's counters (resident.py): a wait that
never ends is refused as a deadlock, as is a grid larger than the GPU's number of SMs.

Raises (at import):
    RuntimeError: TRITON_INTERPRET is set, which would replace this interpreter with Triton's own.
"""

import ast
import contextlib
import ctypes
import dataclasses
import functools
import inspect
import linecache
import math
import operator
import re
import threading
import time
import types
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend, CUDAOptions, min_dot_size
from triton.compiler import code_generator as _keeps_language_functions  # noqa: F401  (import it before any is replaced)
from triton.language.extra import cuda as cuda_language
from triton.language.extra import libdevice as any_libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.extra.cuda import utils as cuda_utils
from triton.language.extra.hip import libdevice as hip_libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import JITFunction, get_jit_fn_file_line

from kernels import counters
from kernels.interpreter import configurations, libdevice
from kernels.interpreter.advice import meaning
from kernels.interpreter.bounds import Bounds
from kernels.interpreter.hints import PROMISES
from kernels.interpreter.resident import Programs

if triton.knobs.runtime.interpret:
    raise RuntimeError("TRITON_INTERPRET is set: unset it and restart; without a GPU kernels are interpreted anyway")

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MAX_GRID = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, technical specifications per compute capability
MAX_PASSES = 2**16  # through the loops of one program
MAX_SECONDS = 8.0  # CPU time for one program after MANY_PASSES
MANY_PASSES = 2**13  # a walk through an exercise's 70,000 keys in blocks of 16 has 4,375, and no clock may end it
MAX_PROGRAMS = 2**20  # per launch: ten minutes with a small kernel
RESIDENT = 132  # programs of a cooperative launch: one per SM of an H200, which fits any kernel
LANES = 32  # per warp
VECTOR = 16  # bytes: a lane's widest load
MOST_HELD = 256  # a block's elements per thread, about one per register; twice as many take a minute to compile

# Code objects of interpreted kernels: a frame that runs one of these is in the kernel's own source.
kernel_code: set[types.CodeType] = set()

triton_run = JITFunction.run  # Triton's own launch
_make_ttgir = CUDABackend.make_ttgir
_triton_np_dtype = interpreter._get_np_dtype
_triton_block_type = tl.block_type.__init__
_triton_equal = tl.tuple.__eq__
_triton_load = TritonSemantic._load_legacy
_one_launch_at_a_time = threading.RLock()  # the interpreter's state is one object for the whole process
_has_gpu = torch.cuda.is_available()
_observer = None
# The running launch:
_bounds = Bounds({})
_warps = 4
_passes = 0  # of the running program
_began = 0.0  # its CPU time at the start, in seconds
_programs: Programs | None = None  # those of a cooperative launch
_accesses = 0  # to memory, over all launches
_seed: int | None = None  # for the order of a cooperative launch's programs


def has_gpu() -> bool:
    """Return whether kernels run compiled, because PyTorch sees a CUDA GPU."""
    return _has_gpu


def observer():
    """Return the current observer, as passed to `observed`; None outside of it."""
    return _observer


def interprets() -> bool:
    """Return whether a launch would be interpreted now: there is no GPU, or a meter is watching."""
    return _observer is not None or not has_gpu()


@contextlib.contextmanager
def observed(observer):
    """Interpret every launch inside this context, GPU or not, and report its accesses to `observer`.

    Tensors on a GPU are copied to the host and back. The observer needs three methods:

    `launch(kernel, grid, on_host, given)`, called before a launch. `grid` is three ints; `on_host` maps the arguments'
        names to host values, `given` to what the caller passed, including launch options. Returns the programs to run,
        or None for all.
    `program(index)`, called before each program; `index` is three ints.
    `access(kind, addresses, mask, itemsize, stored)`, called at each load ("read"), store ("write") and atomic
        ("atomic"), with uint64 byte addresses in host memory and bools, both of the block's shape, the element size in
        bytes, and the values of a store, None for the others. Returns the lanes that may go through, or None for all:
        an access outside any tensor must not reach this process's memory.

    These are optional:

    `configured(name, said)`, after a launch of an autotuned kernel: which configuration ran and why.
    `withdraw()`: the launch just reported ended at a static assertion, and another will follow.
    `lock(address, took)`, after each atomic of one element but the relaxed, which order no other access. `took`:
        whether it acquired a lock, by a successful compare-and-swap or by exchanging 0 for something else.
    `barrier()`, at each tl.debug_barrier and reduction.
    `resumed(index)`, in a cooperative launch, when a program resumes after others have run.
    `synchronised(address, acquires, releases)`, in a cooperative launch, after each atomic of one element.
    `product(left, right)`, called with the operands of each `tl.dot` as arrays; the matmul is then not computed. An
        observer with `product` also has `operation(function, elements)`, called at each operation on a block of floats
        with its NumPy function.
    """
    global _observer
    # Don't hold the lock meanwhile: on a GPU, autograd launches backward kernels from another thread.
    with _one_launch_at_a_time:
        before, replaced = _observer, contextlib.ExitStack()
        replaced.enter_context(_replaced(_replacements()))
        _observer = observer
    try:
        yield observer
    finally:
        with _one_launch_at_a_time:
            _observer = before
            replaced.close()


@contextlib.contextmanager
def ordered_by(seed: int | None):
    """Inside this context, run the programs of interpreted cooperative launches in an order drawn from `seed`."""
    global _seed
    before, _seed = _seed, seed
    try:
        yield
    finally:
        _seed = before


_np_dtypes: dict[str, np.dtype] = {}


def _np_dtype(dtype: tl.dtype) -> np.dtype:
    scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
    kept = _np_dtypes.get(scalar.name)
    if kept is None:
        if scalar.name.startswith("fp8"):
            raise NotImplementedError(f"{scalar} needs a GPU: without one, keep the values in float16")
        kept = _np_dtypes[scalar.name] = BFLOAT16 if scalar == tl.bfloat16 else _triton_np_dtype(dtype)
    return kept


# Triton recreates a block's type and shape at each operation, a third of the interpreter's time. Here each shape is
# created once, keyed by sizes and their types: shape, elements, name; for a tensor, shape and elements as constants.
_shapes: dict[tuple, tuple] = {(): ((), 1, "", tl.tuple([]), tl.constexpr(1))}


def _made_block_type(self: tl.block_type, element_ty: tl.dtype, shape) -> None:
    sizes = [size.value if isinstance(size, tl.constexpr) else size for size in shape]
    key = *sizes, *map(type, sizes)
    if not sizes or key not in _shapes:
        _triton_block_type(self, element_ty, shape)
        constants = tl.tuple([tl.constexpr(size) for size in self.shape])
        _shapes[key] = self.shape, self.numel, str(self.shape), constants, tl.constexpr(self.numel)
    self.element_ty = element_ty
    self.shape, self.numel, shown, *self.as_constants = _shapes[key]
    self.name = f"<{shown}, {element_ty}>"


def _made_tensor(self: tl.tensor, handle, type: tl.dtype) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.as_constants if isinstance(type, tl.block_type) else _shapes[()][3:]


def _equal_shapes(self: tl.tuple, other) -> tl.constexpr:
    return tl.constexpr(True) if self is other else _triton_equal(self, other)


def _load(self: TritonSemantic, ptr, mask, other, *options):
    # Triton tests `if other`, and so drops a single 0, which is falsy once tensors have values.
    self.builder.has_other = other is not None
    return _triton_load(self, ptr, mask, other, *options)


def _float_to_int(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    # PTX's cvt saturates and has no 8-bit form, so LLVM converts to 16 bits and keeps the low 8.
    wide = np.dtype(dtype.kind + str(max(2, dtype.itemsize)))
    limits = np.iinfo(wide)
    nan = -(2.0**63) if dtype == np.int64 else 0.0
    exact = np.nan_to_num(np.trunc(data.astype(np.float64)), nan=nan)
    inside = (exact >= limits.min) & (exact <= limits.max) & (exact < 2.0**63 if wide.kind == "i" else exact < 2.0**64)
    saturated = np.where(exact < 0, limits.min, limits.max).astype(wide)
    return np.where(inside, np.where(inside, exact, 0).astype(wide), saturated).astype(dtype)


def _toward_zero(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype == BFLOAT16:
        return (data.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    nearest = data.astype(dtype)
    return np.where(np.abs(nearest.astype(data.dtype)) > np.abs(data), np.nextafter(nearest, dtype.type(0)), nearest)


def _int_to_bfloat16(data: np.ndarray) -> np.ndarray:
    # Going through fp32 can create a tie. Round to odd on the way (truncate, and set the last bit if anything was
    # lost): the result is then rounded once, as in cvt.rn.bf16.s32. Boldo and Melquiond, "When double rounding is odd",
    # 2005.
    exact = data.astype(np.float64)
    truncated = _toward_zero(exact, np.dtype(np.float32))
    return (truncated.view(np.uint32) | (truncated != exact)).view(np.float32).astype(BFLOAT16)


def _garbage(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return the contents of masked-off lanes: NaN, or a large integer."""
    made = np.empty(shape, dtype)
    if dtype.kind in "iub":
        made.view(np.uint8).fill(0x5A)
    else:
        made.fill(np.nan)
    return made


def _allowed(kind: str, addresses: np.ndarray, mask, itemsize: int, stored=None) -> np.ndarray:
    """Return the lanes of an access that go through: the mask's, without those that the observer blocks.

    Raises:
        IndexError: a lane is outside every tensor of the launch.
    """
    global _accesses
    _accesses += 1
    mask = mask.data if isinstance(mask, interpreter.TensorHandle) else mask  # descriptors pass a bare array
    kept = None if _observer is None else _observer.access(kind, addresses, mask, itemsize, stored)
    lanes = np.asarray(mask if kept is None else kept, dtype=bool)
    _bounds.check(kind, addresses, lanes, itemsize)
    return lanes


def _tell_of_lock(pointer, sem, took: bool) -> None:
    tell = getattr(_observer, "lock", None)
    if tell is not None and sem != interpreter._ir.MEM_SEMANTIC.RELAXED:
        tell(int(pointer.data.reshape(())), took)


def _synchronise(pointer, sem) -> None:
    """Report an atomic of one element in a cooperative launch, and let other programs run."""
    if _programs is None or pointer.data.size != 1:
        return
    tell, kinds = getattr(_observer, "synchronised", None), interpreter._ir.MEM_SEMANTIC
    if tell is not None:
        both = sem == kinds.ACQUIRE_RELEASE
        tell(int(pointer.data.reshape(())), both or sem == kinds.ACQUIRE, both or sem == kinds.RELEASE)
    _programs.pause()


def _wait_for_others(counter_ptr: tl.tensor, value) -> None:
    """Let other programs run until the counter at `counter_ptr` has reached `value`.

    Raises:
        RuntimeError: the launch is not cooperative.
        TypeError: the counter is not int32.
    """
    if _programs is None:
        raise RuntimeError(
            "wait needs programs that are resident together: launch with launch_cooperative_grid=True, and at most one "
            "program per multiprocessor"
        )
    if counter_ptr.dtype != tl.pointer_type(tl.int32):
        raise TypeError(f"wait takes a pointer to one int32, got {counter_ptr.type}: make counters torch.int32")
    value = int(value)
    _bounds.check("atomic", counter_ptr.handle.data, np.ones(counter_ptr.handle.data.shape, bool), 4)
    address = int(counter_ptr.handle.data.reshape(()))
    counter = ctypes.c_int32.from_address(address)
    _programs.pause(
        lambda: counter.value >= value, lambda: f"for {_bounds.place(address)} to reach {value} (it is {counter.value})"
    )


def _report(op, data: np.ndarray) -> None:
    if data.dtype.kind in "fV" and hasattr(_observer, "operation"):
        _observer.operation(op, data.size)


class Builder(interpreter.InterpreterBuilder):
    """Triton's interpreter, with its differences from the GPU corrected; reports memory accesses to the observer."""

    has_other = False  # whether the current load has `other`
    volatile = False  # whether the last load is

    def unary_op(self, arg, op):
        _report(op, arg.data)
        return super().unary_op(arg, op)

    def binary_op(self, lhs, rhs, op):
        _report(op, lhs.data)
        return super().binary_op(lhs, rhs, op)

    def get_bf16(self, value):
        return interpreter.TensorHandle(np.array([value], dtype=BFLOAT16), tl.bfloat16)

    # Memory. The C++ part knows only NumPy's own types, so bfloat16 passes through it as 16-bit integers.
    def create_masked_load(self, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile):
        dtype = ptrs.get_element_ty()
        np_dtype = _np_dtype(dtype)
        raw = np.dtype(np.uint16) if np_dtype == BFLOAT16 else np_dtype
        self.volatile = is_volatile
        lanes = _allowed("read", ptrs.data, mask, np_dtype.itemsize)
        if other is not None:
            fill = other.data.view(raw)
        else:
            shape = ptrs.data.shape
            fill = np.zeros(shape, raw) if self.has_other else _garbage(shape, np_dtype).view(raw)
        self.has_other = False  # a block pointer's load doesn't set it
        return interpreter.TensorHandle(
            interpreter._interpreter.load(ptrs.data, lanes, fill, raw).view(np_dtype), dtype
        )

    def create_masked_store(self, ptrs, value, mask, cache_modifier, eviction_policy):
        data = value.data.view(np.uint16) if value.data.dtype == BFLOAT16 else value.data
        interpreter._interpreter.store(ptrs.data, data, _allowed("write", ptrs.data, mask, data.dtype.itemsize, data))

    def create_atomic_rmw(self, rmwOp, ptr, val, mask, sem, scope):
        if val.data.dtype == BFLOAT16:
            raise NotImplementedError("atomics on bfloat16 need a GPU: accumulate in float32 instead")
        if ptr.data.shape != val.data.shape:
            raise ValueError(
                "an atomic takes one value per pointer: reduce the block first, or give it a block of pointers"
            )
        lanes = interpreter.TensorHandle(_allowed("atomic", ptr.data, mask, val.data.dtype.itemsize), tl.int1)
        before = super().create_atomic_rmw(rmwOp, ptr, val, lanes, sem, scope)
        np.copyto(before.data, _garbage(before.data.shape, before.data.dtype), where=~lanes.data)
        if lanes.data.size == 1 and lanes.data.all():
            exchanged = rmwOp == interpreter._ir.ATOMIC_OP.XCHG
            _tell_of_lock(ptr, sem, took=exchanged and not before.data.any() and bool(val.data.any()))
            _synchronise(ptr, sem)
        return before

    def create_atomic_cas(self, ptr, cmp, val, sem, scope):
        everywhere, itemsize = np.ones(ptr.data.shape, dtype=bool), _np_dtype(ptr.get_element_ty()).itemsize
        if any((each.data.shape, each.data.dtype.itemsize) != (ptr.data.shape, itemsize) for each in (cmp, val)):
            raise ValueError(
                f"a compare-and-swap takes two values of the pointer's shape and dtype, here {ptr.get_element_ty()}: "
                "write tl.full(shape, value, dtype)"
            )
        if not np.all(_allowed("atomic", ptr.data, everywhere, itemsize)):
            raise IndexError("a compare-and-swap lies outside the tensor: check its offset")
        before = super().create_atomic_cas(ptr, cmp, val, sem, scope)
        if ptr.data.size == 1:
            _tell_of_lock(ptr, sem, took=bool((before.data == cmp.data).all()))
            _synchronise(ptr, sem)
        return before

    # Conversions
    def cast_impl(self, src, dst_type):
        np_dtype = _np_dtype(dst_type)
        if src.data.dtype.kind in "fV" and np_dtype.kind in "iu":
            return interpreter.TensorHandle(_float_to_int(src.data, np_dtype), dst_type.scalar)
        if src.data.dtype.kind in "iu" and np_dtype == BFLOAT16:
            return interpreter.TensorHandle(_int_to_bfloat16(src.data), dst_type.scalar)
        return interpreter.TensorHandle(src.data.astype(np_dtype), dst_type.scalar)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        np_dtype = _np_dtype(dst_type)
        if rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ:
            return interpreter.TensorHandle(_toward_zero(src.data, np_dtype), dst_type.scalar)
        return interpreter.TensorHandle(src.data.astype(np_dtype), dst_type.scalar)

    # Arithmetic. PTX's max and min return the operand that is not NaN; so do fmax and fmin.
    def create_maxnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.fmax)

    def create_minnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, np.fmin)

    def create_clampf(self, arg, low, high, propagate_nans):
        clamped = np.fmin(np.fmax(arg.data, low.data), high.data)  # NaN becomes `low`
        nan = np.isnan(arg.data)
        if propagate_nans == interpreter._ir.PROPAGATE_NAN.ALL:
            clamped = np.where(nan, arg.data, clamped)
        elif arg.dtype.scalar in (tl.float32, tl.float16) and np.all(low.data == -high.data):
            # From compute capability 8.6, symmetric bounds compile to min.xorsign.abs: NaN becomes +-high.
            clamped = np.where(nan, np.copysign(high.data, arg.data), clamped)
        return interpreter.TensorHandle(clamped.astype(arg.data.dtype), arg.dtype.scalar)

    def create_fma(self, x, y, z):
        if z.data.dtype.kind not in "fV":
            return interpreter.TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
        # A product of two fp32 values is exact in fp64: only the sum rounds.
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    def create_umulhi(self, lhs, rhs):  # of the bits, whatever their sign
        unsigned = (interpreter.TensorHandle(x.data.view(f"u{x.data.itemsize}"), x.dtype) for x in (lhs, rhs))
        return interpreter.TensorHandle(super().create_umulhi(*unsigned).data.view(lhs.data.dtype), lhs.dtype.scalar)

    def create_histogram(self, data, bins, mask):
        values = data.data if mask is None else data.data[np.broadcast_to(mask.data, data.data.shape)]
        if data.data.dtype.itemsize != 4:
            raise TypeError(f"tl.histogram takes int32, got {data.dtype.scalar}: write x.to(tl.int32)")
        _check_places(values, bins, f"tl.histogram of {bins} bins takes values from 0 to {bins - 1}")
        return interpreter.TensorHandle(np.bincount(values.ravel(), minlength=bins).astype(np.int32), tl.int32)

    def create_gather(self, src, indices, axis):
        size = src.data.shape[axis]
        _check_places(indices.data, size, f"tl.gather along {size} elements takes indices from 0 to {size - 1}")
        return super().create_gather(src, indices, axis)

    def create_barrier(self):
        getattr(_observer, "barrier", bool)()

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        left, right = a.data, b.data
        if hasattr(_observer, "product"):
            _observer.product(left, right)
            return d
        if left.dtype == BFLOAT16:
            left, right = left.astype(np.float32), right.astype(np.float32)
        elif left.dtype == np.float32 and input_precision == interpreter._ir.INPUT_PRECISION.TF32:
            left, right = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (left, right))
        elif left.dtype == np.float32 and input_precision in _BFLOAT16_PARTS:
            count = _BFLOAT16_PARTS[input_precision]
            left, right = _bfloat16_parts(left, count), _bfloat16_parts(right, count)
            products = [left[i] @ right[j] for i in range(count) for j in range(count - i)]
            return interpreter.TensorHandle(sum(reversed(products), start=d.data), d.dtype.scalar)
        return interpreter.TensorHandle(np.matmul(left, right, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    def create_extern_elementwise(self, libName, libPath, symbol, argList, retType, isPure):
        arguments = [each.data for each in argList]
        _report(np.exp, arguments[0])  # counted like the special functions
        dtype = retType.scalar
        return interpreter.TensorHandle(libdevice.call(symbol, arguments).astype(_np_dtype(dtype), copy=False), dtype)

    def create_int_to_ptr(self, val, dst_ty):
        if not _bounds.hold(val.data):
            raise ValueError("a pointer made from a number points into no tensor of the launch: pass that tensor too")
        return super().create_int_to_ptr(val, dst_ty)

    # GPU only
    def create_inline_asm(self, inlineAsm, constraints, values, type, isPure, pack):
        raise NotImplementedError("inline assembly needs a GPU: write the operation with tl functions")


def _check_places(values: np.ndarray, size: int, takes: str) -> None:
    outside = values[(values < 0) | (values >= size)]
    if outside.size:
        raise ValueError(f"{takes}, got {int(outside[0])}: mask or clamp it, as a GPU doesn't check")


# tl.dot's input_precision -> how many bfloat16 numbers each operand is split into.
_BFLOAT16_PARTS = {interpreter._ir.INPUT_PRECISION.BF16x3: 2, interpreter._ir.INPUT_PRECISION.BF16x6: 3}


def _bfloat16_parts(data: np.ndarray, count: int) -> list[np.ndarray]:
    """Split fp32 values into `count` bfloat16 numbers, each nearest to the remainder; return these as fp32."""
    parts = []
    for _ in range(count):
        parts.append(data.astype(BFLOAT16).astype(np.float32))
        data = data - parts[-1]
    return parts


def _halved(data: np.ndarray) -> np.ndarray:
    """Sum along the last axis, adding its second half to its first until one value is left: a warp's butterfly."""
    while data.shape[-1] > 1:
        half = data.shape[-1] // 2
        data = data[..., :half] + data[..., half:]
    return data[..., 0]


def _added_as_by_a_block(data: np.ndarray) -> np.ndarray:
    """Sum 16-bit floats along the last axis, rounding at each addition, in the order of a block that loaded a row.

    Each lane first adds its own values one after another: 16 contiguous bytes, then the 16 bytes one block width
    further on, and so on. Lanes are then added in halves, then warps. This is the order of Triton 3.6's `tl.sum` on an
    H200. Other versions, and tiles with other lane layouts, round as often but in another order.
    """
    length = data.shape[-1]
    side_by_side = min(VECTOR // data.itemsize, max(1, length // (LANES * _warps)))
    threads = min(LANES * _warps, length // side_by_side)
    held = data.reshape(*data.shape[:-1], -1, threads, side_by_side)
    held = np.moveaxis(held, -3, -2).reshape(*data.shape[:-1], threads, -1)
    of_thread = held[..., 0]
    for place in range(1, held.shape[-1]):
        of_thread = of_thread + held[..., place]
    of_warp = _halved(of_thread.reshape(*data.shape[:-1], -1, min(LANES, threads)))
    return _halved(of_warp)


class Reduce(interpreter.ReduceOps):
    """Triton's interpreted reductions, but 16-bit floats are added in 16 bits, and maxima drop NaN without a
    warning."""

    def sum(self, input):
        data = input.handle.data
        data = data.ravel() if self.axis is None else np.moveaxis(data, self.axis, -1)
        if data.dtype in (np.float16, BFLOAT16):
            total = _added_as_by_a_block(data)
        else:  # NumPy adds contiguous values pairwise, others one after another
            total = np.sum(np.ascontiguousarray(data), axis=-1)
        if self.keep_dims:
            total = np.expand_dims(total, tuple(range(len(input.shape))) if self.axis is None else self.axis)
        return self.to_tensor(total, input.dtype)

    def apply_impl(self, input):
        interpreter.interpreter_builder.create_barrier()
        # Those of tl.argmin and tl.argmax; the indices may be the caller's own.
        smallest = self.combine_fn == tl.standard._argmin_combine_tie_break_left
        if not smallest and self.combine_fn != tl.standard._argmax_combine_tie_break_left:
            return super().apply_impl(input)
        data, index = (part.handle.data for part in input)
        best = (np.min if smallest else np.max)(data, self.axis, keepdims=True)
        index = np.where((data == best) | (data != data), index, index.max()).min(self.axis, keepdims=True)
        found = (best, index) if self.keep_dims else (np.squeeze(best, self.axis), np.squeeze(index, self.axis))
        return [self.to_tensor(each, part.dtype) for each, part in zip(found, input, strict=True)]

    def generic_reduce(self, input):
        # Combine neighbours in a tree, as on a GPU, whole blocks at a time; lengths are powers of two.
        axis, function = -1 if self.axis is None else self.axis, _python_function(self.combine_fn)
        dtypes = [part.dtype for part in input]
        parts = [part.handle.data.ravel() if self.axis is None else part.handle.data for part in input]
        parts = [np.moveaxis(part, axis, -1) for part in parts]
        while parts[0].shape[-1] > 1:
            left = [self.to_tensor(part[..., 0::2], dtype) for part, dtype in zip(parts, dtypes, strict=True)]
            right = [self.to_tensor(part[..., 1::2], dtype) for part, dtype in zip(parts, dtypes, strict=True)]
            try:
                combined = function(*left, *right)
            except ValueError:  # of a block as a condition: on a GPU, it combines single values
                self.combine_fn = types.SimpleNamespace(fn=function)
                return super().generic_reduce(input)
            shape = (*parts[0].shape[:-1], parts[0].shape[-1] // 2)
            combined = combined if isinstance(combined, tuple) else (combined,)
            parts = [np.broadcast_to(each.handle.data, shape) for each in combined]
        if not self.keep_dims:
            parts = [part[..., 0] for part in parts]
        elif self.axis is None:
            parts = [part.reshape((1,) * len(input[0].shape)) for part in parts]
        else:
            parts = [np.moveaxis(part, -1, axis) for part in parts]
        return [self.to_tensor(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)]

    def min_max(self, input, val_reduce_op, idx_reduce_op=None):
        quiet = {np.nanmax: np.fmax.reduce, np.nanmin: np.fmin.reduce}
        return super().min_max(input, quiet.get(val_reduce_op, val_reduce_op), idx_reduce_op)


class Scan(interpreter.ScanOps):
    def generic_scan(self, input):
        self.combine_fn = types.SimpleNamespace(fn=_python_function(self.combine_fn))
        return super().generic_scan(input)


class _Changes(dict):
    """Collects the attributes that Triton's interpreter would set in triton.language, without setting them."""

    def set_attr(self, owner, name, value):
        self[id(owner), name] = (owner, name, value)


def _one_value(self) -> bool:
    data = self.handle.data
    if data.size == 1:
        return bool(data.reshape(()))
    if inspect.currentframe().f_back.f_code in kernel_code:
        raise ValueError(
            f"a block of {data.size} values is not one condition: choose with tl.where, or join with & and |"
        )
    return True  # Triton's own `if mask and ...` only tests whether there is a mask


def _refusing(said: str):
    def refuse(*_, **__):
        raise NotImplementedError(said)

    return refuse


_NEED_A_GPU = {
    "map_elementwise": "choose with tl.where",
    "dot_scaled": "scale the operands and call tl.dot",
    "globaltimer": "there is no clock without one",
    "smid": "which multiprocessor runs a program is known only there",
}


@functools.cache
def _interpreted_language() -> list:
    """Return every (owner, attribute, value) that makes triton.language work on NumPy arrays."""
    changes = _Changes()
    for language in (tl, tl.core):
        interpreter._patch_builtin(language, interpreter.interpreter_builder, changes)
        interpreter._patch_lang_core(language, changes)
        for name, promise in PROMISES.items():
            changes.set_attr(language, name, promise)
        changes.set_attr(language, "static_assert", _static_assert)
        changes.set_attr(language, "range", _range)
    for owner in (tl.tensor, tl.math, tl.core.tensor_descriptor_base, cuda_libdevice):
        interpreter._patch_builtin(owner, interpreter.interpreter_builder, changes)
    for name, function in vars(any_libdevice).items():
        if isinstance(function, types.FunctionType):  # an empty function; the compiler replaces it with the GPU's
            own = changes.get((id(cuda_libdevice), name))
            changes.set_attr(
                any_libdevice, name, own[2] if own else _refusing(f"NVIDIA's libdevice has no {name}: write it out")
            )
    for name, function in vars(hip_libdevice).items():
        if isinstance(function, types.FunctionType):
            said = (
                f"triton.language.extra.hip.libdevice.{name} is AMD's: import it from triton.language.extra.libdevice"
            )
            changes.set_attr(hip_libdevice, name, _refusing(said))
    interpreter._patch_lang_tensor(tl.tensor, changes)
    for name, member in inspect.getmembers(tl.tensor, lambda member: isinstance(member, JITFunction)):
        changes.set_attr(tl.tensor, name, functools.partialmethod(member))
    for name, said in _NEED_A_GPU.items():
        for owner in (tl, tl.core, cuda_language, cuda_utils):
            if hasattr(owner, name):
                changes.set_attr(owner, name, _refusing(f"{name} needs a GPU: {said}"))
    changes.set_attr(tl.block_type, "__init__", _made_block_type)
    changes.set_attr(tl.tensor, "__init__", _made_tensor)
    changes.set_attr(tl.tuple, "__eq__", _equal_shapes)
    changes.set_attr(TritonSemantic, "_load_legacy", _load)
    changes.set_attr(tl.tensor, "__bool__", _one_value)
    changes.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.reshape(())))
    changes.set_attr(JITFunction, "__call__", _called_from_kernel)
    return list(changes.values())


@functools.cache
def _interpreted_functions() -> dict[int, object]:
    """Map the id of each function of triton.language to its interpreted form, for code that imported it by name."""
    return {
        id(vars(owner)[name]): value
        for owner, name, value in _interpreted_language()
        if isinstance(owner, types.ModuleType) and name in vars(owner)
    }


def _resolved(value):
    if isinstance(value, types.FunctionType) and value.__module__ == any_libdevice.__name__:
        return getattr(any_libdevice, value.__name__, value)  # found as by the compiler: a module may be loaded twice
    return _interpreted_functions().get(id(value), value)


def _resolved_in_another_module(value):
    # Without the compiler, the empty function is not replaced with the GPU's.
    if getattr(value, "__module__", None) == any_libdevice.__name__:
        raise NotImplementedError(
            f"Triton compiles {value.__name__} of triton.language.extra.libdevice only where the kernel's own file "
            f"imports it: write from triton.language.extra.libdevice import {value.__name__}"
        )
    return _resolved(value)


@contextlib.contextmanager
def _language_interpreted():
    missing = object()
    _interpreted_functions()  # keyed by the function it replaces, so call it first
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in _interpreted_language()]
    try:
        for owner, name, value in _interpreted_language():
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


class _Index(int):
    """The index of a loop over a range. To the compiler it is an int32 tensor, so kernels may write i.to(tl.int64)."""

    def __getattr__(self, name):
        return getattr(interpreter.interpreter_semantic.to_tensor(int(self)), name)


def _add_operator(name: str, compute: Callable) -> None:
    def operate(self, *other):
        if not all(isinstance(each, int) for each in other):
            return NotImplemented
        result = compute(self, *other)
        if not isinstance(result, int):
            return result
        wraps = not -(2**31) <= result < 2**31 and all(-(2**31) <= each < 2**31 for each in (self, *other))
        return _Index((result + 2**31) % 2**32 - 2**31 if wraps else result)

    setattr(_Index, f"__{name}__", operate)


def _quotient(a: int, b: int) -> int:
    """Divide, rounding toward 0 as a GPU does."""
    return abs(a) // abs(b) if (a < 0) == (b < 0) else -(abs(a) // abs(b))


_OF_TWO = {
    **{name: getattr(int, f"__{name}__") for name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift")},
    "floordiv": _quotient,
    "mod": lambda a, b: int(a) - int(b) * _quotient(a, b),
    "truediv": lambda a, b: interpreter.interpreter_semantic.to_tensor(int(a)) / int(b),
}
for _name, _compute in _OF_TWO.items():
    _add_operator(_name, _compute)
    _add_operator(f"r{_name}", lambda a, b, compute=_compute: compute(b, a))
for _name in ("neg", "invert"):
    _add_operator(_name, getattr(int, f"__{_name}__"))


passes = range  # a check replaces it, where only the ends of a loop run


def _range(start, stop=None, step=None, **options):
    """Replace range and tl.range in kernels. To the compiler, an index is int64 where a bound is, and only a constant
    step counts down: it compares with `<` otherwise."""
    bounds = (*((0, start) if stop is None else (start, stop)), 1 if step is None else step)
    if isinstance(step, tl.tensor) and int(step) < 0:
        raise ValueError("on a GPU a loop counts down by a constant only: make its step a tl.constexpr")
    wide = any(isinstance(each, tl.tensor) and each.dtype.primitive_bitwidth == 64 for each in bounds)
    indices = map(_Index, passes(*map(operator.index, bounds)))
    return (index.to(tl.int64) for index in indices) if wide else indices


class _Rewritten(ast.NodeTransformer):
    """Counts every pass through a loop, and calls the interpreted form of Triton functions that other modules imported.

    Args:
        namespace: the kernel's globals.
    """

    COUNT = "_interpreter_counts_a_pass"
    RESOLVE = "_interpreter_resolves"

    def __init__(self, namespace: dict):
        self._namespace = namespace

    def visit_Call(self, call):
        self.generic_visit(call)
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        module = self._namespace.get(root.id) if isinstance(root, ast.Name) and root is not call.func else None
        if isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] != "triton":
            resolve = ast.copy_location(ast.Name(self.RESOLVE, ast.Load()), call.func)
            call.func = ast.copy_location(ast.Call(resolve, [call.func], []), call.func)
        return call

    def visit_For(self, loop):
        self.generic_visit(loop)
        count = ast.Expr(ast.Call(ast.Name(self.COUNT, ast.Load()), [], []))
        for node in ast.walk(count):
            ast.copy_location(node, loop)
        loop.body.insert(0, count)
        return loop

    def visit_While(self, loop):
        return self.visit_For(loop)

    def visit_Break(self, statement):
        return self._refused("break")

    def visit_Continue(self, statement):
        return self._refused("continue")

    def _refused(self, word):
        raise NotImplementedError(f"a kernel has no {word}: put the condition into a `while`, or mask what it skips")

    def visit_comprehension(self, loop):
        self.generic_visit(loop)
        # Counting returns None, which keeps the element.
        loop.ifs.insert(0, ast.UnaryOp(ast.Not(), ast.Call(ast.Name(self.COUNT, ast.Load()), [], [])))
        return loop


def _count_pass() -> None:
    global _passes
    _passes += 1
    slow = _passes >= MANY_PASSES and _passes % 64 == 0 and time.thread_time() - _began > MAX_SECONDS
    if slow or _passes > MAX_PASSES:
        raise RuntimeError(
            f"{min(_passes, MAX_PASSES):,} passes through loops in one program instance: does this one end? Change "
            "what its condition compares, or take larger blocks"
        )


_sources: dict[types.FunctionType, types.CodeType] = {}
_names: dict[types.FunctionType, set[str]] = {}  # the names that a kernel's source uses


def _python_function(kernel: JITFunction):
    """Return the kernel as a Python function over interpreted tensors, with its current globals and closure."""
    code = _sources.get(kernel.fn)
    if code is None:
        filename, first_line = get_jit_fn_file_line(kernel)
        tree = _Rewritten(kernel.fn.__globals__).visit(interpreter.ASTTransformer().visit(kernel.parse()))
        _names[kernel.fn] = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        ast.increment_lineno(ast.fix_missing_locations(tree), first_line - 1)
        code = _sources[kernel.fn] = compile(tree, filename, "exec")
        if not kernel.fn.__module__.startswith("triton."):
            kernel_code.update(const for const in code.co_consts if isinstance(const, types.CodeType))
    closure = dict(zip(kernel.fn.__code__.co_freevars, kernel.fn.__closure__ or (), strict=True))
    namespace = {
        "range": _range,
        **kernel.fn.__globals__,
        **{name: cell.cell_contents for name, cell in closure.items()},
        "interpreter_semantic": interpreter.interpreter_semantic,
        _Rewritten.COUNT: _count_pass,
        _Rewritten.RESOLVE: _resolved_in_another_module,
    }
    for name in _names[kernel.fn]:
        if name in namespace:
            namespace[name] = _resolved(namespace[name])
    exec(code, namespace)
    return namespace[kernel.fn.__name__]


def _called_from_kernel(self: JITFunction, *args, **kwargs):
    if self is counters.wait:
        _wait_for_others(*args, **kwargs)
        if not _programs.waiting:
            return None
    return _python_function(self)(*args, **kwargs)


def _as_argument(value):
    if isinstance(value, bool):
        return tl.tensor(interpreter.TensorHandle(np.array([value]), tl.int1), tl.int1)
    if isinstance(value, float):
        return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
    return interpreter._implicit_cvt(value)


def _where(kernel: JITFunction, error: Exception) -> tuple[str, tuple[str, int] | None]:
    """Return the innermost kernel that the error passed through, and the file and line in it."""
    found = kernel.fn.__name__, None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code in kernel_code:
            found = code.co_name, (code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _checked_grid(kernel: JITFunction, grid, bound: dict) -> tuple[int, int, int]:
    grid = grid(bound) if callable(grid) else grid
    sizes = (*grid, 1, 1)[:3] if isinstance(grid, tuple | list) and 1 <= len(grid) <= 3 else (None,) * 3
    if not all(isinstance(size, int) and 0 <= size <= limit for size, limit in zip(sizes, MAX_GRID, strict=True)):
        mend = f"write ({grid},), a tuple" if isinstance(grid, int) else "count with triton.cdiv(elements, BLOCK)"
        raise ValueError(f"{kernel.fn.__name__}: a grid is 1 to 3 sizes of at most {MAX_GRID}, got {grid}: {mend}")
    return sizes


@functools.cache
def _launch_options() -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(CUDAOptions)) | {"debug"}


def _interpreted_run(self: JITFunction, *args, grid, warmup, **kwargs):
    if warmup:
        return
    name = self.fn.__name__
    if any(isinstance(value, tl.tensor) for value in (*args, *kwargs.values())):
        raise TypeError(f"a kernel cannot launch another: call it as a function, {name}(...), without a grid")
    unknown = kwargs.keys() - set(self.arg_names) - _launch_options()
    if unknown:
        raise KeyError(f"{name} has no parameter or launch option {', '.join(sorted(unknown))}")
    warps = kwargs.get("num_warps", 4)
    if warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"{name}: num_warps is a power of two from 1 to 32, got {warps}")
    given = {key: value for key, value in kwargs.items() if key in self.arg_names}
    bound = inspect.signature(self.fn).bind(*args, **given)
    bound.apply_defaults()
    names, values = list(bound.arguments), list(bound.arguments.values())
    grid = _checked_grid(self, grid, bound.arguments)
    cooperative = bool(kwargs.get("launch_cooperative_grid", False))
    resident = getattr(_observer, "resident", None) or getattr(_observer, "multiprocessors", None) or RESIDENT
    if cooperative and math.prod(grid) > resident:
        raise ValueError(
            f"{name}: a cooperative launch of {math.prod(grid)} programs; only {resident} are certain to be resident, "
            f"one per multiprocessor: launch at most {resident}, each with more work"
        )

    with _one_launch_at_a_time, np.errstate(all="ignore"):
        copies = interpreter.GridExecutor(self.fn, names, grid)
        on_host, _ = copies._init_args_hst(values, {})
        for hook in self.pre_run_hooks:
            hook(*on_host)
        arguments = dict(zip(names, on_host, strict=True))
        instances = None
        if _observer is not None:
            options = {key: value for key, value in kwargs.items() if key not in given}
            instances = _observer.launch(self, grid, arguments, {**bound.arguments, **options})
        debug = bool(kwargs.get("debug", self.debug))
        _interpret(self, grid, instances, arguments, warps, debug, cooperative)
        copies._restore_args_dev(values, on_host, {}, {})


def _in_order(grid: tuple[int, int, int]):
    """Yield every program, x fastest: the order in which a GPU schedules blocks.

    Raises:
        ValueError: there are more than MAX_PROGRAMS.
    """
    programs = math.prod(grid)
    if programs > MAX_PROGRAMS:
        raise ValueError(
            f"a grid of {programs:,} program instances would be interpreted for hours; the limit is {MAX_PROGRAMS:,}: "
            "take larger blocks and count with triton.cdiv(elements, BLOCK), or smaller tensors"
        )
    return ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))


def _interpret(
    kernel: JITFunction,
    grid: tuple[int, int, int],
    instances,
    arguments: dict,
    warps: int,
    debug: bool,
    cooperative: bool,
) -> None:
    global _bounds, _warps, _programs
    _bounds, _warps = Bounds(arguments), warps
    builder = interpreter.interpreter_builder
    # Triton's overflow checks take eight operations per integer operation, and report nothing without debug=True.
    builder.options = dataclasses.replace(
        builder.options,
        debug=debug,
        sanitize_overflow=debug,
        allowed_dot_input_precisions=CUDAOptions.allowed_dot_input_precisions,
    )
    builder.set_grid_dim(*grid)
    constants = {kernel.arg_names[i] for i in kernel.constexprs}
    with _language_interpreted():
        try:
            function = _python_function(kernel)
            arguments = {name: value if name in constants else _as_argument(value) for name, value in arguments.items()}
            run = functools.partial(_run_program, function, arguments)
            indices = _in_order(grid) if instances is None else instances
            if cooperative:
                _programs = Programs(run, _resume, _seed, waiting=instances is None)
                _programs.run(indices)
            else:
                for index in indices:
                    run(index)
        except Exception as error:
            name, place = _where(kernel, error)
            line = f"{name}, line {place[1]}, `{linecache.getline(*place).strip()}`" if place else name
            raised = InterpreterError(f"{line}: {meaning(error)}")
            raised.place = place  # file and line, for display
            raised.static = isinstance(error, _StaticAssertionError)
            raise raised from None
        finally:
            _programs = None


def _run_program(function: Callable, arguments: dict, index: tuple[int, int, int]) -> None:
    global _passes, _began
    interpreter.interpreter_builder.set_grid_idx(*index)
    _passes, _began = 0, time.thread_time()
    if _observer is not None:
        _observer.program(index)
    function(**arguments)


def _resume(index: tuple[int, int, int]) -> None:
    """Resume a program of a cooperative launch after others have run; its passes through loops are counted from
    here."""
    global _passes, _began
    interpreter.interpreter_builder.set_grid_idx(*index)
    _passes, _began = 0, time.thread_time()
    if hasattr(_observer, "resumed"):
        _observer.resumed(index)


class _StaticAssertionError(AssertionError):
    """A static_assert failed in the interpreted kernel."""


def _static_assert(condition, message="") -> None:
    if not condition:
        message = message.value if isinstance(message, tl.constexpr) else message
        raise _StaticAssertionError(f"static_assert fails: {message}" if message else "static_assert fails")


def _first_that_fits(self: Autotuner, *args, **kwargs):
    """Replace Autotuner.run where kernels are interpreted: see configurations.py."""
    positional = dict(zip(self.arg_names, args, strict=False))
    refused = None
    with _disable_current_modes():  # tuning is not part of the metered call
        tried = iter(configurations.candidates(self, positional, kwargs))
        config, how = next(tried)
    while config is not None:
        given = positional | kwargs | config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook(given)
        before = _accesses
        try:
            result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        except InterpreterError as error:
            if not getattr(error, "static", False) or _accesses != before:
                raise
            if hasattr(_observer, "withdraw"):
                _observer.withdraw()
            refused, (config, how) = error, next(tried, (None, ""))
            continue
        self.best_config = config
        if hasattr(_observer, "configured"):
            _observer.configured(self.base_fn.__name__, f"{configurations.shown(config)}: {how}")
        return result
    raise refused


def _refuse_large_blocks(module, metadata, options, *rest):
    shapes = set(re.findall(r"tensor<((?:\d+x)+)", str(module)))
    largest = max((math.prod(map(int, shape.split("x")[:-1])) for shape in shapes), default=1)
    threads = LANES * options.num_warps * options.num_ctas
    if largest > MOST_HELD * threads:
        raise ValueError(
            f"a block of {largest} elements is {largest // threads} per thread with {threads} threads of at most 255 "
            f"registers, and would take minutes to compile: make it at most {MOST_HELD * threads}, or num_warps larger"
        )
    return _make_ttgir(module, metadata, options, *rest)


def _replacements() -> dict[tuple[object, str], object]:
    """Map (owner, attribute) to its replacement while Triton's interpreter runs kernels."""
    return {
        (interpreter, "_get_np_dtype"): _np_dtype,
        (interpreter, "ReduceOps"): Reduce,
        (interpreter, "ScanOps"): Scan,
        (interpreter.interpreter_builder, "__class__"): Builder,
        (interpreter.interpreter_builder, "codegen_fns"): interpreter.interpreter_builder.codegen_fns
        | {"min_dot_size": min_dot_size(GPUTarget("cuda", 90, 32))},
        (JITFunction, "run"): _interpreted_run,
        (Autotuner, "run"): _first_that_fits,
    }


@contextlib.contextmanager
def _replaced(replacements: dict[tuple[object, str], object]):
    # Use vars: getattr would return the function inside a staticmethod, and setattr would turn it into a method.
    before = [(owner, name, vars(owner).get(name, getattr(owner, name))) for owner, name in replacements]
    for (owner, name), value in replacements.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


@contextlib.contextmanager
def large_blocks_refused():
    """Inside this context, make Triton's compiler refuse a block too large for its threads' registers, with a one-line
    error.

    Otherwise such a block compiles for minutes. Without a GPU this applies to the whole process.
    """
    with _replaced({(CUDABackend, "make_ttgir"): staticmethod(_refuse_large_blocks)}):
        yield


_for_this_process = contextlib.ExitStack()  # replacements that stay


def _install() -> None:
    """Interpret every launch of this process if there is no GPU; otherwise change nothing."""
    if not has_gpu():
        _for_this_process.enter_context(_replaced(_replacements()))
        _for_this_process.enter_context(large_blocks_refused())


_install()
