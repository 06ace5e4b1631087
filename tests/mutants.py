"""Do an exercise's checks notice a small mistake? Mutate the model answers, and list the surviving mutants.

    python tests/mutants.py              every exercise; exit status 1 if a mutant survives without a stated reason
    python tests/mutants.py --only 04    one exercise
    python tests/mutants.py --only 09,10,15 --processes 16 --out mutants.jsonl

A mutant changes one place in one answer cell: drops a mask, swaps strides, changes a constant, skips a write,
accumulates in a lower precision, shifts a comparison by one, exchanges an operation, rounds a grid down, or omits a
copy that makes a tensor contiguous. It is rejected if any check, public or hidden, does not pass, as for a learner.
"""

import argparse
import ast
import contextlib
import copy
import io
import json
import os
import resource
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from model_draws import all_judged, lines_in

from helpers.grading.exercise import Exercise, exercises_in
from helpers.grading.replay import server
from helpers.learning.checks import values
from helpers.learning.outcome import PASS

TIME = 30  # seconds of a processor that the checks of one mutant may take
PATIENCE = 20  # times as long, by the clock: on a shared machine, and where a mutant waits for ever
MEMORY = 4 << 30  # bytes of data that they may have

# Mutants that change no result, no traffic and no machine code that is asked for: "exercise: before -> after" -> why.
ROWS = "return {'ROWS': max(1, 32 * warps * numbers // columns), 'num_warps': warps}"
WARPS = "warps = min(32, max(4, columns // (32 * numbers)))"
TILE_WARPS = "warps = max(1, side * side // (32 * 16))"
NORM_WARPS = "warps = min(32, max(4, block // 512))"
FLASH_LOADS = {
    "q = tl.load(q_ptr + query[:, None] * q_stride_n + d[None, :] * q_stride_d, "
    "mask=(query < seq)[:, None], other=0.0)": ("rows of queries that do not exist are computed and never stored"),
    "k = tl.load(k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d, mask=(key < seq)[None, :], other=0.0)": (
        "the scores of keys that do not exist become -inf, whatever they were"
    ),
    "v = tl.load(v_ptr + key[:, None] * v_stride_n + d[None, :] * v_stride_d, mask=(key < seq)[:, None], other=0.0)": (
        "rows that do not exist have the weight 0, and any finite number times 0 is 0"
    ),
}
FLASH_LAST = "last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else seq"
LINEAR_BIAS = "s = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]"
LINEAR_LOADS = {
    "x = tl.load(x_ptr + row[:, None] * x_stride_m + k[None, :] * x_stride_k, "
    "mask=(row < M)[:, None] & (k < K)[None, :], other=0.0)": (
        "beyond K the weights are 0, and any finite number times 0 is 0; rows beyond M are not stored"
    ),
    "weight = tl.load(weight_ptr + k[:, None] * weight_stride_k + col[None, :] * weight_stride_n, "
    "mask=(k < K)[:, None] & (col < N)[None, :], other=0.0)": (
        "beyond K x is 0, and any finite number times 0 is 0; columns beyond N are not stored"
    ),
    LINEAR_BIAS: "columns that do not exist are not stored",
}
MIN = "largest = tl.where(largest < 1e-12, 1e-12, largest)"
ABOVE, BELOW = "code = tl.where(code > 127.0, 127.0, code)", "code = tl.where(code < -127.0, -127.0, code)"
CONV_BIAS = "bias = tl.load(bias_ptr + k, mask=exists, other=0.0).to(tl.float32)"
CONV_RELU = "y = tl.where(y < 0, 0.0, y)"
CONV_LOADS = {  # what is loaded where nothing exists: before -> why another number may stand there
    "weight = tl.load(weight_ptr + k * weight_stride_k + offset[:, None], "
    "mask=(k < out_channels) & (at < depth)[:, None], other=0.0)": (
        "beyond the depth x is 0, and any finite number times 0 is 0; channels that do not exist are not stored"
    ),
    **dict.fromkeys(
        (
            "scale = tl.load(gamma_ptr + k, mask=exists, other=0.0)",
            CONV_BIAS,
            "mean = tl.load(mean_ptr + k, mask=exists, other=0.0)",
            "shift = tl.load(beta_ptr + k, mask=exists, other=0.0) + (bias - mean) * scale",
        ),
        "channels that do not exist are not stored",
    ),
}
CONV_VAR = "scale *= tl.rsqrt(tl.load(var_ptr + k, mask=exists, other=1.0) + eps)"
SCORES_WALK = "for start in range(0, tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M), BLOCK_N):"
SCORES_UNSEEN = "walks over keys that none of its queries sees: slower, with the same weights"
SCORES = {  # (before, a text in it, what becomes of it) -> why
    ("top = tl.full((BLOCK_M,), -float('inf'), tl.float32)", "float32", "float16"): (
        "-inf is -inf in float16, and the first tile's maximum takes its place; compiled, such a loop is refused"
    ),
    ("total = tl.zeros((BLOCK_M,), tl.float32)", "float32", "float16"): (
        "0 is 0 in float16, and the first tile's sum takes its place; compiled, such a loop is refused"
    ),
    ("safe = tl.where(top == -float('inf'), 0.0, top)", "0.0", "1.0"): "-inf - 1 is -inf, too",
    ("safe = tl.where(grown == -float('inf'), 0.0, grown)", "0.0", "1.0"): "-inf - 1 is -inf, too",
    ("share = tl.where(total == 0, 0.0, 1.0 / total)", "0.0", "1.0"): (
        "where nothing was summed, what it multiplies is 0"
    ),
    (
        "q = tl.load(q_ptr + query[:, None] * q_stride_n + d[None, :] * q_stride_d, "
        "mask=(query < seq)[:, None], other=0.0)",
        "other=0.0",
        "other=1.0",
    ): "rows of queries that do not exist are never stored",
    (
        "k = tl.load(k_ptr + key[None, :] * k_stride_n + d[:, None] * k_stride_d, "
        "mask=(key < seq)[None, :], other=0.0)",
        "other=0.0",
        "other=1.0",
    ): "the scores of keys that do not exist become -inf, whatever they were",
    ("valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0) != 0", "other=0", "other=1"): (
        "a key that does not exist comes after every query whose row is stored"
    ),
    (SCORES_WALK, "minimum", "maximum"): SCORES_UNSEEN,
    (SCORES_WALK, "+ 1", "+ 2"): SCORES_UNSEEN,
}
INT8_WEIGHT = "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(tl.float32)"
BACKWARD_LOADS = {  # what is loaded where nothing exists: before -> why another number may be there
    "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)": (
        "grad_y is 0 there, and so is whatever the weight scales"
    ),
    "bias = tl.load(bias_ptr + col, mask=exists, other=0.0).to(COMPUTE)": (
        "grad_y is 0 there, and so is the gradient of z, whatever z is"
    ),
    "grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)": (
        "the weight and x_hat are 0 there; the sum of the bias's gradient is not, and is not stored"
    ),
}
CAPSTONE_LOADS = {  # what is loaded where nothing exists: before -> why another number may stand there
    **{
        f"{of} = tl.load({of}_ptr + at, mask=exists, other=0.0).to({to})": (
            "h is x times the gate times its sigmoid: one of the two is 0 still, and so is h"
        )
        for of in ("x", "gate")
        for to in ("tl.float32", "COMPUTE")
    },
    "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(tl.float32)": "these columns are not stored",
    "residual = tl.load(residual_ptr + at, mask=exists, other=0.0).to(tl.float32)": "these columns are not stored",
    "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)": "the gradient that it scales is 0 there",
    "grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)": "the weight is 0 there, and so is h",
}
BACKWARD_WARPS = "warps = min(32, max(4, block // 256))"
UP = "up = tl.load(up_ptr + start + col, mask=exists, other=0.0).to(tl.float32)"
DTYPES = "one = len(dtypes) == 1 and dtypes <= {'float32', 'float16', 'bfloat16'}"
DECODE = {  # (before, a text in it, what becomes of it) -> why
    **{
        (f"tl.store({of}_ptr + part + tl.arange(0, 1), {of})", "+ tl.arange", "- tl.arange"): "that range is 0 alone"
        for of in ("peak", "total")
    },
    **{
        (
            f"{of} = tl.load({of}_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)",
            "other=0.0",
            "other=1.0",
        ): "the scores of keys outside the split become -inf, and their weights 0, times any finite number"
        for of in "kv"
    },
    **{
        (load, "other=0.0", "other=1.0"): "the maximum of a split that does not exist is -inf, and its share 0"
        for load in (
            "total = tl.load(total_ptr + part, mask=exists, other=0.0)",
            "acc = tl.load(acc_ptr + part[:, None] * DIM + d[None, :], mask=exists[:, None], other=0.0)",
        )
    },
    ("top = tl.maximum(tl.max(peak, axis=0), -1e+38)", "-1e+38", "-1.01e+38"): (
        "no finite score of float32 inputs is as low: only -inf is below either"
    ),
    (
        "y = tl.sum(acc * share[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)",
        "1.0, total",
        "1.01, total",
    ): "where nothing was summed, what it divides is 0",
}
CAPSTONE_WARPS = "warps = min(32, max(4, block_size // 512))"
DECIDE_WORTH = "return is_legal(graph, [one, two]) and kernel_cost(graph, [one, two])['time'] < apart"
DECIDE_TIME = "return (time, names) if time < float('inf') and can_run(graph, names) else (float('inf'), names)"
EQUIVALENT = {
    f"11_fused_backward: {BACKWARD_WARPS} -> {BACKWARD_WARPS.replace('min(32', 'min(33')}": (
        "a launch with 33 warps fails, but only a row of more than 8192 numbers asks for them, and no check has one"
    ),
    f"11_fused_backward: {BACKWARD_WARPS} -> {BACKWARD_WARPS.replace('// 256', '* 256')}": (
        "32 warps for every row: slower for short ones, with the same values and bytes"
    ),
    **{
        f"{name}: {NORM_WARPS} -> {after}": why
        for name in ("16_help_the_compiler", "18_short_kernels")
        for after, why in (
            (
                NORM_WARPS.replace("min(32", "min(33"),
                "a launch with 33 warps fails, but only a row of more than 16384 numbers asks for them",
            ),
            (NORM_WARPS.replace("// 512", "* 512"), "32 warps for every row: slower, with the same values and bytes"),
        )
    },
    **{
        f"{name}: {load} -> {load.replace('other=0.0', 'other=1.0')}": "x is 0 there, and these columns are not stored"
        for name, load in (
            ("16_help_the_compiler", UP),
            ("16_help_the_compiler", UP.replace("up_ptr + start", "weight_ptr").replace("up =", "weight =")),
            ("18_short_kernels", UP.replace("up", "gate")),
        )
    },
    f"16_help_the_compiler: {DTYPES} -> {DTYPES.replace('<=', '<')}": (
        "a set of one is never all three dtypes, so it is within them or not"
    ),
    "16_help_the_compiler: one, other = node['args'][:2] -> one, other = node['args'][:3]": (
        "sums and products have two arguments in these graphs"
    ),
    **{f"17_flash_decoding: {before} -> {before.replace(*change)}": why for (before, *change), why in DECODE.items()},
    "17_flash_decoding: q, k, v = (q.contiguous(), k.contiguous(), v.contiguous()) -> "
    "q, k, v = (q.detach(), k.contiguous(), v.contiguous())": "k and v may be views, q not",
    **{
        f"15_capstone: {line} -> {line.replace('min(32', 'min(33')}": (
            f"a launch with 33 warps fails, but only a row of more than {widest} numbers asks for them, and no check "
            "has one"
        )
        for line, widest in ((CAPSTONE_WARPS, 16384), (CAPSTONE_WARPS.replace("512", "256"), 8192))
    },
    **{
        f"15_capstone: {line} -> {line.replace('//', '*')}": (
            "32 warps for every row: slower for short ones, with the same values and bytes"
        )
        for line in (CAPSTONE_WARPS, CAPSTONE_WARPS.replace("512", "256"))
    },
    "13_decide: reached = tensors_of(members[0]) -> reached = tensors_of(members[1])": (
        "whichever operation one begins with, all are reached or not all"
    ),
    "13_decide: if needed <= done | set(group): -> if needed < done | set(group):": (
        "a group's last operation is among the second, and no operation of the group waits for it"
    ),
    f"13_decide: {DECIDE_WORTH} -> {DECIDE_WORTH.replace('< apart', '<= apart')}": (
        "pairs whose fusing is nearly a draw are not asked"
    ),
    f"13_decide: {DECIDE_TIME} -> {DECIDE_TIME.replace('time <', 'time <=')}": (
        "what takes for ever is worth as little either way"
    ),
    f"05_layer_norm: {NORM_WARPS} -> {NORM_WARPS.replace('min(32', 'min(33')}": (
        "a launch with 33 warps fails, but only a row of more than 16384 numbers asks for them, and no check has one"
    ),
    f"05_layer_norm: {NORM_WARPS} -> {NORM_WARPS.replace('// 512', '* 512')}": (
        "32 warps for every row: slower for short ones, with the same values and bytes"
    ),
    f"05b_residual_rms_norm: {NORM_WARPS} -> {NORM_WARPS.replace('min(32', 'min(33')}": (
        "a launch with 33 warps fails, but only a row of more than 16384 numbers asks for them, and no check has one"
    ),
    f"05b_residual_rms_norm: {NORM_WARPS} -> {NORM_WARPS.replace('// 512', '* 512')}": (
        "32 warps for every row: slower for short ones, with the same values and bytes"
    ),
    "06_softmax_topk: left = tl.where(exists, p, -1.0) -> left = tl.where(exists, p, -1.01)": (
        "no probability is below 0, so any negative number is below them all"
    ),
    "06_softmax_topk: left = tl.where(col == winner, -1.0, left) -> left = tl.where(col == winner, -1.01, left)": (
        "no probability is below 0, so any negative number is below them all"
    ),
    f"06_softmax_topk: {NORM_WARPS} -> {NORM_WARPS.replace('min(32', 'min(33')}": (
        "a launch with 33 warps fails, but only a row of more than 16384 numbers asks for them, and no check has one"
    ),
    f"06_softmax_topk: {NORM_WARPS} -> {NORM_WARPS.replace('// 512', '* 512')}": (
        "32 warps for every row: slower for short ones, with the same values and bytes"
    ),
    f"07_register_budget: {WARPS} -> {WARPS.replace('32, max', '33, max')}": (
        "no row of at most 8192 asks for more than 32 warps, so the bound is never reached"
    ),
    f"07_register_budget: {WARPS} -> {WARPS.replace('// (', '* (')}": (
        "32 warps for every row, which then share several: 8 numbers a thread as before, and right as well"
    ),
    f"07_register_budget: {WARPS} -> {WARPS.replace('32 * n', '32 / n')}": (
        "32 warps for every row, which then share several: 8 numbers a thread as before, and right as well"
    ),
    f"07_register_budget: {ROWS} -> {ROWS.replace('1, 32', '2, 32')}": (
        "two long rows a program, 16 numbers a thread: right as well"
    ),
    f"07_register_budget: {ROWS} -> {ROWS.replace('32 *', '33 *')}": (
        "rounded down, it gives the same number of rows for every power of two"
    ),
    "07_register_budget: while side / 2 < uses: -> while side / 2 <= uses:": (
        "a larger tile than need be where uses is a power of two: right as well"
    ),
    f"07_register_budget: {TILE_WARPS} -> {TILE_WARPS.replace('max(1', 'max(2')}": (
        "differs for a tile of 16 x 16 alone: 4 numbers a thread, right as well"
    ),
    **{
        f"10b_flash_attention: {load} -> {load.replace('other=0.0', 'other=1.0')}": why
        for load, why in FLASH_LOADS.items()
    },
    "10b_flash_attention: seen = seen & (key[None, :] <= query[:, None]) -> "
    "seen = (key[None, :] <= query[:, None]) & (key[None, :] <= query[:, None])": (
        "a key that does not exist comes after every query whose row is stored"
    ),
    f"10b_flash_attention: {FLASH_LAST} -> {FLASH_LAST.replace('minimum', 'maximum')}": (
        "walks over keys that none of its queries sees: slower, with the same values; no causal call is metered"
    ),
    f"10b_flash_attention: {FLASH_LAST} -> {FLASH_LAST.replace('+ 1', '+ 2')}": (
        "walks over keys that none of its queries sees: slower, with the same values; no causal call is metered"
    ),
    "08_linear_act: y = tl.where(s < 0, 0.0, s) -> y = tl.where(s <= 0, 0.0, s)": "0 is 0 either way",
    **{f"08_linear_act: {load} -> {load.replace('other=0.0', 'other=1.0')}": why for load, why in LINEAR_LOADS.items()},
    f"08_linear_act: {LINEAR_BIAS} -> {LINEAR_BIAS.replace('float32', 'float16')}": (
        "the bias is float16 already, and becomes float32 where it meets the sum"
    ),
    **{f"09_conv_bn_relu: {load} -> {load.replace('other=0.0', 'other=1.0')}": why for load, why in CONV_LOADS.items()},
    f"09_conv_bn_relu: {CONV_VAR} -> {CONV_VAR.replace('other=1.0', 'other=1.01')}": (
        "channels that do not exist are not stored"
    ),
    f"09_conv_bn_relu: {CONV_BIAS} -> {CONV_BIAS.replace('float32', 'float16')}": (
        "the bias is float16 already, and becomes float32 where it meets the mean"
    ),
    f"09_conv_bn_relu: {CONV_RELU} -> {CONV_RELU.replace('<', '<=')}": "0 is stored for 0 either way",
    **{f"10_attention_scores: {before} -> {before.replace(*change)}": why for (before, *change), why in SCORES.items()},
    **{
        f"{name}: programs = max(1, min(rows, PROGRAMS)) -> programs = max(2, min(rows, PROGRAMS))": (
            "of one row or none, a second program has no row and stores sums of 0"
        )
        for name in ("11_fused_backward", "15_capstone")
    },
    **{f"15_capstone: {load} -> {load.replace('other=0.0', 'other=1.0')}": why for load, why in CAPSTONE_LOADS.items()},
    **{
        f"11_fused_backward: {load} -> {load.replace('other=0.0', 'other=1.0')}": why
        for load, why in BACKWARD_LOADS.items()
    },
    f"12_layer_norm_int8: {INT8_WEIGHT} -> {INT8_WEIGHT.replace('other=0.0', 'other=1.0')}": (
        "the centred x that it scales is 0 there"
    ),
    **{
        f"12_layer_norm_int8: {before} -> {before.replace(*change)}": "the bound takes its own place"
        for before, *change in ((MIN, "<", "<="), (ABOVE, ">", ">="), (BELOW, "<", "<="))
    },
    f"12_layer_norm_int8: {MIN} -> {MIN.replace('< 1e-12', '< 1.01e-12')}": (
        "differs for a largest magnitude between the two alone, and by a hundredth"
    ),
    f"12_layer_norm_int8: {NORM_WARPS} -> {NORM_WARPS.replace('min(32', 'min(33')}": (
        "a launch with 33 warps fails, but only a row of more than 16384 numbers asks for them, and no check has one"
    ),
    f"12_layer_norm_int8: {NORM_WARPS} -> {NORM_WARPS.replace('// 512', '* 512')}": (
        "32 warps for every row: slower for short ones, with the same values and bytes"
    ),
}

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
OFF_BY_ONE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
EXCHANGED = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "float32": "float16"}


