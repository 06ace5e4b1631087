# ruff: noqa: E501  (each mistake is one line)
"""Mistakes by kind, each made in every model answer that allows it, and the message each must get.

    python tests/mistakes.py [NN] [--seeds 20]     every mistake on this many draws, public and hidden checks

A mistake replaces a text of the model answer, on one line or wrapped, wherever it occurs. On every draw, the first
check that applies and its hidden counterpart must reject it, with a message that fits the kind or the mistake's own
pattern.
"""

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from helpers.grading.exercise import exercises_in
from helpers.grading.replay import server
from helpers.learning.checks import values
from helpers.learning.outcome import ERROR, FAIL, Outcome

# kind -> what must be said, as a regular expression
TOLD = {
    "mask": r"out-of-bounds (read|store)[^\n]*\n(.*\n)*.*(Mask the others|lets these lanes through)",
    "padding value": r"the lanes past the row's end|other= says|without other=|the edges|of -inf|below 0",
    "stride": r"the strides|as it likes|wider",
    "accumulation": r"float16: .*(before the sums|then store)|the accumulator",
    "rounding": r"rounded to 16 bits before the store",
    "scale": r"the formula|the scale|multiplied by|gelu|the values of|that result's formula",
    "eps": r"eps: ",
    "maximum": r"subtract (all of )?the row's maximum",
    "rescaling": r"the rescaling|never multiplied by f",
    "order of axes": r"which program has which batch|element's number|causal mask|which mask applies|the grid|which belong to which|formula|edges|rows and columns are exchanged|last two axes",
    "offset width": r"an integer of 32 bits passes 2\^31(.*\n)*.*to\(tl\.int64\)",
    "NaN and inf": r"NaN|each can still win once|rows without a key",
    "codes": r"the rounding|the clamp|the smallest scale",
    "grid": r"the grid|the number of rows|the edges|the sizes",
    "in place": r"argument \d was changed",
    "hard-coded size": r"the block|the grid|the sizes|the number of rows|as many",
    "another formula": r"the values of",
    "owner": r"race of|come out different",
    "exception": r"^error: .*\n(.*\n)*.*Look at your line \d+",
    "return": r"what your function returns|how the output is allocated",
    "count": r"the terms|the factors|the order of what|which number divides|which side of the ridge|how it is spelled",
}
# kind -> what must not be said: a cause for which such a mistake gives no evidence
NEVER = {
    "mask": r"Look at the (formula|strides|grid)|the values of",
    "stride": r"Mask the others|Look at the formula|the values of|Look at the grid",
    "accumulation": r"Mask the others|Look at the strides",
    "rounding": r"Mask the others|Look at the (strides|grid)|lanes past",
    "eps": r"Mask the others|Look at the (strides|grid)|lanes past",
    "maximum": r"Mask the others|Look at the (strides|grid)",
    "offset width": r"Mask the others|Look at the (strides|grid|formula)",
    "NaN and inf": r"Mask the others|Look at the (strides|grid)",
    "grid": r"Look at the (strides|formula)|the values of|lanes past",
    "in place": r"Look at the (formula|strides|grid)",
    "another formula": r"Mask the others|Look at the (strides|grid)|lanes past|rounded|float16: ",
    "owner": r"Look at the (formula|strides)|Mask the others",
    "exception": r"Look at the (formula|strides|grid)",
    "return": r"Look at the (formula|strides|grid)",
    "count": r"spelled.*\n.*side of the ridge",
}
LIKE = {
    "values": "other-values",
    "codes": "other-values",
    "gradient": "other-gradients",
    "gradients": "other-gradients",
    "convolution": "other-values",
    "batch_norm": "other-values",
    "masked_rows": "other-values",
}


@dataclass(frozen=True)
class Mistake:
    """`changes`: text -> what stands in its place; `told`: what must be said of it; `never`: what must not."""

    exercise: str
    kind: str
    changes: dict[str, str]
    told: str
    never: str

    def __str__(self) -> str:
        return f"{self.exercise}: {self.kind}: {next(iter(self.changes.values())).strip()}"


def mistakes_in(exercise: str, *rows: tuple) -> list[Mistake]:
    """Rows are (kind, {text: other}), and may have what must be said, and what must not be: else it's the kind's."""
    return [
        Mistake(exercise, kind, changes, *said, *[TOLD[kind], NEVER.get(kind, "")][len(said) :])
        for kind, changes, *said in rows
    ]


CONTIGUOUS = "x, bias, residual = x.contiguous(), bias.contiguous(), residual.contiguous()"
X = "x = tl.load(x_ptr + start + col, mask=exists, other=0.0)"
WEIGHT = "weight = tl.load(weight_ptr + col, mask=exists)"
INT8_X = "x = tl.load(x_ptr + row * cols + col, mask=exists, other=0.0)"
INT8_CENTRED = "centred = tl.where(exists, x - tl.sum(x, axis=0) / cols, 0.0)"
NORM_START = "tl.program_id(0).to(tl.int64) * cols"
ROWS_GRID = "[(x.numel() // cols,)]"
NORMS = [
    ("mask", {X: "x = tl.load(x_ptr + start + col)"}),
    ("mask", {WEIGHT: "weight = tl.load(weight_ptr + col)"}),
    ("padding value", {X: "x = tl.load(x_ptr + start + col, mask=exists, other=1.0)"}),
    ("padding value", {X: "x = tl.load(x_ptr + start + col, mask=exists)"}),
    ("maximum", {}),
    ("offset width", {NORM_START: "tl.program_id(0) * cols"}),
    ("grid", {ROWS_GRID: "[(x.numel() // cols - 1,)]"}),
    ("grid", {ROWS_GRID: "[(x.shape[0],)]"}),
    ("hard-coded size", {"block = triton.next_power_of_2(cols)": "block = 1024"}),
    ("hard-coded size", {"block = triton.next_power_of_2(cols)": "block = 4096"}),
]
NORMS = [row for row in NORMS if row[1]]
LINEAR_X = "row[:, None] * x_stride_m + k[None, :] * x_stride_k"
LINEAR_W = "k[:, None] * weight_stride_k + col[None, :] * weight_stride_n"
Q = "query[:, None] * q_stride_n + d[None, :] * q_stride_d"
K = "key[None, :] * k_stride_n + d[:, None] * k_stride_d"
V = "key[:, None] * v_stride_n + d[None, :] * v_stride_d"
BASES = {of: f"{of}_ptr += batch * {of}_stride_b + head * {of}_stride_h" for of in "qkv"}
ATTENTION = [
    ("mask", {f"q_ptr + {Q}, mask=(query < seq)[:, None], other=0.0": f"q_ptr + {Q}"}),
    ("mask", {f"k_ptr + {K}, mask=(key < seq)[None, :], other=0.0": f"k_ptr + {K}"}),
    ("stride", {Q: "query[:, None] * k_stride_n + d[None, :] * k_stride_d"}),
    ("stride", {K: "key[None, :] * q_stride_n + d[:, None] * q_stride_d"}),
    ("stride", {Q: "query[:, None] * DIM + d[None, :]"}),
    ("stride", {K: "key[None, :] * DIM + d[:, None]"}),
    ("stride", {BASES["q"]: "q_ptr += batch * k_stride_b + head * k_stride_h"}),
    ("stride", {BASES["k"]: "k_ptr += batch * q_stride_b + head * q_stride_h"}),
    ("scale", {"tl.dot(q, k) * scale": "tl.dot(q, k)"}),
    ("scale", {"seq, dim**-0.5,": "seq, dim**0.5,"}),
    ("scale", {"seq, dim**-0.5,": "seq, 1 / dim,"}),
    ("hard-coded size", {"seq, dim**-0.5,": "seq, 0.25,"}),
    ("order of axes", {"key[None, :] <= query[:, None]": "key[None, :] >= query[:, None]"}),
    ("order of axes", {"tl.int64) // heads": "tl.int64) % heads", "tl.int64) % heads": "tl.int64) // heads"}),
    ("grid", {"batch * heads)": "heads)"}),
    ("grid", {"triton.cdiv(seq, block_m), b": "max(1, seq // block_m), b"}),
    ("grid", {"triton.cdiv(seq, block_m), b": "1, b"}),
]
CONV_X = "mask=seen & (pixel < pixels) & (at < depth)[None, :],\n"
CONV_W = "mask=(k < out_channels) & (at < depth)[:, None],\n"
CONV_VECTORS = ("gamma", "bias", "mean", "beta")

RAND_FORWARD, RAND_BACKWARD = (f"tl.rand(seed, element) >= p\n    tl.store({to}_ptr" for to in ("y", "grad_x"))
DROPPED = "residual + tl.where(kept, (x + bias) * scale, 0.0)"

