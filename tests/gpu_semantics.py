"""Small kernels that show what Triton's language computes, each run on fixed inputs.

`python tests/gpu_semantics.py OUT` recorded a GPU's results in tests/data/h200_semantics.npz; tests/test_runtime.py
compares the interpreter with them.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.interpreter import runtime  # noqa: F401  (launches go where they can)

N = 1024
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@triton.jit
def binary_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    if OP == "add":
        z = x + y
    elif OP == "subtract":
        z = x - y
    elif OP == "multiply":
        z = x * y
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "minimum":
        z = tl.minimum(x, y)
    elif OP == "maximum_nan":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        z = tl.clamp(x, -1.0, 1.0)
    elif OP == "clamp_nan":
        z = tl.clamp(x, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "where_less":
        z = tl.where(x < y, x, y)
    elif OP == "fma":
        z = tl.fma(x, y, x)
    elif OP == "negate_abs":
        z = -tl.abs(x)
    elif OP == "floor_divide":
        z = x // y
    elif OP == "remainder":
        z = x % y
    tl.store(out_ptr + i, z)


@triton.jit
def convert_kernel(x_ptr, out_ptr, N: tl.constexpr, ROUNDING: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if ROUNDING is None:
        z = x.to(out_ptr.dtype.element_ty)
    else:
        z = x.to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING)
    tl.store(out_ptr + i, z)


@triton.jit
def store_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i))


@triton.jit
def reduce_kernel(x_ptr, out_ptr, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if OP == "sum":
        tl.store(out_ptr, tl.sum(x, axis=0))
    elif OP == "max":
        tl.store(out_ptr, tl.max(x, axis=0))
    elif OP == "min":
        tl.store(out_ptr, x.min(axis=0))
    elif OP == "argmax":
        tl.store(out_ptr, tl.argmax(x, axis=0).to(tl.float32))
    elif OP == "cumsum":
        tl.store(out_ptr + i, tl.cumsum(x, axis=0))
    elif OP == "sort":
        tl.store(out_ptr + i, tl.sort(x))


@triton.jit
def dot_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]
    tl.store(out_ptr + i, tl.dot(tl.load(x_ptr + i), tl.load(y_ptr + i), input_precision=PRECISION))


@triton.jit
def float_argument_kernel(x_ptr, out_ptr, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i) * scale)


@triton.jit
def random_kernel(out_ptr, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.rand(seed, i))


@triton.jit
def unary_kernel(x_ptr, out_ptr, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if OP == "exp":
        z = tl.exp(x)
    elif OP == "exp2":
        z = tl.exp2(x)
    elif OP == "log":
        z = tl.log(tl.abs(x))
    elif OP == "sigmoid":
        z = tl.sigmoid(x)
    elif OP == "rsqrt":
        z = tl.rsqrt(tl.abs(x))
    elif OP == "erf":
        z = tl.erf(x)
    elif OP == "divide":
        z = 1.0 / x
    tl.store(out_ptr + i, z)


def awkward(seed: int, scale: float = 3.0) -> torch.Tensor:
    """N fp32 values: normal ones, then every special one."""
    special = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-40, 65504.0, 65520.0, 3.4e38, -3.4e38]
    special += [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-9, 300.7, -300.7, 40000.0, 3e9, -3e9, 1e19, 127.5, 128.0, 255.9]
    x = torch.randn(N, generator=torch.Generator().manual_seed(seed)) * scale
    x[torch.randperm(N, generator=torch.Generator().manual_seed(seed + 1))[: len(special)]] = torch.tensor(special)
    return x


def ordinary(seed: int) -> torch.Tensor:
    """N normal fp32 values."""
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


def cases():
    """(name, kernel, inputs, output's shape and dtype, constexprs) of every case."""
    for name, dtype in DTYPES.items():
        x, y = awkward(0).to(dtype), awkward(7).to(dtype)
        for op in ("add", "subtract", "multiply", "maximum", "minimum", "maximum_nan", "where_less", "negate_abs"):
            yield f"{op}_{name}", binary_kernel, (x, y), (N, dtype), {"N": N, "OP": op}
        for op in ("sum", "max", "min", "argmax", "cumsum", "sort"):
            size = N if op in ("cumsum", "sort") else 1
            dtype_out = torch.float32 if op in ("argmax", "cumsum") else dtype
            yield f"{op}_{name}", reduce_kernel, (ordinary(3).to(dtype),), (size, dtype_out), {"N": N, "OP": op}
        yield f"max_with_nan_{name}", reduce_kernel, (x,), (1, dtype), {"N": N, "OP": "max"}
        for op in ("clamp", "clamp_nan"):
            yield f"{op}_{name}", binary_kernel, (x, y), (N, dtype), {"N": N, "OP": op}
        square = ordinary(5).to(dtype), ordinary(6).to(dtype)
        for precision in ("tf32", "ieee") if name == "fp32" else ("tf32",):
            constants = {"M": 32, "PRECISION": precision}
            yield f"dot_{precision}_{name}", dot_kernel, square, (N, torch.float32), constants
        integers = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
        for target in (*integers, *DTYPES.values()):
            label = str(target).removeprefix("torch.")
            yield f"convert_{name}_{label}", convert_kernel, (x,), (N, target), {"N": N, "ROUNDING": None}
    x = awkward(11)
    for target in ("fp16", "bf16"):
        yield f"toward_zero_{target}", convert_kernel, (x,), (N, DTYPES[target]), {"N": N, "ROUNDING": "rtz"}
        yield f"store_{target}", store_kernel, (x,), (N, DTYPES[target]), {"N": N}
    whole = torch.randint(-(2**31), 2**31 - 1, (N,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    whole[:4] = torch.tensor([2**25 + 2**17 + 1, 2**25 + 2**17, -(2**25) - 2**17 - 1, 2**24 + 1])
    for target in DTYPES:
        yield f"convert_int32_{target}", convert_kernel, (whole,), (N, DTYPES[target]), {"N": N, "ROUNDING": None}
    yield "fma_fp32", binary_kernel, (awkward(0), awkward(7)), (N, torch.float32), {"N": N, "OP": "fma"}
    divisor = torch.randint(1, 1000, (N,), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
    for op in ("floor_divide", "remainder"):
        yield f"{op}_int32", binary_kernel, (whole, divisor), (N, torch.int32), {"N": N, "OP": op}
    for op in ("exp", "exp2", "log", "sigmoid", "rsqrt", "erf", "divide"):
        yield f"{op}_fp32", unary_kernel, (ordinary(8) * 4,), (N, torch.float32), {"N": N, "OP": op}
    yield "float_argument_fp64", float_argument_kernel, (ordinary(9).double(),), (N, torch.float64), {"N": N}
    yield "random_fp32", random_kernel, (), (N, torch.float32), {"N": N}


SCALARS = {"float_argument_fp64": (0.1,), "random_fp32": (12345,)}


def run(device: str) -> dict[str, np.ndarray]:
    """Every case's output on `device`, in cases' order; bfloat16 as its 16 bits."""
    outputs = {}
    for name, kernel, inputs, (size, dtype), constants in cases():
        out = torch.full((size,), 77, dtype=dtype, device=device)
        tensors = [x.to(device) for x in inputs]
        kernel[(1,)](*tensors, out, *SCALARS.get(name, ()), **constants)
        out = out.cpu()
        outputs[name] = (out.view(torch.uint16) if dtype == torch.bfloat16 else out).numpy()
    return outputs


if __name__ == "__main__":
    np.savez_compressed(Path(sys.argv[1]), **run("cuda"))