@dataclass(frozen=True)
class Mutant:
    """An answer cell with one mistake: its kind, the line before and after, and the cell's whole text."""

    answer: str
    kind: str
    before: str
    after: str
    source: str

    @property
    def change(self) -> str:
        return f"{self.before} -> {self.after}"


def mutants_of(answer: str, source: str) -> Iterator[Mutant]:
    """Every mutant of one answer cell, in the order of its text."""
    tree = ast.parse(source)
    before = ast.unparse(tree)
    for number, node in enumerate(ast.walk(tree)):
        for variant, kind in enumerate(kinds_of(node)):
            changed = copy.deepcopy(tree)
            for place, twin in enumerate(ast.walk(changed)):
                if place == number:
                    apply(kind, twin, variant)
            after = ast.unparse(ast.fix_missing_locations(changed))
            lines = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
            if lines:
                yield Mutant(answer, kind, lines[0][0].strip(), lines[0][1].strip(), after)


def kinds_of(node: ast.AST) -> list[str]:
    """The mistakes that can be made at a node."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="store"))):
            return ["write skipped"]
        case ast.Call(func=ast.Attribute(attr="load" | "store"), keywords=[*given]) if has_mask(given):
            return ["mask dropped"]
        case ast.Call(func=ast.Attribute(attr="cdiv")):
            return ["rounded down"]
        case ast.Call(func=ast.Attribute(attr="contiguous")):
            return ["copy left out"]
        case ast.Call(func=ast.Attribute(attr="where")):
            return ["branches exchanged"]
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult())):
            return ["operation exchanged", "strides swapped"]
        case ast.BinOp(op=ast.BitAnd()):
            return ["left half of a mask", "right half of a mask"]
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            return ["operation exchanged"]
        case ast.Compare(ops=[op]) if type(op) in OFF_BY_ONE:
            return ["off by one"]
        case ast.Attribute(attr=name) if name in EXCHANGED:
            return ["precision lowered" if name == "float32" else "operation exchanged"]
        case ast.Constant(value=bool()):
            return ["constant changed"]
        case ast.Constant(value=int() | float()):
            return ["constant changed"]
    return []


def has_mask(given: list[ast.keyword]) -> bool:
    return any(keyword.arg == "mask" for keyword in given)


def apply(kind: str, node: ast.AST, variant: int) -> None:
    """Make a mistake of a kind at a node of its own copy of the tree."""
    match kind:
        case "write skipped":
            node.value = ast.Constant("skipped")
        case "mask dropped":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in ("mask", "other")]
        case "rounded down":
            node.func = ast.parse("lambda count, size: count // size", mode="eval").body
        case "copy left out":
            node.func.attr = "detach"
        case "branches exchanged":
            node.args[1], node.args[2] = node.args[2], node.args[1]
        case "strides swapped":
            node.left.left, node.right = node.right, node.left.left
        case "left half of a mask":
            node.right = node.left
        case "right half of a mask":
            node.left = node.right
        case "operation exchanged" if isinstance(node, ast.BinOp):
            node.op = OPERATORS[type(node.op)]()
        case "off by one":
            node.ops = [OFF_BY_ONE[type(node.ops[0])]()]
        case "constant changed":
            node.value = not node.value if isinstance(node.value, bool) else other_number(node.value)
        case _:
            node.attr = EXCHANGED[node.attr]


def other_number(value: float) -> float:
    if isinstance(value, int):
        return value + 1
    return value * 1.01 if value else 1.0


def all_mutants(exercise: Exercise) -> list[Mutant]:
    return [mutant for cell in exercise.cells if cell["answer"] for mutant in mutants_of(cell["id"], cell["source"])]


def in_a_fork(work: Callable[[], dict]) -> dict:
    """The result of `work` in a process of its own; nothing where that process came to no end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(reading)
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (TIME, TIME))
            with open(writing, "w") as told:
                json.dump(work(), told)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as answer:
        came = select.select([answer], [], [], PATIENCE * TIME)[0]
        said = answer.read() if came else ""
    for end in (os.killpg, os.kill):  # with it the assembler that it may have started
        with contextlib.suppress(ProcessLookupError):
            end(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(said) if said else {}


def rejected_by(exercise: Exercise, mutant: Mutant) -> str:
    """The first check that does not pass, in a process of its own; empty where all pass."""
    cells = [
        cell | {"source": mutant.source if cell["id"] == mutant.answer else cell["source"]} for cell in exercise.cells
    ]

    def run() -> dict:
        torch.set_num_threads(1)  # a fork has none of the threads that PyTorch had before it
        # How further cases go once one has failed decides nothing here.
        patience = mock.patch.object(values, "PATIENCE", 0.0)
        with patience, tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            try:
                broken = server.RunExercise(cells, 0, Path(folder))
            except Exception as error:
                return {"check": f"its cells: {type(error).__name__}"}
            outcomes = ((check, broken.run_check(check, {}, Path(folder))) for check in broken.checks)
            return {"check": next((check for check, outcome in outcomes if outcome.state != PASS), "")}

    # Where it came to no end, that is what a learner sees too.
    return in_a_fork(run).get("check", "no end")


def judged(name: str, number: int) -> dict:
    """One mutant's line: which check rejects it first."""
    exercise = exercises_in(only=name)[name]
    mutant = all_mutants(exercise)[number]
    check = rejected_by(exercise, mutant)
    return {"exercise": name, "number": number, "kind": mutant.kind, "change": mutant.change, "rejected_by": check}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the checks on model answers with one mistake each.")
    parser.add_argument("--only", default="", metavar="NN", help="exercises by their numbers or names: 09,10")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines; a run that was cut short goes on")
    options = parser.parse_args(arguments)
    exercises = {name: each for only in options.only.split(",") for name, each in exercises_in(only=only).items()}
    mutants = {(name, number): each for name in exercises for number, each in enumerate(all_mutants(exercises[name]))}
    lines = {}
    for line in lines_in(options.out):
        place = line["exercise"], line["number"]
        if place in mutants and mutants[place].change == line["change"]:
            lines[place] = line
    todo = [place for place in mutants if place not in lines]
    for count, line in enumerate(all_judged(todo, options.processes, judged), start=1):
        lines[line["exercise"], line["number"]] = line
        if options.out:
            with options.out.open("a") as out:
                out.write(f"{json.dumps(line)}\n")
        print(f"\r{line['exercise']}: {count} of {len(todo)} ", end="", file=sys.stderr)
    print(file=sys.stderr)
    rows, unargued = [], 0
    for name in exercises:
        of_exercise = [line for (exercise, _), line in sorted(lines.items()) if exercise == name]
        survivors = [line for line in of_exercise if not line["rejected_by"]]
        argued = [line for line in survivors if f"{name}: {line['change']}" in EQUIVALENT]
        changing, killed = len(of_exercise) - len(argued), len(of_exercise) - len(survivors)
        rows.append(f"{name:28} {changing:9} {killed:9} {killed / max(1, changing):8.1%} {len(argued):11}")
        for line in survivors:
            why = EQUIVALENT.get(f"{name}: {line['change']}", "SURVIVES, not argued")
            unargued += line not in argued
            rows.append(f"    {line['kind']}: {line['change']}\n        {why}")
    print(f"{'':28} {'mutants':>9} {'rejected':>9} {'share':>8} {'equivalent':>11}", *rows, sep="\n")
    return 1 if unargued else 0


if __name__ == "__main__":
    sys.exit(main())