MISTAKES = [
    *mistakes_in(
        "01_roofline",
        ("count", {"3 * numbers * itemsize": "2 * numbers * itemsize"}, "yours is too small, so something is left out"),
        ("count", {"3 * numbers * itemsize": "4 * numbers * itemsize"}, "yours is too large, so something is counted"),
        (
            "count",
            {"return numbers, 3 * numbers * itemsize": "return 3 * numbers * itemsize, numbers"},
            "in the wrong order",
        ),
        ("count", {"2 * rows * inner * columns": "rows * inner * columns"}, "FLOP.*\n.*half the expected value"),
        ("count", {"return peak / bandwidth": "return bandwidth / peak"}, "which number divides which"),
        ("return", {"return peak / bandwidth": "print(peak / bandwidth)"}, "print shows a value and returns None"),
        ("count", {'"memory" if': '"compute" if', 'else "compute"': 'else "memory"'}, "which side of the ridge"),
        ("count", {'else "compute"': 'else "compute-bound"'}, "how it is spelled", "side of the ridge"),
        (
            "return",
            {
                '"memory" if flops / nbytes < ridge(peak, bandwidth) else "compute"': "flops / nbytes < ridge(peak, bandwidth)"
            },
            "what your function returns: a word",
            "side of the ridge",
        ),
        (
            "count",
            {"nbytes < ridge": "nbytes <= ridge"},
            r"bound\(8, 4, 2, 1\).*its intensity is exactly the ridge",
            "which side",
        ),
        (
            "count",
            {'== "compute"': '== "memory"'},
            r"A10 should not be there, and \d+ more are wrong; its intensity is .*\n.*you get that with the GPUs that leave it memory-bound",
            "V100|\\.\\.\\.",
        ),
    ),
    *mistakes_in(
        "02_count_the_bytes",
        ("count", {"4 * (2 * (n + columns) + 2 * n)": "4 * 6 * n"}, r"count_affine\(2, 3\)(.*\n)*.*mul: 36 B read"),
        ("count", {"return 2, 4 * 4 * n": "return 4 * 4 * n, 2"}, "in the wrong order"),
        ("return", {"return 2, 4 * 4 * n": "return 4 * 4 * n"}, "2 values are needed: launches, bytes"),
        ("count", {"return 2, 4 * 4 * n": "return 2, 4 * n"}, "a quarter of the expected value"),
        ("count", {"return 2, 4 * 4 * n": "return 2, 4 * 4 * n / 1e6"}, "the unit: yours is in millions", "the terms"),
        ("count", {"return 1, 4 * 2 * rows": "return 3, 4 * 2 * rows"}, r"launches: got 3, expected 1\n.*\n.*clone"),
        ("count", {"features * features + features": "features * features"}, "bytes unfused.*\n.*left out"),
    ),
    *mistakes_in(
        "03_fused_add_gelu",
        ("another formula", {"s * tl.sigmoid(2 * u)": "s"}, "the values of the sum without GELU"),
        ("another formula", {"s * tl.sigmoid(2 * u)": "2 * s * tl.sigmoid(2 * u)"}, "without its factor 1/2"),
        ("another formula", {"s * s * s": "s * s"}, r"s\^2 instead of s\^3"),
        (
            "another formula",
            {
                "torch.empty_like(a)": "torch.zeros_like(a)",
                "s * tl.sigmoid(2 * u), mask=exists)": "s, mask=element < 0)",
            },
            "Look at the store: every element is 0, as torch.zeros leaves it",
            "the values of|Look at the formula",
        ),
        (
            "another formula",
            {"s = a + b": "s = a", "s * tl.sigmoid(2 * u)": "s * tl.sigmoid(2 * u) + b"},
            "GELU of a, plus b",
        ),
        ("another formula", {"b_ptr + element": "a_ptr + element"}, r"GELU of a \+ a"),
        ("another formula", {"s * tl.sigmoid(2 * u)": "s * tl.sigmoid(1.702 * s)"}, r"s sigmoid\(1.702 s\)"),
        ("owner", {".to(tl.int64) * BLOCK": ".to(tl.int64)"}),
        ("owner", {"tl.program_id(0)": "tl.program_id(1)"}),
        ("return", {"return y": "return None"}, "returns: None, as one without return"),
        ("exception", {"tl.arange(0, BLOCK)": "tl.arange(0, elements)"}, "declared tl.constexpr"),
        ("exception", {"block = 1024": "block = 1000"}, "a power of two"),
        ("exception", {"s * tl.sigmoid(2 * u)": "s / 2 * (1 + tl.tanh(u))"}, "tl has no tanh"),
        ("exception", {"s = a + b": "s = a + c"}, "name 'c' is not defined"),
        ("in place", {"tl.store(y_ptr + element": "tl.store(a_ptr + element"}),
        ("mask", {"a = tl.load(a_ptr + element, mask=exists)": "a = tl.load(a_ptr + element)"}),
        ("mask", {"b = tl.load(b_ptr + element, mask=exists)": "b = tl.load(b_ptr + element)"}),
        ("mask", {"s * tl.sigmoid(2 * u), mask=exists)": "s * tl.sigmoid(2 * u))"}),
        ("mask", {"element < elements": "element <= elements"}),
        ("stride", {"a, b = a.contiguous(), b.contiguous()": "a = a.contiguous()"}),
        ("stride", {"a, b = a.contiguous(), b.contiguous()": "b = b.contiguous()"}),
        ("stride", {"a, b = a.contiguous(), b.contiguous()": ""}),
        ("scale", {"s * tl.sigmoid(2 * u)": "s * tl.sigmoid(u)"}),
        ("scale", {"0.044715": "0.44715"}),
        ("offset width", {".to(tl.int64) * BLOCK": " * BLOCK"}),
        ("NaN and inf", {"s = a + b": "s = tl.where(a + b == a + b, a + b, 0.0)"}),
        ("grid", {"triton.cdiv(y.numel(), block)": "y.numel() // block"}),
        ("grid", {"triton.cdiv(y.numel(), block)": "min(y.numel(), 8)"}, "the grid"),
        ("in place", {"torch.empty_like(a)": "a"}),
        ("in place", {"torch.empty_like(a)": "b"}),
        ("hard-coded size", {"triton.cdiv(y.numel(), block)": "min(y.numel(), 16)"}),
        ("hard-coded size", {"a, b, y, y.numel(), ": "a, b, y, min(y.numel(), 8192), "}),
        (
            "grid",
            {"triton.cdiv(y.numel(), block)": "triton.cdiv(y.shape[0] if y.dim() else 1, block)"},
            "number of elements|the grid",
        ),
    ),
    *mistakes_in(
        "04_bias_dropout_residual",
        ("order of axes", {RAND_FORWARD: RAND_FORWARD.replace("seed", "seed + row")}, "each element's number"),
        (
            "order of axes",
            {RAND_BACKWARD: RAND_BACKWARD.replace("element", "element % BLOCK")},
            "each element's number",
        ),
        (
            "mask",
            {"bias_ptr + column": "bias_ptr + element"},
            "out-of-bounds read of bias(.*\n)*.*lets these lanes through",
        ),
        ("another formula", {DROPPED: "tl.where(kept, (x + bias) * scale, 0.0)"}, "without the residual"),
        ("another formula", {DROPPED: "residual + bias + tl.where(kept, x * scale, 0.0)"}, "bias added after dropout"),
        ("another formula", {"(x + bias) * scale": "x * scale"}, "without the bias"),
        # On a single element, each of these three gives the values of another formula.
        (
            "another formula",
            {DROPPED: "residual + tl.where(kept, x * scale + bias, 0.0)"},
            "the bias not divided by 1 - p, not of",
            "added after dropout",
        ),
        (
            "another formula",
            {DROPPED: "residual + tl.where(kept, x * scale, bias)"},
            "which part is dropped, scaled, added",
            "the values of",
        ),
        (
            "another formula",
            {DROPPED: "residual + tl.where(kept, (x + bias) * scale, bias * 0.5)"},
            "which part is dropped, scaled, added",
            "the values of",
        ),
        ("mask", {"x = tl.load(x_ptr + element, mask=exists)": "x = tl.load(x_ptr + element)"}),
        ("mask", {"bias = tl.load(bias_ptr + column, mask=exists)": "bias = tl.load(bias_ptr + column)"}),
        ("mask", {"tl.load(residual_ptr + element, mask=exists)": "tl.load(residual_ptr + element)"}),
        ("mask", {"(x + bias) * scale, 0.0), mask=exists)": "(x + bias) * scale, 0.0))"}),
        ("mask", {"grad_y = tl.load(grad_y_ptr + element, mask=exists)": "grad_y = tl.load(grad_y_ptr + element)"}),
        ("mask", {"grad_y * scale, 0.0), mask=exists)": "grad_y * scale, 0.0))"}),
        (
            "stride",
            {
                CONTIGUOUS: "bias, residual = bias.contiguous(), residual.contiguous()\n    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)",
                "y = torch.empty_like(x)\n    rows": "rows",
            },
        ),
        ("stride", {CONTIGUOUS: "x, residual = x.contiguous(), residual.contiguous()"}),
        ("stride", {CONTIGUOUS: "x, bias = x.contiguous(), bias.contiguous()"}),
        ("stride", {"grad_y = grad_y.contiguous()": ""}),
        ("scale", {"(x + bias) * scale": "(x + bias)"}),
        ("scale", {"columns, p, 1 / (1 - p)": "columns, p, 1 - p"}),
        ("scale", {"columns, p, 1 / (1 - p)": "columns, p, 1 / p"}),
        ("scale", {"grad_y * scale": "grad_y"}),
        ("order of axes", {"element = row * columns + column": "element = column * tl.num_programs(0) + row"}),
        ("order of axes", {"bias_ptr + column": "bias_ptr + row + 0 * column"}),
        (
            "order of axes",
            {"tl.rand(seed, element) >= p\n    tl.store(y_ptr": "tl.rand(seed, column) >= p\n    tl.store(y_ptr"},
        ),
        ("offset width", {"row = tl.program_id(0).to(tl.int64)": "row = tl.program_id(0)"}),
        ("offset width", {"element = tl.program_id(0).to(tl.int64) * BLOCK": "element = tl.program_id(0) * BLOCK"}),
        ("NaN and inf", {"x + bias) * scale, 0.0": "tl.where(x == x, x, 0.0) + bias) * scale, 0.0"}),
        ("grid", {"(rows, triton.cdiv(columns, block))": "(rows, 1)"}),
        ("grid", {"(rows, triton.cdiv(columns, block))": "(rows, max(1, columns // block))"}),
        ("grid", {"triton.cdiv(grad_y.numel(), block)": "max(1, grad_y.numel() // block)"}),
        ("in place", {"y = torch.empty_like(x)\n    rows": "y = residual\n    rows"}),
        ("in place", {"y = torch.empty_like(x)\n    rows": "y = x\n    rows"}),
        ("in place", {"grad_x = torch.empty_like(grad_y)": "grad_x = grad_y"}),
        (
            "hard-coded size",
            {"(rows, triton.cdiv(columns, block))": "(2, triton.cdiv(columns, block))"},
            "out-of-bounds|the grid|the formula",
        ),
    ),
    *mistakes_in(
        "05_layer_norm",
        *NORMS,
        ("another formula", {"/ cols\n    centred": "/ cols\n    mean = 0.0\n    centred"}, "RMSNorm"),
        ("another formula", {"tl.rsqrt(variance + eps)": "1 / (variance + eps)"}, "the variance for its root"),
        ("another formula", {"tl.rsqrt(variance + eps)": "tl.sqrt(variance + eps)"}, "multiplied by the root"),
        ("another formula", {"y = centred *": "y = x *"}, "x for x - mean"),
        ("another formula", {"* weight + bias": "* weight"}, "without the bias"),
        (
            "another formula",
            {
                "centred * tl.rsqrt(variance + eps) * weight + bias": "(centred * tl.rsqrt(variance + eps) + bias) * weight"
            },
            "bias added before the weight",
        ),
        (
            "mask",
            {"weight_ptr + col": "weight_ptr + start + col"},
            "out-of-bounds read of weight(.*\n)*.*the offset is wrong",
        ),
        (
            "mask",
            {NORM_START: NORM_START.replace("cols", "BLOCK")},
            "out-of-bounds read of x(.*\n)*.*the offset is wrong",
        ),
        ("mask", {"bias = tl.load(bias_ptr + col, mask=exists)": "bias = tl.load(bias_ptr + col)"}),
        ("mask", {"tl.store(y_ptr + start + col, y, mask=exists)": "tl.store(y_ptr + start + col, y)"}),
        ("padding value", {"centred = tl.where(exists, x - mean, 0.0)": "centred = x - mean"}),
        (
            "stride",
            {
                "x = x.contiguous()\n": "\n",
                "y = torch.empty_like(x)": "y = torch.empty(x.shape, dtype=x.dtype, device=x.device)",
            },
        ),
        ("accumulation", {f"{X}.to(tl.float32)": X, "(variance + eps)": "(variance.to(tl.float32) + eps)"}),
        (
            "accumulation",
            {f"{X}.to(tl.float32)": X, "mean = tl.sum(x, axis=0)": "mean = tl.sum(x, axis=0).to(tl.float32)"},
        ),
        ("another formula", {"* weight + bias": "+ bias"}, "without the weight"),
        ("scale", {"mean = tl.sum(x, axis=0) / cols": "mean = tl.sum(x, axis=0)"}),
        (
            "another formula",
            {"(centred * centred, axis=0) / cols": "(centred * centred, axis=0) / (cols - 1)"},
            "n - 1",
        ),
        ("padding value", {"(centred * centred, axis=0) / cols": "(centred * centred, axis=0) / BLOCK"}),
        ("eps", {"(variance + eps)": "(variance)"}),
        ("eps", {"(variance + eps)": "(variance + 1e-5)"}),
        ("eps", {"tl.rsqrt(variance + eps)": "(1 / (tl.sqrt(variance) + eps))"}),
        (
            "NaN and inf",
            {"tl.store(y_ptr + start + col, y,": "tl.store(y_ptr + start + col, tl.where(y == y, y, 0.0),"},
        ),
        ("in place", {"y = torch.empty_like(x)": "y = x"}),
    ),
    *mistakes_in(
        "05b_residual_rms_norm",
        *NORMS,
        (
            "mask",
            {
                "residual = tl.load(residual_ptr + start + col, mask=exists, other=0.0)": "residual = tl.load(residual_ptr + start + col)"
            },
        ),
        ("mask", {"tl.store(sum_ptr + start + col, s, mask=exists)": "tl.store(sum_ptr + start + col, s)"}),
        ("mask", {"* weight, mask=exists)": "* weight)"}),
        (
            "padding value",
            {
                "residual = tl.load(residual_ptr + start + col, mask=exists, other=0.0)": "residual = tl.load(residual_ptr + start + col, mask=exists)"
            },
        ),
        ("padding value", {"tl.sum(s * s, axis=0) / cols": "tl.sum(s * s, axis=0) / BLOCK"}),
        ("stride", {"x, residual = x.contiguous(), residual.contiguous()": "x = x.contiguous()"}),
        (
            "stride",
            {
                "x, residual = x.contiguous(), residual.contiguous()": "residual = residual.contiguous()",
                "y, s = torch.empty_like(x), torch.empty_like(x)": "y, s = torch.empty_like(residual), torch.empty_like(residual)",
            },
        ),
        (
            "accumulation",
            {
                "s = x + residual": "s = (x + residual).to(x_ptr.dtype.element_ty)",
                "(mean_square + eps)": "(mean_square.to(tl.float32) + eps)",
            },
        ),
        ("scale", {"(mean_square + eps) * weight": "(mean_square + eps)"}),
        ("scale", {"tl.sum(s * s, axis=0) / cols": "tl.sum(s * s, axis=0)"}),
        ("scale", {"tl.sum(s * s, axis=0) / cols": "tl.sum(x * x, axis=0) / cols"}),
        ("eps", {"(mean_square + eps)": "(mean_square)"}),
        ("eps", {"(mean_square + eps)": "(mean_square + 1e-6)"}),
        ("eps", {"tl.rsqrt(mean_square + eps)": "(1 / (tl.sqrt(mean_square) + eps))"}),
        ("NaN and inf", {"s = x + residual": "s = tl.where(x == x, x, 0.0) + residual"}),
        ("in place", {"y, s = torch.empty_like(x), torch.empty_like(x)": "y, s = torch.empty_like(x), residual"}),
        ("in place", {"y, s = torch.empty_like(x), torch.empty_like(x)": "y, s = torch.empty_like(x), x"}),
        ("in place", {"y, s = torch.empty_like(x), torch.empty_like(x)": "y, s = x, torch.empty_like(x)"}),
        ("order of axes", {"return y, s": "return s, y"}),
    ),
    *mistakes_in(
        "06_softmax_topk",
        ("mask", {'x_ptr + row * cols + col, mask=exists, other=-float("inf")': "x_ptr + row * cols + col"}),
        ("mask", {"tl.store(p_ptr + row * cols + col, p, mask=exists)": "tl.store(p_ptr + row * cols + col, p)"}),
        ("padding value", {'other=-float("inf")': "other=0.0"}),
        ("padding value", {', other=-float("inf")': ""}),
        (
            "stride",
            {
                "x = x.contiguous()\n": "\n",
                "p = torch.empty_like(x)": "p = torch.empty(x.shape, dtype=x.dtype, device=x.device)",
            },
        ),
        ("maximum", {"tl.exp(x - tl.max(x, axis=0))": "tl.exp(x)"}),
        ("another formula", {"p = e / tl.sum(e, axis=0)": "p = e"}, "the values of exponentials not divided"),
        ("offset width", {"row = tl.program_id(0).to(tl.int64)": "row = tl.program_id(0)"}),
        (
            "NaN and inf",
            {
                "left = tl.where(exists, p, -1.0)": "left = tl.where(exists, p, 0.0)",
                "left = tl.where(col == winner, -1.0, left)": "left = tl.where(col == winner, 0.0, left)",
            },
        ),
        ("grid", {ROWS_GRID: "[(x.numel() // cols - 1,)]"}),
        ("grid", {ROWS_GRID: "[(x.shape[0],)]"}),
        ("in place", {"p = torch.empty_like(x)": "p = x"}),
        ("hard-coded size", {"block = triton.next_power_of_2(cols)": "block = 1024"}),
        ("hard-coded size", {"tl.static_range(K)": "tl.static_range(4)"}, r"out-of-bounds store of result\[1\]"),
        (
            "order of axes",
            {"row * K + place, tl.sum": "place * tl.num_programs(0) + row, tl.sum"},
            "the k rounds|rows and columns are exchanged",
        ),
        (
            "rounding",
            {
                "tl.store(p_ptr + row * cols + col, p, mask=exists)": "tl.store(p_ptr + row * cols + col, tl.where(p < 0.002, 0.0, p), mask=exists)"
            },
            ".",
        ),
    ),
    *mistakes_in(
        "08_linear_act",
        (
            "exception",
            {"acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)": "acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float16)"},
            "an acc of float32",
        ),
        (
            "mask",
            {
                "mask=(row < M)[:, None] & (k < K)[None, :],\n            other=0.0,": "mask=(k < K)[None, :],\n            other=0.0,"
            },
        ),
        (
            "mask",
            {
                "mask=(row < M)[:, None] & (k < K)[None, :],\n            other=0.0,": "mask=(row < M)[:, None],\n            other=0.0,"
            },
        ),
        (
            "mask",
            {
                "mask=(k < K)[:, None] & (col < N)[None, :],\n            other=0.0,": "mask=(k < K)[:, None],\n            other=0.0,"
            },
        ),
        (
            "mask",
            {
                "mask=(k < K)[:, None] & (col < N)[None, :],\n            other=0.0,": "mask=(col < N)[None, :],\n            other=0.0,"
            },
        ),
        ("mask", {"tl.load(bias_ptr + col, mask=col < N, other=0.0)": "tl.load(bias_ptr + col)"}),
        ("padding value", {"other=0.0,\n": "other=1.0,\n"}),
        ("padding value", {"(k < K)[None, :],\n            other=0.0,": "(k < K)[None, :],"}),
        ("padding value", {"(col < N)[None, :],\n            other=0.0,": "(col < N)[None, :],"}),
        ("stride", {LINEAR_X: "row[:, None] * K + k[None, :]"}),
        ("stride", {LINEAR_W: "k[:, None] + col[None, :] * K"}),
        ("stride", {LINEAR_X: "row[:, None] * weight_stride_n + k[None, :] * weight_stride_k"}),
        ("stride", {LINEAR_W: "k[:, None] * x_stride_k + col[None, :] * x_stride_m"}),
        (
            "order of axes",
            {LINEAR_W: "k[:, None] * weight_stride_n + col[None, :] * weight_stride_k"},
            "the product|out-of-bounds",
        ),
        (
            "order of axes",
            {"row = tl.program_id(0)": "row = tl.program_id(1)", "col = tl.program_id(1)": "col = tl.program_id(0)"},
        ),
        (
            "accumulation",
            {
                "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)": "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)",
                "tl.dot(x, weight, acc)": "tl.dot(x, weight, acc, out_dtype=tl.float16)",
            },
        ),
        (
            "rounding",
            {'    if ACTIVATION == "relu"': '    s = s.to(tl.float16).to(tl.float32)\n    if ACTIVATION == "relu"'},
        ),
        ("rounding", {"s = acc +": "s = acc.to(tl.float16).to(tl.float32) +"}),
        (
            "scale",
            {
                "0.5 * s * (1 + tl.erf(s * 0.7071067811865476))": "s * tl.sigmoid(1.5957691216057308 * (s + 0.044715 * s * s * s))"
            },
            "Look at the formula of gelu",
        ),
        ("scale", {"0.7071067811865476": "0.7071"}, "the formula of gelu|and gelu"),
        (
            "scale",
            {"y = s * tl.sigmoid(s)": "y = tl.sigmoid(s)"},
            r"the values of sigmoid\(s\) instead of s sigmoid\(s\)",
        ),
        ("offset width", {"row = tl.program_id(0).to(tl.int64)": "row = tl.program_id(0)"}),
        ("NaN and inf", {"tl.where(s < 0, 0.0, s)": "tl.maximum(s, 0.0)"}),
        ("NaN and inf", {"tl.where(s < 0, 0.0, s)": "tl.where(s > 0, s, 0.0)"}),
        (
            "grid",
            {"(triton.cdiv(m, block_m), triton.cdiv(n, block_n))": "(max(1, m // block_m), triton.cdiv(n, block_n))"},
        ),
        (
            "grid",
            {"(triton.cdiv(m, block_m), triton.cdiv(n, block_n))": "(triton.cdiv(m, block_m), max(1, n // block_n))"},
        ),
        ("grid", {"(triton.cdiv(m, block_m), triton.cdiv(n, block_n))": "(1, 1)"}),
        ("hard-coded size", {"range(0, K, BLOCK_K)": "range(0, 128, BLOCK_K)"}, "the first 128 products alone"),
    ),
    *mistakes_in(
        "09_conv_bn_relu",
        ("mask", {"mask=seen & (pixel < pixels) & (at < depth)[None, :]": "mask=seen & (at < depth)[None, :]"}),
        (
            "mask",
            {CONV_X: "mask=(pixel < pixels) & (at < depth)[None, :],\n"},
            r"out-of-bounds read of x, \d+ before the first of its \d+ elements|the index map",
            "element -",
        ),
        ("mask", {CONV_X: "mask=seen & (pixel < pixels),\n"}, "loads past the filter's end|out-of-bounds"),
        ("mask", {"mask=(k < out_channels) & (at < depth)[:, None]": "mask=k < out_channels"}),
        ("mask", {"mask=(k < out_channels) & (at < depth)[:, None]": "mask=(at < depth)[:, None]"}),
        *[("mask", {f"{of}_ptr + k, mask=exists, other=0.0": f"{of}_ptr + k"}) for of in CONV_VECTORS],
        ("mask", {"var_ptr + k, mask=exists, other=1.0": "var_ptr + k"}),
        ("mask", {"mask=(pixel < pixels) & exists)": "mask=exists)"}),
        ("mask", {"mask=(pixel < pixels) & exists)": "mask=pixel < pixels)"}, "out-of-bounds|race"),
        ("padding value", {f"{CONV_X}            other=0.0": f"{CONV_X}            other=1.0"}, "the index map"),
        ("padding value", {f"{CONV_X}            other=0.0,": CONV_X}),
        ("padding value", {f"{CONV_W}            other=0.0,": CONV_W}),
        ("stride", {"image * x_stride_n": "image * channels * height * width"}),
        ("stride", {"channel[None, :] * x_stride_c": "channel[None, :] * height * width"}),
        ("stride", {"row * x_stride_h": "row * width"}),
        ("stride", {"col * x_stride_w": "col"}),
        ("stride", {"k * weight_stride_k": "k * channels * TAPS_H * TAPS_W"}),
        ("stride", {"channel * weight_stride_c": "channel * TAPS_H * TAPS_W"}),
        ("stride", {"tap // TAPS_W * weight_stride_h": "tap // TAPS_W * TAPS_W"}),
        ("stride", {"tap % TAPS_W * weight_stride_w": "tap % TAPS_W"}),
        (
            "accumulation",
            {
                "acc = tl.zeros((BLOCK_PIXELS, BLOCK_OUT), dtype=tl.float32)": "acc = tl.zeros((BLOCK_PIXELS, BLOCK_OUT), dtype=tl.float16)",
                "tl.dot(x, weight, acc)": "tl.dot(x, weight, acc, out_dtype=tl.float16)",
            },
            "the accumulator|the edges",
        ),
        ("scale", {"scale *= tl.rsqrt(": "scale *= tl.sqrt("}, "batch norm: scale"),
        ("scale", {"(bias - mean) * scale": "(bias - mean)"}, "the mean subtracted after scaling"),
        ("scale", {"(bias - mean) * scale": "(bias + mean) * scale"}, "batch norm: scale"),
        ("eps", {"other=1.0) + eps)": "other=1.0))"}),
        ("eps", {"other=1.0) + eps)": "other=1.0) + 1e-5)"}),
        (
            "order of axes",
            {
                "pixel // out_width % out_height * STRIDE": "pixel % out_width * STRIDE",
                "pixel % out_width * STRIDE": "pixel // out_width % out_height * STRIDE",
            },
            "the product|last two axes",
        ),
        ("order of axes", {"pixel * out_channels + k": "k * pixels + pixel"}, "the product|the result's strides"),
        (
            "order of axes",
            {
                "(tap // TAPS_W)[None, :]": "(tap % TAPS_W)[None, :]",
                "(tap % TAPS_W)[None, :]": "(tap // TAPS_W)[None, :]",
            },
            "the index map",
        ),
        (
            "order of axes",
            {"k * weight_stride_k": "k * weight_stride_c", "channel * weight_stride_c": "channel * weight_stride_k"},
            "the product",
        ),
        ("offset width", {"pixel = tl.program_id(0).to(tl.int64)": "pixel = tl.program_id(0)"}),
        ("NaN and inf", {"tl.where(y < 0, 0.0, y)": "tl.maximum(y, 0.0)"}),
        ("NaN and inf", {"tl.where(y < 0, 0.0, y)": "tl.where(y > 0, y, 0.0)"}),
        ("grid", {"triton.cdiv(pixels, block_pixels)": "max(1, pixels // block_pixels)"}),
        ("grid", {"triton.cdiv(out_channels, block_out)": "1"}),
        (
            "grid",
            {"pixels = images * out_height * out_width": "pixels = out_height * out_width"},
            "the image|the grid",
        ),
        (
            "in place",
            {
                "    y = acc * scale + shift": "    tl.store(bias_ptr + k, shift.to(tl.float16), mask=exists)\n    y = acc * scale + shift",
            },
            r"argument \d was changed|race|unsynchronised read of bias",
        ),
        ("hard-coded size", {"range(0, depth, BLOCK_IN)": "range(0, 128, BLOCK_IN)"}, "the sum runs over taps"),
        ("hard-coded size", {"STRIDE=stride": "STRIDE=1"}, "the stride: "),
        (
            "hard-coded size",
            {"images, channels, height, width = x.shape": "images, channels, height, width = x.shape\n    images = 1"},
            "how the output is allocated",
        ),
    ),
    *mistakes_in(
        "10_attention_scores",
        *ATTENTION,
        ("exception", {"seen = valid[None, :]": "seen = valid[:, None]"}, r"x\[:, None\] and which x\[None, :\]"),
        ("mask", {"p, mask=(query < seq)[:, None] & (key < seq)[None, :])": "p, mask=(key < seq)[None, :])"}),
        ("mask", {"p, mask=(query < seq)[:, None] & (key < seq)[None, :])": "p, mask=(query < seq)[:, None])"}),
        (
            "mask",
            {
                "valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0)": "valid = tl.load(valid_ptr + batch * seq + key)"
            },
        ),
        (
            "maximum",
            {
                'safe = tl.where(grown == -float("inf"), 0.0, grown)': "safe = tl.zeros((BLOCK_M,), tl.float32)",
                'safe = tl.where(top == -float("inf"), 0.0, top)': "safe = tl.zeros((BLOCK_M,), tl.float32)",
            },
        ),
        ("rescaling", {"total = total * tl.exp(top - safe)": "total = total"}),
        (
            "rounding",
            {"p = tl.exp(s - safe": "s = s.to(tl.float16).to(tl.float32)\n        p = tl.exp(s - safe"},
            "the scale",
        ),
        ("NaN and inf", {"tl.where(total == 0, 0.0, 1.0 / total)": "1.0 / total"}),
        ("NaN and inf", {'safe = tl.where(grown == -float("inf"), 0.0, grown)': "safe = grown"}),
        (
            "order of axes",
            {
                "valid_ptr + batch * seq + key, mask=key < seq": "valid_ptr + batch * seq + query, mask=query < seq",
                "valid[None, :]": "valid[:, None]",
            },
        ),
        (
            "order of axes",
            {"p_ptr + query[:, None] * seq + key[None, :], p": "p_ptr + key[None, :] * seq + query[:, None], p"},
        ),
        ("offset width", {"p_ptr += tl.program_id(1).to(tl.int64)": "p_ptr += tl.program_id(1)"}),
    ),
    *mistakes_in(
        "10b_flash_attention",
        *ATTENTION,
        ("mask", {f"v_ptr + {V}, mask=(key < seq)[:, None], other=0.0": f"v_ptr + {V}"}),
        ("mask", {"o.to(tl.float16), mask=(query < seq)[:, None])": "o.to(tl.float16))"}),
        (
            "padding value",
            {f"v_ptr + {V}, mask=(key < seq)[:, None], other=0.0": f"v_ptr + {V}, mask=(key < seq)[:, None]"},
        ),
        ("padding value", {"seen = (key < seq)[None, :]": "seen = (key >= 0)[None, :]"}),
        ("stride", {V: "key[:, None] * k_stride_n + d[None, :] * k_stride_d"}),
        ("stride", {V: "key[:, None] * DIM + d[None, :]"}),
        ("stride", {BASES["v"]: "v_ptr += batch * k_stride_b + head * k_stride_h"}),
        (
            "maximum",
            {"e = tl.exp(s - grown[:, None])": "grown = tl.zeros((BLOCK_M,), tl.float32)\n        e = tl.exp(s)"},
        ),
        ("rescaling", {"total = total * shrink": "total = total"}),
        ("rescaling", {"acc * shrink[:, None])": "acc)"}),
        ("NaN and inf", {"shrink = tl.exp(top - grown)": "shrink = tl.exp(grown - top)"}, "the NaN", "the values of"),
        ("rounding", {"tl.dot(e.to(tl.float16), v,": "tl.dot(e, v.to(tl.float32),"}, "cut to tf32"),
        ("scale", {"o = acc / total[:, None]": "o = acc"}),
        ("offset width", {"batch = tl.program_id(1).to(tl.int64)": "batch = tl.program_id(1)"}),
    ),
    *mistakes_in(
        "11_fused_backward",
        *[("mask", {f"{of}_ptr + at, mask=exists, other=0.0": f"{of}_ptr + at"}) for of in ("grad_y", "x")],
        *[("mask", {f"{of}_ptr + col, mask=exists, other=0.0": f"{of}_ptr + col"}) for of in ("weight", "bias")],
        ("mask", {"x_hat * stretch), mask=exists)": "x_hat * stretch))"}),
        ("mask", {"at, grad_weight, mask=exists)": "at, grad_weight)"}, "out-of-bounds|race"),
        ("mask", {"at, grad_bias, mask=exists)": "at, grad_bias)"}),
        *[
            ("padding value", {f"{of}_ptr + at, mask=exists, other=0.0": f"{of}_ptr + at, mask=exists"})
            for of in ("grad_y", "x")
        ],
        *[
            ("padding value", {f"{of}_ptr + col, mask=exists, other=0.0": f"{of}_ptr + col, mask=exists"})
            for of in ("weight", "bias")
        ],
        ("padding value", {"x_ptr + at, mask=exists, other=0.0": "x_ptr + at, mask=exists, other=1.0"}),
        (
            "padding value",
            {"centred = tl.where(exists, x - tl.sum(x, axis=0) / cols, 0.0)": "centred = x - tl.sum(x, axis=0) / cols"},
        ),
        *[
            ("padding value", {f"tl.sum({of}, axis=0) / cols": f"tl.sum({of}, axis=0) / BLOCK"})
            for of in ("x", "centred * centred", "along", "along * x_hat")
        ],
        (
            "stride",
            {"grad_y, x = grad_y.contiguous(), x.contiguous()": "x = x.contiguous()"},
            "the strides|out-of-bounds",
        ),
        (
            "stride",
            {
                "grad_y, x = grad_y.contiguous(), x.contiguous()": "grad_y = grad_y.contiguous()",
                "torch.empty_like(x)": "torch.empty(x.shape, dtype=x.dtype, device=x.device)",
            },
        ),
        (
            "accumulation",
            {
                "x = tl.load(x_ptr + at, mask=exists, other=0.0).to(COMPUTE)": "x = tl.load(x_ptr + at, mask=exists, other=0.0)"
            },
            "float16: load, convert to float32, compute",
        ),
        ("scale", {"1.702 * z * gate": "z * gate"}),
        ("scale", {"tl.sigmoid(1.702 * z)": "tl.sigmoid(z)"}),
        ("scale", {"along = grad_z * weight": "along = grad_z"}),
        ("scale", {"rstd * (along": "(along"}),
        ("scale", {"x_hat * weight + bias": "x_hat * weight"}),
        ("eps", {"/ cols + eps)": "/ cols)"}),
        ("eps", {"/ cols + eps)": "/ cols + 1e-5)"}),
        (
            "eps",
            {
                "tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)": "1.0 / (tl.sqrt(tl.sum(centred * centred, axis=0) / cols) + eps)"
            },
            "eps: |the formula",
        ),
        ("order of axes", {"return grad_x, grad_weight, grad_bias": "return grad_x, grad_bias, grad_weight"}),
        ("order of axes", {"at = tl.program_id(0) * cols + col": "at = col * tl.num_programs(0) + tl.program_id(0)"}),
        ("offset width", {"tl.cast(row, tl.int64) * cols": "row * cols"}),
        ("NaN and inf", {"grad_z = grad_y * ": "grad_z = tl.where(grad_y == grad_y, grad_y, 0.0) * "}),
        (
            "NaN and inf",
            {"        centred = tl.where": "        x = tl.where(x == x, x, 0.0)\n        centred = tl.where"},
        ),
        ("grid", {"rows = x.numel() // cols": "rows = x.shape[0]"}),
        ("grid", {"rows = x.numel() // cols": "rows = x.numel() // cols - 1"}),
        (
            "grid",
            {"rows, tl.num_programs(0))": "tl.minimum(rows, tl.program_id(0) + 1), tl.num_programs(0))"},
            "more rows than programs",
        ),
        ("in place", {"grad_x = torch.empty_like(x)": "grad_x = x"}),
        ("in place", {"grad_x = torch.empty_like(x)": "grad_x = grad_y"}),
        (
            "hard-coded size",
            {
                "block = tl.float64 if double else tl.float32, triton.next_power_of_2(cols)": "block = tl.float64 if double else tl.float32, 1024"
            },
        ),
    ),
    *mistakes_in(
        "12_layer_norm_int8",
        ("mask", {INT8_X: "x = tl.load(x_ptr + row * cols + col)"}),
        ("mask", {"weight_ptr + col, mask=exists, other=0.0": "weight_ptr + col"}),
        ("mask", {"bias_ptr + col, mask=exists, other=0.0": "bias_ptr + col"}),
        ("mask", {"code.to(tl.int8), mask=exists)": "code.to(tl.int8))"}),
        ("padding value", {INT8_X: "x = tl.load(x_ptr + row * cols + col, mask=exists, other=1.0)"}),
        ("padding value", {INT8_X: "x = tl.load(x_ptr + row * cols + col, mask=exists)"}),
        ("padding value", {INT8_CENTRED: "centred = x - tl.sum(x, axis=0) / cols"}),
        ("padding value", {"bias_ptr + col, mask=exists, other=0.0": "bias_ptr + col, mask=exists, other=1000.0"}),
        ("padding value", {"(centred * centred, axis=0) / cols": "(centred * centred, axis=0) / BLOCK"}),
        (
            "stride",
            {
                "x = x.contiguous()\n": "\n",
                "q = torch.empty_like(x, dtype=torch.int8)": "q = torch.empty(x.shape, dtype=torch.int8, device=x.device)",
            },
        ),
        (
            "accumulation",
            {
                f"{INT8_X}.to(tl.float32)": INT8_X,
                "tl.sum(centred * centred, axis=0)": "tl.sum(centred * centred, axis=0).to(tl.float32)",
            },
            "float16|PyTorch's own|the formula",
        ),
        ("scale", {"rstd * weight + bias": "rstd + bias"}),
        ("scale", {"tl.max(tl.abs(y), axis=0)": "tl.max(y, axis=0)"}),
        ("scale", {"clip * largest / 127.0": "clip * largest / 128.0"}),
        ("scale", {"clip * largest / 127.0": "127.0 / (clip * largest)"}),
        ("scale", {"clip * largest / 127.0": "largest / 127.0"}, "the formula without clip"),
        ("eps", {"/ cols + eps)": "/ cols)"}),
        ("eps", {"/ cols + eps)": "/ cols + 1e-5)"}),
        ("offset width", {"tl.program_id(0).to(tl.int64)": "tl.program_id(0)"}),
        ("NaN and inf", {"tl.where(largest < 1e-12, 1e-12, largest)": "tl.maximum(largest, 1e-12)"}),
        ("NaN and inf", {"tl.where(code > 127.0, 127.0, code)": "tl.minimum(code, 127.0)"}),
        ("NaN and inf", {"tl.where(code < -127.0, -127.0, code)": "tl.maximum(code, -127.0)"}),
        ("codes", {"y / scale + 12582912.0 - 12582912.0": "tl.floor(y / scale + 0.5)"}),
        ("codes", {"y / scale + 12582912.0 - 12582912.0": "y / scale + tl.where(y < 0, -0.5, 0.5)"}),
        ("codes", {"y / scale + 12582912.0 - 12582912.0": "y / scale"}, "the formula"),
        ("codes", {"code = tl.where(code > 127.0, 127.0, code)": ""}),
        ("codes", {"code = tl.where(code < -127.0, -127.0, code)": ""}),
        ("codes", {"tl.where(code < -127.0, -127.0, code)": "tl.where(code < -128.0, -128.0, code)"}),
        ("codes", {"largest = tl.where(largest < 1e-12, 1e-12, largest)": ""}),
        ("grid", {"(x.numel() // cols,)": "(x.numel() // cols - 1,)"}),
        ("grid", {"(x.numel() // cols,)": "(x.shape[0],)"}),
        ("hard-coded size", {"block = triton.next_power_of_2(cols)": "block = 1024"}),
        ("order of axes", {"return q, scale": "return scale, q"}, "in another order than expected", "allocated"),
    ),
    *mistakes_in(
        "15_capstone",
        (
            "mask",
            {
                "x = tl.load(x_ptr + at, mask=exists, other=0.0).to(tl.float32)": "x = tl.load(x_ptr + at).to(tl.float32)"
            },
        ),
        ("mask", {"h * rstd * weight + residual, mask=exists)": "h * rstd * weight + residual)"}),
        (
            "eps",
            {
                "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)\n    tl.store(y_ptr": "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols)\n    tl.store(y_ptr"
            },
        ),
        (
            "stride",
            {
                "x, gate, residual = x.contiguous(), gate.contiguous(), residual.contiguous()": "x, gate = x.contiguous(), gate.contiguous()"
            },
        ),
        (
            "stride",
            {
                "x, gate, residual = x.contiguous(), gate.contiguous(), residual.contiguous()": "x, residual = x.contiguous(), residual.contiguous()"
            },
        ),
        ("grid", {"forward_kernel[(x.numel() // cols,)]": "forward_kernel[(x.shape[0],)]"}),
        (
            "hard-coded size",
            {"block_size = triton.next_power_of_2(cols)\n    warps": "block_size = 1024\n    warps"},
        ),
        ("scale", {"h = x * gate * tl.sigmoid(gate)": "h = x * tl.sigmoid(gate)"}, "the formula"),
        ("in place", {"y, cols = torch.empty_like(x), x.shape[-1]": "y, cols = x, x.shape[-1]"}),
        *[
            ("mask", {f"{of}_ptr + at, mask=exists, other=0.0).to(tl.float32)": f"{of}_ptr + at).to(tl.float32)"})
            for of in ("gate", "residual")
        ],
        ("mask", {"weight_ptr + col, mask=exists, other=0.0).to(tl.float32)": "weight_ptr + col).to(tl.float32)"}),
        *[
            ("mask", {f"{of}_ptr + at, mask=exists, other=0.0).to(COMPUTE)": f"{of}_ptr + at).to(COMPUTE)"})
            for of in ("grad_y", "x", "gate")
        ],
        ("mask", {"weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)": "weight_ptr + col).to(COMPUTE)"}),
        ("mask", {"grad_h * gate * s, mask=exists)": "grad_h * gate * s)"}),
        ("mask", {"(1.0 + gate * (1.0 - s)), mask=exists)": "(1.0 + gate * (1.0 - s)))"}),
        ("mask", {"col, grad_weight, mask=exists)": "col, grad_weight)"}, "out-of-bounds|race"),
        *[
            (
                "padding value",
                {f"{of}_ptr + at, mask=exists, other=0.0).to({to})": f"{of}_ptr + at, mask=exists).to({to})"},
            )
            for of in ("x", "gate")
            for to in ("tl.float32", "COMPUTE")
        ],
        (
            "padding value",
            {
                "h = x * gate * tl.sigmoid(gate)\n    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols": "h = x * gate * tl.sigmoid(gate)\n    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / BLOCK"
            },
        ),
        (
            "padding value",
            {
                "h = x * gate * s\n        rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols": "h = x * gate * s\n        rstd = tl.rsqrt(tl.sum(h * h, axis=0) / BLOCK"
            },
        ),
        ("padding value", {"tl.sum(along * h_hat, axis=0) / cols": "tl.sum(along * h_hat, axis=0) / BLOCK"}),
        (
            "stride",
            {
                "x, gate, residual = x.contiguous(), gate.contiguous(), residual.contiguous()": "gate, residual = gate.contiguous(), residual.contiguous()",
                "y, cols = torch.empty_like(x)": "y, cols = torch.empty(x.shape, dtype=x.dtype, device=x.device)",
            },
        ),
        (
            "stride",
            {
                "grad_y, x, gate = grad_y.contiguous(), x.contiguous(), gate.contiguous()": "x, gate = x.contiguous(), gate.contiguous()"
            },
            "the strides|out-of-bounds",
        ),
        (
            "stride",
            {
                "grad_y, x, gate = grad_y.contiguous(), x.contiguous(), gate.contiguous()": "grad_y, gate = grad_y.contiguous(), gate.contiguous()",
                "grad_x, grad_gate = torch.empty_like(x)": "grad_x, grad_gate = torch.empty_like(gate)",
            },
        ),
        (
            "stride",
            {
                "grad_y, x, gate = grad_y.contiguous(), x.contiguous(), gate.contiguous()": "grad_y, x = grad_y.contiguous(), x.contiguous()",
            },
        ),
        (
            "accumulation",
            {
                "x = tl.load(x_ptr + at, mask=exists, other=0.0).to(tl.float32)": "x = tl.load(x_ptr + at, mask=exists, other=0.0)",
                "h = x * gate * tl.sigmoid(gate)": "h = x * (gate * tl.sigmoid(gate)).to(x_ptr.dtype.element_ty)",
            },
        ),
        (
            "accumulation",
            {
                "x = tl.load(x_ptr + at, mask=exists, other=0.0).to(COMPUTE)": "x = tl.load(x_ptr + at, mask=exists, other=0.0)",
                "h = x * gate * s": "h = x * (gate * s).to(x_ptr.dtype.element_ty)",
            },
        ),
        ("accumulation", {"dtype=torch.float64 if double else torch.float32": "dtype=x.dtype"}),
        (
            "eps",
            {
                "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)\n    tl.store(y_ptr": "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + 1e-5)\n    tl.store(y_ptr"
            },
        ),
        ("eps", {"/ cols + eps)\n        h_hat": "/ cols)\n        h_hat"}),
        ("eps", {"/ cols + eps)\n        h_hat": "/ cols + 1e-5)\n        h_hat"}),
        ("order of axes", {"return grad_x, grad_gate,": "return grad_gate, grad_x,"}),
        (
            "order of axes",
            {"tl.program_id(0) * cols + col, grad_weight": "col * tl.num_programs(0) + tl.program_id(0), grad_weight"},
        ),
        ("offset width", {"tl.program_id(0).to(tl.int64) * cols": "tl.program_id(0) * cols"}),
        ("offset width", {"tl.cast(row, tl.int64) * cols": "row * cols"}),
        (
            "NaN and inf",
            {"h = x * gate * tl.sigmoid(gate)": "h = x * gate * tl.sigmoid(gate)\n    h = tl.where(h == h, h, 0.0)"},
        ),
        ("NaN and inf", {"along = grad_y * weight": "along = tl.where(grad_y == grad_y, grad_y, 0.0) * weight"}),
        ("grid", {"forward_kernel[(x.numel() // cols,)]": "forward_kernel[(x.numel() // cols - 1,)]"}),
        ("grid", {"rows = x.numel() // cols": "rows = x.shape[0]"}),
        ("grid", {"rows = x.numel() // cols": "rows = x.numel() // cols - 1"}),
        ("hard-coded size", {"tl.float32, triton.next_power_of_2(cols)": "tl.float32, 1024"}),
        ("scale", {"h * rstd * weight + residual": "h * rstd + residual"}),
        ("scale", {"along = grad_y * weight": "along = grad_y"}),
        ("scale", {"gate * (1.0 - s)": "(1.0 - s)"}),
        ("scale", {"15 * n + 6": "14 * n + 6"}, "bytes unfused: got"),
        ("scale", {"4 * (4 * n + columns)": "4 * (3 * n + columns)"}, "minimum bytes: got"),
        ("hard-coded size", {"+ 6 * rows": "+ 6 * 93"}, "bytes unfused: got"),
        ("in place", {"y, cols = torch.empty_like(x), x.shape[-1]": "y, cols = residual, x.shape[-1]"}),
        ("in place", {"grad_x, grad_gate = torch.empty_like(x)": "grad_x, grad_gate = x"}),
        ("in place", {"torch.empty_like(x), torch.empty_like(x)": "torch.empty_like(x), gate"}),
    ),
    # What learners write, each with what its message names, and the other causes that it must not.
    *mistakes_in(
        "07_register_budget",
        (
            "count",
            {"numbers = 8\n": "numbers = 4\n"},
            r"loads 8 bytes at a time(.*\n)*.*needs 16 bytes",
            "spills|limits it",
        ),
        ("count", {"numbers = 8\n": "numbers = 64\n"}, "limited by registers", "16 bytes|power of two"),
        (
            "count",
            {"* numbers // columns)": "* numbers // columns // 2)", "max(1, 32": "(32"},
            "how ROWS is made",
            "registers",
        ),
        (
            "count",
            {"columns // (32 * numbers)": "columns / (32 * numbers)"},
            r"num_warps is 16\.0",
            "registers|ROWS is",
        ),
        (
            "count",
            {"while side / 2 < uses": "while side * 2 < uses"},
            "uses each number 8 times, 16 needed.*\n.*Look at .*: BLOCK_ROWS and",
            "registers",
        ),
        ("count", {"side * side // (32 * 16)": "side * side // (32 * 64)"}, "limited by registers", "uses each number"),
        ("return", {'return {"ROWS"': 'return {"rows"'}, "what your function returns", "registers|how ROWS"),
        (
            "return",
            {
                'return {"BLOCK_ROWS": side,': 'print({"BLOCK_ROWS": side,',
                'side, "num_warps": warps}': 'side, "num_warps": warps})',
            },
            "None: expected .*\n.*what your function returns",
            "registers",
        ),
    ),
    *mistakes_in(
        "13_decide",
        (
            "another formula",
            {'set(one["writes"]) & set(two["elsewhere"])': 'set(one["writes"]) & set(two["reads"])'},
            "gives False, but one kernel may do it(.*\n)*.*which of your rules refuses",
            "Look at rule",
        ),
        (
            "another formula",
            {"return can_run(graph, [group, *alone]) and kernel_cost": "return kernel_cost"},
            "has to run between them(.*\n)*.*Look at rule 6",
            "rule [1-57]",
        ),
        (
            "another formula",
            {'["registers"] <= 255': '["registers"] <= 128'},
            "gives False, but one kernel may do it",
            "Look at rule",
        ),
        ("another formula", {'["time"] < apart': '["time"] > apart'}, "one kernel takes .* us, two", "legal"),
        (
            "another formula",
            {"return is_legal(graph, [one, two]) and kernel_cost": "return kernel_cost"},
            "gives True, but (.*\n)*.*Look at whether it's legal",
            "cost one by one",
        ),
        (
            "return",
            {"return can_run(graph, [group, *alone]) and": "can_run(graph, [group, *alone]) and"},
            "gives None: return True or False",
            "rule",
        ),
        ("return", {"return best(0, [])[1]": "return best(0, [])"}, "return a list of lists of names", "rule|possible"),
    ),
    *mistakes_in(
        "14_cuda_softmax",
        (
            "mask",
            {"if (i < columns / W) v[k] = from[i]": "if (i < columns) v[k] = from[i]"},
            "out-of-bounds read: x, (.*\n)*.*the line that is named",
            "race|the sum",
        ),
        (
            "mask",
            {"(long long)blockIdx.x * columns": "(long long)threadIdx.x * columns"},
            "out-of-bounds read: x",
            "race|the sum",
        ),
        (
            "grid",
            {"if (i < columns / W) to[i] = v[k]": "if (i < columns / W - 1) to[i] = v[k]"},
            "the stores: 12 elements of y were never written",
            "the sum|where the NaN",
        ),
        (
            "rescaling",
            {"far = 16; far > 0": "far = 8; far > 0"},
            "the sum, which is too small: every element of row 0 is .* times the right one",
            "NaN|maximum",
        ),
        (
            "rescaling",
            {"sum = of_block<Sum>(sum, of_warps)": "sum = of_block<Max>(sum, of_warps)"},
            "the sum, which is too small",
            "NaN|maximum",
        ),
        (
            "padding value",
            {"v[k].of[w] = -INFINITY;": "v[k].of[w] = 0;"},
            "the sum, which is too large|where the NaN",
            "too small",
        ),
        (
            "maximum",
            {"return fmaxf(a, b)": "return fminf(a, b)"},
            "where the NaN comes from",
            "the sum, which|never written",
        ),
        (
            "exception",
            {"float peak = -INFINITY, sum = 0;": "float peak = -INFINITY, sum = 0"},
            r"does not compile:\n.*expected a \";\"(.*\n)*.*the line that the compiler names",
            "the sum",
        ),
        (
            "exception",
            {'f"softmax<{width}, {each}>"': '"my_softmax"'},
            "there is no kernel 'my_softmax' in the source",
            "nv_name_map",
        ),
        ("hard-coded size", {"threads = 256": "threads = 100"}, "expected whole warps", "the line"),
        (
            "owner",
            {"  __syncthreads();  // every warp has left its own": "  "},
            "race: shared memory",
            "the sum, which",
        ),
    ),
    *mistakes_in(
        "16_help_the_compiler",
        (
            "owner",
            {"tl.program_id(0).to(tl.int64)": "tl.program_id(1).to(tl.int64)"},
            r"race of(.*\n)*.*never calls tl\.program_id\(0\)",
            "Look at the (formula|strides|grid)",
        ),
        ("mask", {"x_ptr + start + col, mask=exists, other=0.0)": "x_ptr + start + col)"}),
        (
            "mask",
            {"weight_ptr + col": "weight_ptr + start + col"},
            "out-of-bounds read of weight(.*\n)*.*the offset is wrong",
        ),
        ("padding value", {"x_ptr + start + col, mask=exists, other=0.0)": "x_ptr + start + col, mask=exists)"}),
        (
            "another formula",
            {"y * tl.sigmoid(y) * up": "y * up * tl.sigmoid(y * up)"},
            "SiLU after the product with up",
        ),
        ("another formula", {"y * tl.sigmoid(y) * up": "tl.sigmoid(y) * up"}, r"sigmoid\(y\) for y sigmoid\(y\)"),
        ("another formula", {"y * tl.sigmoid(y) * up": "y * up * tl.sigmoid(up)"}, "SiLU of up times the norm"),
        ("another formula", {"/ cols + eps) * weight": "/ cols + eps)"}, "the formula without the weight"),
        (
            "another formula",
            {"tl.sum(x * x, axis=0) / cols": "tl.sum(x * x, axis=0)"},
            "the sum of squares not divided by n",
        ),
        ("another formula", {"x * tl.rsqrt(": "x * tl.sqrt("}, "multiplied by the root"),
        ("eps", {"/ cols + eps)": "/ cols + 1e-5)"}),
        ("exception", {"block = triton.next_power_of_2(cols)": "block = cols"}, "power of two"),
        ("return", {'"weight": weight, "eps": eps}': '"weight": weight}'}, "has other keys than", "shapes|dtypes"),
        (
            "another formula",
            {'{"x": x, "up": up, "weight": weight,': '{"x": x, "up": weight, "weight": up,'},
            "shapes do not fit(.*\n)*.*the shapes of weight and up",
            "dtypes",
        ),
        (
            "another formula",
            {'split(node, "silu")': 'split(node, "sigmoid")'},
            "0 found of 1(.*\n)*.*which condition refuses it",
            "shapes do not fit",
        ),
    ),
    *mistakes_in(
        "17_flash_decoding",
        ("scale", {"axis=1) * scale": "axis=1)"}, r"the formula without 1/sqrt\(dim\)", "the merge:|bounds:"),
        ("scale", {"dim**-0.5": "dim**0.5"}, r"sqrt\(dim\) for 1/sqrt\(dim\)", "the merge:|bounds:"),
        (
            "rescaling",
            {"total = total * shrink + ": "total = total + "},
            "the sum never rescaled when a split's maximum grows, in blocks of 32",
            "the merge:|acc never",
        ),
        (
            "rescaling",
            {"total = tl.sum(total * share, axis=0)": "total = tl.sum(total, axis=0)"},
            r"the merge without exp\(m_s - m\) before the sums",
            "before the values",
        ),
        (
            "padding value",
            {'s = tl.where(inside, s, -float("inf"))': "s = tl.where(inside, s, 0.0)"},
            "scores of 0 for the lanes of a split's last block past its end, in blocks of 32",
            "goes past",
        ),
        (
            "mask",
            {"range(first, last, BLOCK)": "range(first + 1, last, BLOCK)"},
            "splits without their first key",
            "last key",
        ),
        ("another formula", {"v = tl.load(v_ptr + at": "v = tl.load(k_ptr + at"}, "the formula with k for v"),
        (
            "stride",
            {"q, k, v = q.contiguous(), k.contiguous(), v.contiguous()": "q, v = q.contiguous(), v.contiguous()"},
            "strides of k and v",
            "the merge:|the bounds",
        ),
        ("NaN and inf", {"tl.where(total == 0.0, 1.0, total)": "total"}, "no key: the result is 0"),
        (
            "accumulation",
            {
                "acc = torch.empty((heads, splits, dim), dtype=torch.float32": "acc = torch.empty((heads, splits, dim), dtype=q.dtype"
            },
            "float16: convert to float32 when loaded, keep partial results in it",
            "the merge:",
        ),
        (
            "another formula",
            {"part = head * splits + split\n    tl.store": "part = split * splits + head\n    tl.store"},
            "loaded from where that split stored them|out-of-bounds|race",
        ),
    ),
    *mistakes_in(
        "18_short_kernels",
        ("order of axes", {"return y, s": "return s, y"}, "the two results, exchanged", "Look at the strides"),
        (
            "another formula",
            {"normed * (gate * tl.sigmoid(gate))": "normed * tl.sigmoid(normed) * gate"},
            "SiLU of the norm times g",
        ),
        ("another formula", {"normed * (gate * tl.sigmoid(gate))": "normed * gate"}, r"g for g sigmoid\(g\)"),
        ("another formula", {"tl.store(sum_ptr + start + col, s,": "tl.store(sum_ptr + start + col, x,"}, "y and x"),
        ("eps", {"(mean_square + eps)": "(mean_square + 1e-5)"}),
        ("mask", {"weight = tl.load(weight_ptr + col, mask=exists)": "weight = tl.load(weight_ptr + col)"}),
        ("stride", {"residual.contiguous(), gate.contiguous()": "residual.contiguous(), gate"}),
        (
            "count",
            {"return 6, 4 * (11 * width + products)": "return 6, 11 * width + products"},
            "elements instead of bytes",
            "launches: got",
        ),
        (
            "count",
            {"return 6, 4 * (11 * width + products)": "return 4 * (11 * width + products), 6"},
            "the right numbers in the wrong order",
            "terms",
        ),
        ("count", {"return 3, 4 * (5": "return 2, 4 * (5"}, "launches: got 2, expected 3", "bytes: got"),
        (
            "return",
            {'return [[each["name"] for each in launch] for launch in launches]': "return launches"},
            "not a list of lists of names",
            "budget",
        ),
        (
            "count",
            {
                "return call + launches * gap + nbytes / bandwidth": "return (call + launches * gap + nbytes / bandwidth) / 1000"
            },
            "the unit: yours is in thousands",
            "the terms",
        ),
        (
            "count",
            {"left = budget - call - nbytes": "left = budget - nbytes"},
            "a graph without its call",
            "only fits in part",
        ),
    ),
    *mistakes_in(
        "11_fused_backward",
        (
            "another formula",
            {"tl.sum(along, axis=0) / cols": "tl.sum(along, axis=0)"},
            "its first mean not divided by n",
        ),
        ("another formula", {"- x_hat * stretch)": "+ x_hat * stretch)"}, "its second mean added"),
        ("another formula", {"along - shift": "along + shift"}, "right: result 2, result 3\n", "also wrong"),
        (
            "another formula",
            {"1.702 * z * gate * (1.0 - gate)": "1.702 * z * gate"},
            "result 1 of 3: .*\n.*\n  also wrong: result 2, result 3\n(.*\n)*.*what they share",
            "right: result",
        ),
        (
            "another formula",
            {"grad_bias += grad_z": "grad_bias += grad_y"},
            "result 3 of 3: .*\n.*\n  right: result 1, result 2\n",
            "also wrong",
        ),
        (
            "grid",
            {"grad_weight += grad_z * x_hat": "grad_weight = grad_z * x_hat"},
            "the loop over rows, and the sums",
            "the values of",
        ),
        ("return", {"sums.sum(1)": "sums.sum(2)"}, "any operation that your launcher applies"),
    ),
    *mistakes_in(
        "12_layer_norm_int8",
        ("another formula", {"code = y / scale": "code = y * scale"}, "codes of y times the scale"),
        ("another formula", {"clip * largest / 127.0": "clip * largest / 255.0"}, "255 for 127"),
        ("another formula", {"rstd = tl.rsqrt(": "rstd = tl.sqrt("}, "multiplied by the root"),
        ("another formula", {"y = centred * rstd": "y = x * rstd"}, "x for x - mean in the numerator"),
        ("owner", {"tl.program_id(0)": "tl.program_id(1)"}, r"never calls tl\.program_id\(0\)"),
    ),
    *mistakes_in(
        "15_capstone",
        (
            "another formula",
            {"tensors = (x, gate, residual,": "tensors = (x, residual, gate,"},
            "gate and residual exchanged",
        ),
        (
            "another formula",
            {"h = x * gate * tl.sigmoid(gate)": "h = x * gate * tl.sigmoid(gate) + residual"},
            "before the norm and after it",
        ),
        ("another formula", {"grad_h * x * s * (1.0": "grad_h * gate * s * (1.0"}, "gate's gradient with gate for x"),
        (
            "another formula",
            {"tl.sum(along * h_hat, axis=0) / cols": "tl.sum(along * h_hat, axis=0)"},
            "with their mean not divided by n",
        ),
        (
            "owner",
            {"exists, at = col < cols, tl.program_id(0)": "exists, at = col < cols, tl.program_id(1)"},
            r"never calls tl\.program_id\(0\)",
        ),
        (
            "count",
            {"100 * (1 - least / unfused)": "1 - least / unfused"},
            "a fraction, and a percentage is asked for",
            "too small",
        ),
    ),
]


