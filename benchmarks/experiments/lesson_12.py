"""Lesson 12: quantised layers.

Speed and error of quantised weights and activations in a linear layer and a mixture-of-experts layer.

Weights are (out_cols, cols) or (experts, out_cols, cols), as in nn.Linear. Formats: int8 with one scale per output; FP8
(e4m3) with one scale per tensor, per row, or per block of 128; MXFP4, two e2m1 values per byte and one e8m0 scale per
32 values.

Source: DeepSeek-AI, arXiv:2412.19437, section 3.3 (blocks of FP8, and why their sums leave the tensor cores); OCP
Microscaling Formats specification 1.0 (MXFP4).
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch.nn.functional import layer_norm

import kernels
from helpers.instruments.timing import Timing, benchmark_together
from kernels.tuned.moe_int8 import FACTOR, UNIT, in_units

NORMS = (1024, 4096, 8192, 16384)  # columns
EXPERTS = (64, 768, 2048)  # of the catalogue's moe_int8: experts, out_cols, cols
TOKENS_AN_EXPERT = (1, 8, 64, 256, 1024)
LINEAR = (28672, 8192)  # out_cols, cols of Llama 3 70B's largest linear layer
TOKENS = (1, 16, 64, 256, 1024, 8192)
TERMS = (512, 2048, 8192, 32768)  # summed per output
LEAST = tl.constexpr(1e-12)
BLOCK = 128  # columns with one scale


@triton.jit
def to_int8(y, axis: tl.constexpr):
    """Return y as int8, and the scale of each of its lines along `axis`."""
    scale = tl.maximum(tl.max(tl.abs(y), axis=axis, keep_dims=True), LEAST) / 127.0
    rounded = y / scale + 12582912.0 - 12582912.0  # 1.5 * 2^23 has no bit below 1: to nearest, ties to even
    return tl.clamp(rounded, -127.0, 127.0).to(tl.int8), scale


@triton.jit
def experts_kernel(
    x_ptr,  # (experts, tokens, cols)
    weight_ptr,  # (experts, out_cols, cols), int8
    scale_ptr,  # (experts, out_cols)
    y_ptr,  # (experts, tokens, out_cols), int8 or x's dtype
    y_scale_ptr,  # (experts, tokens, out_cols / BLOCK_OUT), fp32, where y is int8
    tokens,
    out_cols,  # a multiple of BLOCK_OUT
    cols,  # a multiple of BLOCK_IN
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    FACTOR: tl.constexpr,
    UNIT: tl.constexpr,
):
    tiles, expert = tl.cdiv(tokens, BLOCK_TOKENS), tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) % tiles * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    tile_out = tl.program_id(0) // tiles
    row = expert * out_cols + tile_out * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    entry, inside = expert * tokens + token, token < tokens
    acc = tl.zeros((BLOCK_OUT, BLOCK_TOKENS), tl.float32)
    for start in range(0, cols, BLOCK_IN):
        col = start + tl.arange(0, BLOCK_IN)
        weight = tl.load(weight_ptr + row[:, None] * cols + col[None, :])
        x = tl.load(x_ptr + entry[None, :] * cols + col[:, None], mask=inside[None, :], other=0.0)
        product = tl.dot(in_units(weight, x.dtype, FACTOR, UNIT), x, acc, input_precision="ieee")
        acc = tl.where(start < cols, product, acc)  # as in kernels/tuned/moe_int8.py
    y = acc * (tl.load(scale_ptr + row).to(tl.float32) / UNIT)[:, None]
    y_tile = y_ptr + entry[:, None] * out_cols + (tile_out * BLOCK_OUT + tl.arange(0, BLOCK_OUT))[None, :]
    if y_ptr.dtype.element_ty == tl.int8:
        q, y_scale = to_int8(y, axis=0)
        tl.store(y_tile, q.T, mask=inside[:, None])
        y_scale_tile = y_scale_ptr + entry[None, :] * (out_cols // BLOCK_OUT) + tile_out
        tl.store(y_scale_tile, y_scale, mask=inside[None, :])
    else:
        tl.store(y_tile, y.to(y_ptr.dtype.element_ty).T, mask=inside[:, None])


def experts_settings(tokens: int, dtype: torch.dtype) -> dict:
    """Return launch settings of experts_kernel: tiles with as many tokens as there are, up to 128."""
    tile = {"BLOCK_TOKENS": min(128, max(16, triton.next_power_of_2(tokens))), "BLOCK_OUT": BLOCK}
    steps = {"BLOCK_IN": 128, "num_warps": 4, "num_stages": 4} if tokens <= 64 else {"BLOCK_IN": 64, "num_warps": 8}
    return tile | steps | {"FACTOR": FACTOR[dtype], "UNIT": UNIT[dtype]}


def fused_experts(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, quantise: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dequantise, matmul, quantise in one launch: y (experts, tokens, out_cols) and a scale for each BLOCK of it."""
    (experts, tokens, cols), out_cols = x.shape, weight.shape[1]
    options = experts_settings(tokens, x.dtype)
    y = torch.empty(experts, tokens, out_cols, dtype=torch.int8 if quantise else x.dtype, device=x.device)
    y_scale = torch.empty(experts, tokens, out_cols // BLOCK, device=x.device)
    grid = (triton.cdiv(tokens, options["BLOCK_TOKENS"]) * out_cols // BLOCK, experts)
    experts_kernel[grid](x, weight, scale, y, y_scale, tokens, out_cols, cols, **options)
    return y, y_scale


def separate_experts(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same, one operation after the other."""
    dequantised = weight.to(x.dtype) * scale[:, :, None]
    y = torch.bmm(x, dequantised.transpose(1, 2)).float().unflatten(2, (-1, BLOCK))
    y_scale = y.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 127
    return (y / y_scale).round().to(torch.int8).flatten(2), y_scale.squeeze(-1)


def expert_inputs(tokens: int, sizes: tuple = EXPERTS, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x, weight and scale for experts with `tokens` each."""
    experts, out_cols, cols = sizes
    x = torch.randn(experts, tokens, cols, **options)
    weight = torch.randint(-127, 128, (experts, out_cols, cols), dtype=torch.int8, device=x.device)
    return x, weight, (torch.rand(experts, out_cols, **options) + 0.5) / (73 * cols**0.5)


@triton.jit
def fp8_kernel(
    x_ptr,  # (rows, cols), e4m3
    weight_ptr,  # (out_cols, cols), e4m3
    x_scale_ptr,  # fp32, (rows,), or (rows, cols / 128) PER_BLOCK
    weight_scale_ptr,  # fp32, (out_cols,), or (out_cols / 128, cols / 128) PER_BLOCK
    y_ptr,  # (rows, out_cols), a float
    rows,
    out_cols,  # a multiple of 128
    cols,  # a multiple of 128
    PER_BLOCK: tl.constexpr,
    IN_TENSOR_CORES: tl.constexpr,  # terms summed there before the sum moves to fp32 registers; None: all of them
    BLOCK_ROWS: tl.constexpr,
):
    tiles = tl.cdiv(rows, BLOCK_ROWS)
    row = tl.program_id(0) % tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    tile_out = tl.program_id(0) // tiles
    out = tile_out * 128 + tl.arange(0, 128)
    inside, at_x = (row < rows)[:, None], row.to(tl.int64)[:, None] * cols
    acc = tl.zeros((BLOCK_ROWS, 128), tl.float32)
    for start in range(0, cols, 128):
        col = start + tl.arange(0, 128)
        x = tl.load(x_ptr + at_x + col[None, :], mask=inside, other=0.0)
        weight = tl.load(weight_ptr + out.to(tl.int64)[:, None] * cols + col[None, :])
        if PER_BLOCK:
            x_scale = tl.load(x_scale_ptr + row * (cols // 128) + start // 128, mask=row < rows, other=0.0)
            weight_scale = tl.load(weight_scale_ptr + tile_out * (cols // 128) + start // 128)
            acc += tl.dot(x, weight.T) * (x_scale * weight_scale)[:, None]
        else:
            acc = tl.dot(x, weight.T, acc, max_num_imprecise_acc=IN_TENSOR_CORES)
    if not PER_BLOCK:
        x_scale = tl.load(x_scale_ptr + row, mask=row < rows, other=0.0)
        acc *= x_scale[:, None] * tl.load(weight_scale_ptr + out)[None, :]
    at_y = row.to(tl.int64)[:, None] * out_cols + out[None, :]
    tl.store(y_ptr + at_y, acc.to(y_ptr.dtype.element_ty), mask=inside)


FP8_WAYS = {  # name -> PER_BLOCK, IN_TENSOR_CORES
    "a scale a row": (False, None),
    "a scale a row, sums in fp32": (False, 128),
    "a scale a block": (True, None),
}


def fp8_linear(way: str, x: torch.Tensor, weight: torch.Tensor, scales: tuple, dtype=torch.bfloat16) -> torch.Tensor:
    """Multiply x (rows, cols) by weight (out_cols, cols), both e4m3, with scales as in `way` of FP8_WAYS."""
    per_block, in_tensor_cores = FP8_WAYS[way]
    (rows, cols), out_cols = x.shape, len(weight)
    y = torch.empty(rows, out_cols, dtype=dtype, device=x.device)
    block_rows = 128 if rows > 64 else 64
    options = {"PER_BLOCK": per_block, "IN_TENSOR_CORES": in_tensor_cores, "BLOCK_ROWS": block_rows}
    grid = (triton.cdiv(rows, block_rows) * out_cols // 128,)
    fp8_kernel[grid](x, weight, *scales, y, rows, out_cols, cols, num_warps=8, num_stages=3, **options)
    return y


@triton.jit
def mxfp4_kernel(
    x_ptr,  # (rows, cols), bf16
    weight_ptr,  # (out_cols, cols / 2), uint8: two e2m1 values, the first in the low bits
    scale_ptr,  # (out_cols, cols / 32), uint8: e8m0
    y_ptr,  # (rows, out_cols), bf16
    rows,
    out_cols,  # a multiple of BLOCK_OUT
    cols,  # a multiple of BLOCK_IN
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    tiles = tl.cdiv(rows, BLOCK_ROWS)
    row = (tl.program_id(0) % tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    out = (tl.program_id(0) // tiles * BLOCK_OUT + tl.arange(0, BLOCK_OUT)).to(tl.int64)
    acc = tl.zeros((BLOCK_ROWS, BLOCK_OUT), tl.float32)
    for start in range(0, cols, BLOCK_IN):
        x = tl.load(x_ptr + row * cols + start + tl.arange(0, BLOCK_IN)[None, :], mask=row < rows, other=0.0)
        packed = start // 2 + tl.arange(0, BLOCK_IN // 2)
        weight = tl.load(weight_ptr + out[None, :] * (cols // 2) + packed[:, None])
        block = start // 32 + tl.arange(0, BLOCK_IN // 32)
        scale = tl.load(scale_ptr + out[:, None] * (cols // 32) + block[None, :])
        acc = tl.dot_scaled(x, None, "bf16", weight, scale, "e2m1", acc)
    tl.store(y_ptr + row * out_cols + out[None, :], acc.to(tl.bfloat16), mask=row < rows)


def mxfp4_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Multiply x (rows, cols) in bf16 by weight (out_cols, cols / 2) and scale (out_cols, cols / 32) in uint8."""
    (rows, cols), out_cols = x.shape, len(weight)
    y = torch.empty(rows, out_cols, dtype=x.dtype, device=x.device)
    block_rows = min(128, max(16, triton.next_power_of_2(rows)))
    options = {"BLOCK_ROWS": block_rows, "BLOCK_OUT": 128, "BLOCK_IN": 128}
    grid = (triton.cdiv(rows, block_rows) * out_cols // 128,)
    mxfp4_kernel[grid](x, weight, scale, y, rows, out_cols, cols, num_warps=4 if rows <= 64 else 8, **options)
    return y


@triton.jit
def rows_kernel(y_ptr, q_ptr, scale_ptr, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)[None, :]
    y = tl.load(y_ptr + row * cols + col, mask=col < cols, other=0.0).to(tl.float32)
    q, scale = to_int8(y, axis=1)
    tl.store(scale_ptr + row + tl.zeros((1, 1), tl.int32), scale)
    tl.store(q_ptr + row * cols + col, q, mask=col < cols)


def quantised_rows(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise y, (rows, cols) and contiguous, to int8 with per-row scales, in one launch."""
    rows, cols = y.shape
    q, scale = torch.empty_like(y, dtype=torch.int8), torch.empty(rows, 1, device=y.device)
    block = triton.next_power_of_2(cols)
    rows_kernel[(rows,)](y, q, scale, cols, BLOCK=block, num_warps=max(4, block // 1024))
    return q, scale


def norm_then_int8(norm: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return quantised_rows(norm())


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def from_mxfp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the values, fp32 (..., cols), of `packed` (..., cols / 2) and `scale` (..., cols / 32), both uint8."""
    values = E2M1.to(packed.device)[torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).long()]
    return (values.unflatten(-1, (-1, 32)) * torch.exp2(scale.float() - 127)[..., None]).flatten(-2)


def measure_layer_norm() -> dict[int, dict[str, Timing]]:
    """Time columns -> way, LayerNorm and int8 over 32768 rows in bf16: in two kernels, PyTorch's LayerNorm or the
    catalogue's and quantised_rows, and in one."""
    found = {}
    for cols in NORMS:
        x = torch.randn(32768, cols, device="cuda", dtype=torch.bfloat16)
        weight, bias = torch.randn(2, cols, device="cuda", dtype=torch.bfloat16)
        ways = {
            "PyTorch's LayerNorm, then int8": partial(norm_then_int8, partial(layer_norm, x, (cols,), weight, bias)),
            "the catalogue's, then int8": partial(norm_then_int8, partial(kernels.layer_norm, x, weight, bias)),
            "one kernel": partial(kernels.layer_norm_int8, x, weight, bias),
        }
        found[cols] = benchmark_together(ways, runs=20)
    return found


def measure_experts() -> dict[int, dict[str, Timing]]:
    """Return tokens per expert -> way -> time of EXPERTS in bf16."""
    found = {}
    for tokens in TOKENS_AN_EXPERT:
        inputs = expert_inputs(tokens, device="cuda", dtype=torch.bfloat16)
        ways = {
            "eager": separate_experts,
            "torch.compile": torch.compile(separate_experts, dynamic=False),
            "fused": fused_experts,
        }
        for ours, theirs in zip(fused_experts(*inputs), separate_experts(*inputs), strict=True):
            torch.testing.assert_close(ours.float(), theirs.float(), atol=1.5, rtol=0.02)
        found[tokens] = benchmark_together({way: partial(call, *inputs) for way, call in ways.items()}, runs=20)
    return found


def possible(calls: dict[str, Callable]) -> dict[str, Callable]:
    """Return the calls that this GPU and PyTorch support."""
    found = {}
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            print(f"left out: {name}: {str(error).splitlines()[0]}")
        else:
            found[name] = call
    return found


def scaled(x: torch.Tensor, weight: torch.Tensor, scales: tuple, fast: bool, dtype=torch.bfloat16) -> torch.Tensor:
    """Run PyTorch's e4m3 matmul, by cuBLAS."""
    return torch._scaled_mm(x, weight.T, *scales, out_dtype=dtype, use_fast_accum=fast)


def measure_formats() -> dict[int, dict[str, Timing]]:
    """Return tokens -> format -> time of LINEAR; formats of weights alone, with bf16 activations, and of both."""
    out_cols, cols = LINEAR
    half = {"device": "cuda", "dtype": torch.bfloat16}
    weight = torch.randn(out_cols, cols, **half)
    byte, scale = weight.mul(30).to(torch.int8), torch.rand(out_cols, **half)
    eight, ones = weight.to(torch.float8_e4m3fn), torch.ones(out_cols, device="cuda")
    four = byte.view(torch.uint8)[:, : cols // 2].contiguous()
    powers = torch.full((out_cols, cols // 32), 127, dtype=torch.uint8, device="cuda")  # 2^0 each
    found = {}
    for tokens in TOKENS:
        x, one = torch.randn(tokens, cols, **half), torch.ones((), device="cuda")
        x8, xb, row = x.to(torch.float8_e4m3fn), x.mul(30).to(torch.int8), torch.ones(tokens, 1, device="cuda")
        calls = {
            "bf16": partial(torch.nn.functional.linear, x, weight),
            "int8 weights": partial(fused_experts, x[None], byte[None], scale[None], quantise=False),
            "mxfp4 weights": partial(mxfp4_linear, x, four, powers),
            "int8": partial(torch._int_mm, xb, byte.T),
            "fp8, a scale a tensor": partial(scaled, x8, eight, (one, one), True),
            "fp8, a scale a row": partial(scaled, x8, eight, (row, ones[None]), True),
        }
        found[tokens] = benchmark_together(possible(calls), runs=10)
    return found


def measure_fp8_times(size: int = 8192) -> dict[str, Timing]:
    """Return way -> time of a matmul of `size` cubed."""
    x, weight = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    small, one = (x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)), torch.ones((), device="cuda")
    ones = torch.ones(size, device="cuda"), torch.ones(size, device="cuda")
    blocks = torch.ones(size, size // BLOCK, device="cuda"), torch.ones(size // BLOCK, size // BLOCK, device="cuda")
    calls = {
        "bf16, cuBLAS": partial(torch.mm, x, weight),
        "fp8, cuBLAS, fast sums": partial(scaled, *small, (one, one), True),
        "fp8, cuBLAS": partial(scaled, *small, (one, one), False),
    }
    calls |= {
        f"fp8, Triton, {way}": partial(fp8_linear, way, *small, blocks if per_block else ones)
        for way, (per_block, _) in FP8_WAYS.items()
    }
    return benchmark_together(possible(calls), runs=10)


def measure_fp8_sums(size: int = 256) -> dict[int, dict[str, dict[str, float]]]:
    """Return terms -> way -> root mean square error of sums over their own root mean square, for e4m3 values of both
    signs and for positive ones, against float64."""
    torch.manual_seed(0)
    found, fp32 = {}, torch.float32
    one, ones = torch.ones((), device="cuda"), (torch.ones(size, device="cuda"),) * 2
    for terms in TERMS:
        blocks = tuple(torch.ones(lines, terms // BLOCK, device="cuda") for lines in (size, size // BLOCK))
        calls = {
            "cuBLAS, fast sums": lambda x, weight: scaled(x, weight, (one, one), True, fp32),
            "cuBLAS": lambda x, weight: scaled(x, weight, (one, one), False, fp32),
        }
        for way, (per_block, _) in FP8_WAYS.items():
            calls[f"Triton, {way}"] = partial(fp8_linear, way, scales=blocks if per_block else ones, dtype=fp32)
        found[terms] = {}
        for signs, draw in {"both signs": torch.randn, "positive": torch.rand}.items():
            x, weight = (draw(size, terms, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
            exact = x.double() @ weight.double().T
            for name, call in possible({name: partial(call, x, weight) for name, call in calls.items()}).items():
                error = (call().double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
                found[terms].setdefault(name, {})[signs] = error.item()
    return found


EXPERIMENTS = {
    "quantised_layer_norm": measure_layer_norm,
    "quantised_experts": measure_experts,
    "quantised_formats": measure_formats,
    "quantised_fp8_sums": measure_fp8_sums,
    "quantised_fp8_times": measure_fp8_times,
}