def missing(mistake: Mistake) -> set[str]:
    """The texts to be replaced that stand in no answer."""
    cells = exercises_in(only=mistake.exercise)[mistake.exercise].cells
    answers = [without_comments(cell["source"]) for cell in cells if cell["answer"]]
    return {old for old in mistake.changes if not any(re.search(wrapped(old), source) for source in answers)}


def wrapped(text: str) -> str:
    """A regular expression of a text of one line, whichever of its brackets the model answer breaks into lines."""
    pattern = re.sub(r"(?<=\S) (?=\S)", lambda _: r"\s+", re.sub(r"([^\w\s])", r"\\\1", text))
    return re.sub(r"\\[)\]]", r",?\\s*\g<0>", re.sub(r"\\[(\[]", r"\g<0>\\s*", pattern))


def mistaken(mistake: Mistake, folder: Path) -> server.RunExercise:
    """The exercise with the mistake made in its model answers."""
    pattern = "|".join(f"({wrapped(old)})" for old in mistake.changes)
    others = list(mistake.changes.values())
    cells = []
    for cell in exercises_in(only=mistake.exercise)[mistake.exercise].cells:
        source = cell["source"]
        if cell["answer"]:
            source = re.sub(pattern, lambda found: others[found.lastindex - 1], without_comments(source))
        cells.append(cell | {"source": source})
    with contextlib.redirect_stdout(io.StringIO()):
        return server.RunExercise(cells, 0, folder)


def changed(exercise: str, changes: dict[str, str]) -> list[dict]:
    """The exercise's cells, with the changes made in its model answers one after the other."""
    cells = []
    for cell in exercises_in(only=exercise)[exercise].cells:
        source = cell["source"]
        if cell["answer"]:
            source = without_comments(source)
            for old, new in changes.items():
                source = re.sub(wrapped(old), lambda _, new=new: new, source)
        cells.append(cell | {"source": source})
    return cells


def not_in_the_model(exercise: str, texts: Iterable[str]) -> list[str]:
    """Those of the texts that stand in no model answer of the exercise."""
    cells = exercises_in(only=exercise)[exercise].cells
    model = [without_comments(cell["source"]) for cell in cells if cell["answer"]]
    return [text for text in texts if not any(re.search(wrapped(text), source) for source in model)]


def without_comments(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def verdicts(
    mistake: Mistake, exercise: server.RunExercise, seed: int, folder: Path
) -> list[tuple[str, Outcome | None]]:
    """The first public check that rejects the mistake on one draw, the hidden one of its like, and what they say."""
    exercise.seed = seed
    hidden = exercises_in(only=mistake.exercise)[mistake.exercise].hidden
    # How further cases go is asked where that decides what is said.
    decisive = {"04_bias_dropout_residual": ("another formula",), "08_linear_act": ("rounding", "scale")}
    patience = 20.0 if mistake.kind in decisive.get(mistake.exercise, ()) else 0.0
    with mock.patch.object(values, "PATIENCE", patience), contextlib.redirect_stdout(io.StringIO()):
        for check in (check for check in exercise.checks if check not in hidden):
            outcome = exercise.run_check(check, {}, folder)
            if outcome.state in (FAIL, ERROR):
                found = [(check, outcome)]
                if LIKE.get(check) in hidden:
                    found.append((LIKE[check], exercise.run_check(LIKE[check], {}, folder)))
                return found
    return [("public", None)]


def complaints(mistake: Mistake, seeds: range) -> list[str]:
    """What is wrong with the checks: a draw on which the mistake passes, or is told as another."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        exercise = mistaken(mistake, Path(folder))
        for seed in seeds:
            for check, outcome in verdicts(mistake, exercise, seed, Path(folder)):
                if outcome is None or outcome.state not in (FAIL, ERROR):
                    found.append(f"seed {seed}: {check} accepts {mistake}")
                elif not re.search(mistake.told, str(outcome)):
                    found.append(f"seed {seed}: {check} says of {mistake}:\n{outcome}")
                elif mistake.never and re.search(mistake.never, str(outcome)):
                    found.append(f"seed {seed}: {check} misleads about {mistake}:\n{outcome}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make every mistake on many draws.")
    parser.add_argument("only", nargs="*", metavar="NN", help="exercises, by their numbers")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--kind", default="", help="only mistakes of this kind")
    options = parser.parse_args(arguments)
    bad = 0
    torch.set_num_threads(1)  # small tensors: more threads wait for each other
    for mistake in MISTAKES:
        if options.kind in mistake.kind and (not options.only or mistake.exercise.split("_")[0] in options.only):
            found = complaints(mistake, range(options.seeds))
            bad += bool(found)
            print("ok" if not found else "\n".join(found), mistake if not found else "", flush=True)
    print(f"{bad} mistakes are not told on every draw")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
