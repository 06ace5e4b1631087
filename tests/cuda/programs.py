"""Kernels that show what each group of PTX instructions computes, with fixed inputs.

benchmarks/cuda_semantics.py records what a GPU answers; tests/cuda/test_cuda_record.py holds the executor to it.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch

N = 1024
BLOCK = 256
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
C_TYPE = {
    "f": "float", "d": "double", "r": "unsigned", "i": "int", "l": "unsigned long long", "s": "long long",
    "h": "unsigned short",
}  # fmt: skip
TENSOR = {
    "f": torch.float32, "d": torch.float64, "r": torch.int32, "i": torch.int32, "l": torch.int64, "s": torch.int64,
    "h": torch.int16,
}  # fmt: skip
CONSTRAINT = {"i": "r", "s": "l"}


@dataclass(frozen=True)
class CudaProgram:
    """One launch. arguments: tensors and numbers; all tensors are compared after it.

    ulps: how many units in the last place approximate instructions may lie apart; 0: equal bit for bit, NaN as NaN.
    floats: what 16-bit integers hold that are to be compared as numbers, "f16" or "bf16".
    atol: an absolute error that is allowed as well, for functions whose documentation states one; by the place of the
        expression where only some have it.
    """

    name: str
    source: str
    grid: tuple
    block: tuple
    arguments: tuple
    shared: int = 0
    ulps: int = 0
    atol: float | dict[int, float] = 0.0
    floats: str = ""


def ptx(operation: str, result: str, *operands: str) -> str:
    """One instruction as an expression: ptx("add.rz.f32", "f", "a:f", "b:f")."""
    places = ", ".join(f"%{place}" for place in range(len(operands) + 1))
    given = ", ".join(
        f'"{CONSTRAINT.get(kind, kind)}"({value})' for value, kind in (each.split(":") for each in operands)
    )
    out = CONSTRAINT.get(result, result)
    return f'[&]{{ {C_TYPE[result]} v; asm("{operation} {places};" : "={out}"(v) : {given}); return v; }}()'


def holds(operation: str, *operands: str) -> str:
    """A setp as a number, 1 or 0."""
    places = ", ".join(f"%{place + 1}" for place in range(len(operands)))
    given = ", ".join(
        f'"{CONSTRAINT.get(kind, kind)}"({value})' for value, kind in (each.split(":") for each in operands)
    )
    return (
        f'[&]{{ unsigned v; asm("{{ .reg .pred p; {operation} p, {places}; selp.u32 %0, 1, 0, p; }}" '
        f': "=r"(v) : {given}); return v; }}()'
    )


def group(name: str, kind: str, result: str, expressions: list[str], inputs, **accuracy) -> CudaProgram:
    """Expressions of a, b and c (of `kind`), each computed for all inputs."""
    lines = "\n".join(f"  out[{place}L * n + i] = {each};" for place, each in enumerate(expressions))
    source = f"""{HEADERS}
__device__ __half half_of(unsigned short v) {{ return __ushort_as_half(v); }}
__device__ __nv_bfloat16 bfloat_of(unsigned short v) {{ return __ushort_as_bfloat16(v); }}
__device__ unsigned short bits(__half v) {{ return __half_as_ushort(v); }}
__device__ unsigned short bits(__nv_bfloat16 v) {{ return __bfloat16_as_ushort(v); }}
extern "C" __global__ void {name}(const {C_TYPE[kind]}* A, const {C_TYPE[kind]}* B, const {C_TYPE[kind]}* C,
                                  {C_TYPE[result]}* out, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  {C_TYPE[kind]} a = A[i], b = B[i], c = C[i];
{lines}
}}"""
    n = inputs[0].numel()
    out = torch.zeros(len(expressions) * n, dtype=TENSOR[result])
    return CudaProgram(name, source, (-(-n // BLOCK),), (BLOCK,), (*inputs, out, n), **accuracy)


# Inputs: every pair of special values, then random bit patterns, then numbers of ordinary size.


def _floats(dtype: np.dtype, unsigned: np.dtype, seed: int):
    random = np.random.default_rng(seed)
    info = np.finfo(dtype)
    one = dtype.type(1)
    special = np.array(
        [0, 1, 1.5, 2.5, 0.1, 2.0**31, 65520, np.inf, np.nan, info.max, info.smallest_subnormal,
         info.tiny * dtype.type(0.75), one + info.eps],
    )  # fmt: skip
    with np.errstate(over="ignore"):
        special = special.astype(dtype)
    special = np.concatenate([special, -special])
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    count = N - pairs.shape[1]
    bits = random.integers(0, 1 << (8 * dtype.itemsize), (3, count // 2), dtype=unsigned, endpoint=False).view(dtype)
    plain = random.standard_normal((3, count - count // 2)).astype(dtype)
    third = np.tile(random.permutation(special), len(special))
    return [torch.from_numpy(np.concatenate([of, bits[k], plain[k]])) for k, of in enumerate([*pairs, third])]


def _integers(unsigned: np.dtype, seed: int):
    random = np.random.default_rng(seed)
    width = 8 * np.dtype(unsigned).itemsize
    special = np.array(
        [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 127, 128, 255, 256, (1 << (width - 1)) - 1, 1 << (width - 1),
         (1 << (width - 1)) + 1, (1 << width) - 1, (1 << width) - 7, 0x5555, 0xF0F0],
        dtype=unsigned,
    )  # fmt: skip
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    rest = random.integers(0, 1 << width, (3, N - pairs.shape[1]), dtype=unsigned)
    third = np.tile(random.permutation(special), len(special))
    signed = np.dtype(f"i{width // 8}")
    return [torch.from_numpy(np.concatenate([of, rest[k]]).view(signed)) for k, of in enumerate([*pairs, third])]


def _bfloat(inputs):
    return [value.view(torch.int32).bitwise_right_shift(16).to(torch.int16) for value in inputs]


F32 = _floats(np.dtype(np.float32), np.uint32, 1)
F64 = _floats(np.dtype(np.float64), np.uint64, 2)
F16 = [value.view(torch.int16) for value in _floats(np.dtype(np.float16), np.uint16, 3)]
BF16 = _bfloat(F32)
U32, U64, U16 = _integers(np.uint32, 4), _integers(np.uint64, 5), _integers(np.uint16, 6)
MODES = ("rn", "rz", "rm", "rp")
COMPARE = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split()


def _unary(name, operations, kind, result, inputs, **accuracy):
    return group(name, kind, result, [ptx(each, result, f"a:{kind}") for each in operations], inputs, **accuracy)


def _binary(name, operations, kind, inputs, **accuracy):
    return group(
        name, kind, kind, [ptx(each, kind, f"a:{kind}", f"b:{kind}") for each in operations], inputs, **accuracy
    )


def _ternary(name, operations, kind, inputs, result=None, **accuracy):
    sources = [f"{letter}:{kind}" for letter in "abc"]
    return group(
        name, kind, result or kind, [ptx(each, result or kind, *sources) for each in operations], inputs, **accuracy
    )


def _pairs_of_halves(name, operations, inputs, **accuracy):
    """Instructions on two 16-bit numbers: the second is the first one's neighbour."""
    packed = [torch.stack([value, value.roll(1)], 1).contiguous().view(torch.int32).ravel() for value in inputs]
    expressions = [
        ptx(
            each,
            "r",
            *(
                f"{letter}:r"
                for letter in "abc"[: 3 if each.startswith("fma") else 1 if each.split(".")[0] in ("neg", "abs") else 2]
            ),
        )
        for each in operations
    ]
    return group(name, "r", "r", expressions, packed, **accuracy)


ELEMENTWISE = [
    _binary("f32_add_sub_mul", [f"{op}.{mode}.f32" for op in ("add", "sub", "mul") for mode in MODES], "f", F32),
    _ternary("f32_fma", [f"fma.{mode}.f32" for mode in MODES], "f", F32),
    _binary("f32_div", ["div.rn.f32", "div.rn.ftz.f32"], "f", F32),
    _unary("f32_root_reciprocal", ["sqrt.rn.f32", "rcp.rn.f32", "sqrt.rn.ftz.f32", "rcp.rn.ftz.f32"], "f", "f", F32),
    _binary(
        "f32_extremes",
        [
            "min.f32",
            "max.f32",
            "min.NaN.f32",
            "max.NaN.f32",
            "min.ftz.f32",
            "max.ftz.f32",
            "min.xorsign.abs.f32",
            "max.xorsign.abs.f32",
            "copysign.f32",
        ],
        "f",
        F32,
    ),
    _unary("f32_sign", ["neg.f32", "abs.f32", "neg.ftz.f32", "abs.ftz.f32"], "f", "f", F32),
    _binary(
        "f32_flushed",
        ["add.ftz.f32", "sub.ftz.f32", "mul.ftz.f32", "add.sat.f32", "mul.sat.f32", "mul.ftz.sat.f32"],
        "f",
        F32,
    ),
    _ternary("f32_fma_flushed", ["fma.rn.ftz.f32", "fma.rn.sat.f32", "fma.rz.ftz.f32"], "f", F32),
    group("f32_compare", "f", "r", [holds(f"setp.{name}.f32", "a:f", "b:f") for name in COMPARE], F32),
    group("f32_compare_flushed", "f", "r", [holds(f"setp.{name}.ftz.f32", "a:f", "b:f") for name in COMPARE[:6]], F32),
    group(
        "f32_classes",
        "f",
        "r",
        [holds(f"testp.{name}.f32", "a:f") for name in "finite infinite number notanumber normal subnormal".split()],
        F32,
    ),
    _unary(
        "f32_approximate",
        [f"{name}.approx.f32" for name in ("ex2", "lg2", "rsqrt", "sqrt", "rcp")],
        "f",
        "f",
        F32,
        ulps=1,
        atol={1: 2.0**-22},
    ),
    _unary(
        "f32_approximate_flushed",
        [f"{name}.approx.ftz.f32" for name in ("ex2", "lg2", "rsqrt", "sqrt", "rcp")],
        "f",
        "f",
        F32,
        ulps=1,
        atol={1: 2.0**-22},
    ),
    group(
        "f32_circular",
        "f",
        "f",
        [ptx(f"{name}.approx.f32", "f", "fmodf(fabsf(a), 3.f) - 1.5f:f") for name in ("sin", "cos")],
        F32,
        ulps=0,
        atol=2.0**-20.5,
    ),
    _unary("f32_tanh", ["tanh.approx.f32"], "f", "f", F32, ulps=0, atol=2.0**-11),
    group("f32_div_full", "f", "f", [ptx("div.full.f32", "f", "a:f", "fmodf(fabsf(b), 1e5f) + 0.1f:f")], F32, ulps=2),
    group(
        "f32_library",
        "f",
        "f",
        [
            "expf(a)",
            "logf(fabsf(a))",
            "tanhf(a)",
            "erff(a)",
            "exp2f(a)",
            "log1pf(fabsf(a))",
            "rsqrtf(fabsf(a))",
            "powf(fabsf(a), 0.37f)",
        ],
        F32,
        ulps=1,
    ),
    group("f32_library_circular", "f", "f", ["sinf(a)", "cosf(a)"], F32),
    _binary("f64_arithmetic", ["add.f64", "sub.f64", "mul.f64", "div.rn.f64", "min.f64", "max.f64"], "d", F64),
    _ternary("f64_fma", ["fma.rn.f64"], "d", F64),
    _unary("f64_roots", ["sqrt.rn.f64", "rcp.rn.f64", "neg.f64", "abs.f64"], "d", "d", F64),
    group("f64_compare", "d", "r", [holds(f"setp.{name}.f64", "a:d", "b:d") for name in COMPARE], F64),
    group("f64_library", "d", "d", ["exp(a)", "log(fabs(a))", "tanh(a)"], F64),
    _binary(
        "f16_arithmetic",
        ["add.f16", "sub.f16", "mul.f16", "add.sat.f16", "min.f16", "max.f16", "min.NaN.f16", "max.NaN.f16"],
        "h",
        F16,
        floats="f16",
    ),
    _ternary("f16_fma", ["fma.rn.f16", "fma.rn.sat.f16", "fma.rn.relu.f16"], "h", F16, floats="f16"),
    _unary("f16_sign", ["neg.f16", "abs.f16"], "h", "h", F16, floats="f16"),
    group("f16_compare", "h", "r", [holds(f"setp.{name}.f16", "a:h", "b:h") for name in COMPARE], F16),
    _unary("f16_approximate", ["ex2.approx.f16", "tanh.approx.f16"], "h", "h", F16, ulps=1, floats="f16"),
    _pairs_of_halves(
        "f16x2",
        ["add.f16x2", "sub.f16x2", "mul.f16x2", "fma.rn.f16x2", "min.f16x2", "max.f16x2", "neg.f16x2", "abs.f16x2"],
        F16,
        floats="f16",
    ),
    _binary(
        "bf16_arithmetic",
        ["add.bf16", "sub.bf16", "mul.bf16", "min.bf16", "max.bf16", "min.NaN.bf16", "max.NaN.bf16"],
        "h",
        BF16,
        floats="bf16",
    ),
    _ternary("bf16_fma", ["fma.rn.bf16", "fma.rn.relu.bf16"], "h", BF16, floats="bf16"),
    _pairs_of_halves(
        "bf16x2",
        [
            "add.bf16x2",
            "sub.bf16x2",
            "mul.bf16x2",
            "fma.rn.bf16x2",
            "min.bf16x2",
            "max.bf16x2",
            "neg.bf16x2",
            "abs.bf16x2",
        ],
        BF16,
        floats="bf16",
    ),
    group(
        "bf16_header",
        "h",
        "h",
        [
            "bits(__hadd(bfloat_of(a), bfloat_of(b)))",
            "bits(__hmul(bfloat_of(a), bfloat_of(b)))",
            "bits(__hfma(bfloat_of(a), bfloat_of(b), bfloat_of(c)))",
            "bits(__hmax(bfloat_of(a), bfloat_of(b)))",
            "__hlt(bfloat_of(a), bfloat_of(b))",
            "bits(__hdiv(bfloat_of(a), bfloat_of(b)))",
        ],
        BF16,
        floats="bf16",
    ),
    group(
        "f16_header",
        "h",
        "h",
        [
            "bits(__hadd(half_of(a), half_of(b)))",
            "bits(__hsub(half_of(a), half_of(b)))",
            "bits(__hfma(half_of(a), half_of(b), half_of(c)))",
            "bits(__hmin(half_of(a), half_of(b)))",
            "__hge(half_of(a), half_of(b))",
            "__hequ(half_of(a), half_of(b))",
        ],
        F16,
        floats="f16",
    ),
    _unary("cvt_f32_s32", [f"cvt.{mode}.s32.f32" for mode in ("rni", "rzi", "rmi", "rpi")], "f", "i", F32),
    _unary("cvt_f32_u32", [f"cvt.{mode}.u32.f32" for mode in ("rni", "rzi", "rmi", "rpi")], "f", "r", F32),
    _unary("cvt_f32_64", ["cvt.rni.s64.f32", "cvt.rzi.u64.f32"], "f", "l", F32),
    _unary("cvt_f64_32", ["cvt.rni.s32.f64", "cvt.rzi.u32.f64"], "d", "r", F64),
    _unary("cvt_f64_64", ["cvt.rzi.s64.f64", "cvt.rni.u64.f64"], "d", "l", F64),
    _unary("cvt_f64_f32", [f"cvt.{mode}.f32.f64" for mode in MODES], "d", "f", F64),
    _unary("cvt_f32_f64", ["cvt.f64.f32"], "f", "d", F32),
    _unary(
        "cvt_f32_whole",
        [f"cvt.{mode}.f32.f32" for mode in ("rni", "rzi", "rmi", "rpi")] + ["cvt.sat.f32.f32", "cvt.ftz.f32.f32"],
        "f",
        "f",
        F32,
    ),
    _unary("cvt_f32_f16", ["cvt.rn.f16.f32", "cvt.rz.f16.f32"], "f", "h", F32, floats="f16"),
    _unary(
        "cvt_f32_bf16", ["cvt.rn.bf16.f32", "cvt.rz.bf16.f32", "cvt.rn.relu.bf16.f32"], "f", "h", F32, floats="bf16"
    ),
    group(
        "cvt_f32_pairs",
        "f",
        "r",
        [ptx(f"cvt.rn.{kind}.f32", "r", "a:f", "b:f") for kind in ("f16x2",)],
        F32,
        floats="f16",
    ),
    group(
        "cvt_f32_bf16x2",
        "f",
        "r",
        [ptx(f"cvt.{mode}.bf16x2.f32", "r", "a:f", "b:f") for mode in ("rn", "rz", "rn.relu")],
        F32,
        floats="bf16",
    ),
    _unary("cvt_f16_f32", ["cvt.f32.f16"], "h", "f", F16),
    _unary("cvt_bf16_f32", ["cvt.f32.bf16"], "h", "f", BF16),
    _unary("cvt_f16_s32", ["cvt.rni.s32.f16", "cvt.rzi.s32.f16"], "h", "i", F16),
    _unary(
        "cvt_u32_f32",
        [f"cvt.{mode}.f32.u32" for mode in MODES] + [f"cvt.{mode}.f32.s32" for mode in MODES],
        "r",
        "f",
        U32,
    ),
    _unary("cvt_u32_f64", ["cvt.rn.f64.u32", "cvt.rn.f64.s32"], "r", "d", U32),
    _unary("cvt_u32_f16", ["cvt.rn.f16.u32", "cvt.rn.f16.s32"], "r", "h", U32, floats="f16"),
    _unary("cvt_u64_f32", ["cvt.rn.f32.u64", "cvt.rn.f32.s64", "cvt.rz.f32.u64"], "l", "f", U64),
    _unary("cvt_u64_f64", ["cvt.rn.f64.u64", "cvt.rn.f64.s64"], "l", "d", U64),
    _unary(
        "cvt_narrow",
        [
            "cvt.u32.u8",
            "cvt.s32.s8",
            "cvt.sat.u8.u32",
            "cvt.sat.s8.s32",
            "cvt.sat.u16.s32",
            "cvt.s32.s16",
            "cvt.u32.u16",
        ],
        "r",
        "r",
        U32,
    ),
    _unary("cvt_tf32", ["cvt.rna.tf32.f32"], "f", "r", [value.nan_to_num() for value in F32]),
    _binary(
        "s32_arithmetic",
        [
            "add.s32",
            "sub.s32",
            "mul.lo.s32",
            "mul.hi.s32",
            "mul.hi.u32",
            "div.s32",
            "rem.s32",
            "div.u32",
            "rem.u32",
            "min.s32",
            "max.s32",
            "min.u32",
            "max.u32",
            "add.sat.s32",
            "sub.sat.s32",
        ],
        "r",
        [U32[0], torch.where(U32[1] == 0, 3, U32[1]), U32[2]],
    ),
    _ternary("u32_mad", ["mad.lo.u32", "mad.hi.u32", "mad.hi.s32", "sad.u32", "sad.s32"], "r", U32),
    group("u32_wide", "r", "l", [ptx("mul.wide.u32", "l", "a:r", "b:r"), ptx("mul.wide.s32", "l", "a:r", "b:r")], U32),
    _binary(
        "u64_arithmetic",
        [
            "add.u64",
            "sub.u64",
            "mul.lo.u64",
            "mul.hi.u64",
            "mul.hi.s64",
            "div.s64",
            "rem.s64",
            "div.u64",
            "rem.u64",
            "min.s64",
            "max.u64",
            "and.b64",
            "or.b64",
            "xor.b64",
        ],
        "l",
        [U64[0], torch.where(U64[1] == 0, 3, U64[1]), U64[2]],
    ),
    _binary(
        "u16_arithmetic",
        ["add.u16", "sub.s16", "mul.lo.u16", "mul.hi.s16", "mul.hi.u16", "min.s16", "max.u16", "and.b16", "xor.b16"],
        "h",
        U16,
    ),
    _binary("b32_logic", ["and.b32", "or.b32", "xor.b32", "shl.b32", "shr.u32", "shr.s32"], "r", U32),
    _unary(
        "b32_bits",
        [
            "not.b32",
            "popc.b32",
            "clz.b32",
            "brev.b32",
            "bfind.u32",
            "bfind.s32",
            "bfind.shiftamt.u32",
            "neg.s32",
            "abs.s32",
        ],
        "r",
        "r",
        U32,
    ),
    group(
        "b64_bits", "l", "r", [ptx(each, "r", "a:l") for each in ("popc.b64", "clz.b64", "bfind.u64", "bfind.s64")], U64
    ),
    group(
        "b64_shift",
        "l",
        "l",
        [ptx(each, "l", "a:l", "(unsigned)b:r") for each in ("shl.b64", "shr.u64", "shr.s64")]
        + [ptx("brev.b64", "l", "a:l")],
        U64,
    ),
    _ternary(
        "b32_funnel", ["shf.l.wrap.b32", "shf.r.wrap.b32", "shf.l.clamp.b32", "shf.r.clamp.b32", "prmt.b32"], "r", U32
    ),
    group(
        "b32_fields",
        "r",
        "r",
        [ptx(f"bfe.{kind}", "r", "a:r", "b & 255:r", "c & 255:r") for kind in ("u32", "s32")]
        + [ptx("bfi.b32", "r", "a:r", "c:r", "b & 255:r", "(a ^ c) & 63:r")],
        U32,
    ),
    group(
        "b64_fields",
        "l",
        "l",
        [ptx(f"bfe.{kind}", "l", "a:l", "(unsigned)b & 255:r", "(unsigned)c & 255:r") for kind in ("u64", "s64")]
        + [ptx("bfi.b64", "l", "a:l", "c:l", "(unsigned)b & 255:r", "(unsigned)(a ^ c) & 127:r")],
        U64,
    ),
    group(
        "b32_lop3",
        "r",
        "r",
        [
            ptx("lop3.b32", "r", "a:r", "b:r", "c:r").replace("%3;", f"%3, {table};")
            for table in (0x96, 0xE8, 0xCA, 0x1B)
        ],
        U32,
    ),
    _ternary("dp4a", ["dp4a.u32.u32", "dp4a.s32.s32", "dp4a.s32.u32"], "r", U32),
    group(
        "s32_compare",
        "r",
        "r",
        [holds(f"setp.{name}.s32", "a:r", "b:r") for name in "eq ne lt le gt ge".split()]
        + [holds(f"setp.{name}.u32", "a:r", "b:r") for name in "lo ls hi hs".split()],
        U32,
    ),
]


def whole(name: str, body: str, *arguments, grid=1, block=BLOCK, **settings) -> CudaProgram:
    """A kernel written out; `body` holds it, named `name`."""
    size = grid if isinstance(grid, tuple) else (grid,), block if isinstance(block, tuple) else (block,)
    assert re.search(rf"\b{name}\s*\(", body)
    return CudaProgram(name, HEADERS + body, *size, arguments, **settings)


def ints(count: int, value: int = 0) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int32)


def randoms(*shape, seed=7, dtype=torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(dtype)


SHUFFLES = """
extern "C" __global__ void shuffles(const int* x, int* out) {
  int i = threadIdx.x, v = x[i], n = blockDim.x;
  out[i] = __shfl_xor_sync(~0u, v, 16);
  out[n + i] = __shfl_up_sync(~0u, v, 3);
  out[2 * n + i] = __shfl_down_sync(~0u, v, 5);
  out[3 * n + i] = __shfl_sync(~0u, v, i * 7);
  out[4 * n + i] = __shfl_up_sync(~0u, v, 1, 8);
  out[5 * n + i] = __shfl_down_sync(~0u, v, 9, 16);
  out[6 * n + i] = __shfl_sync(~0u, v, 5, 4);
  out[7 * n + i] = __shfl_xor_sync(~0u, v, 9, 8);
  if (i % 64 < 40) out[8 * n + i] = __shfl_xor_sync(__activemask(), v, 1);
  int valid;
  asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 4, 0, -1; selp.s32 %1, 1, 0, p; }"
               : "=r"(out[9 * n + i]), "=r"(valid) : "r"(v));
  out[10 * n + i] = valid;
}"""

VOTES = """
extern "C" __global__ void votes(const int* x, int* out) {
  int i = threadIdx.x, v = x[i], n = blockDim.x;
  out[i] = __ballot_sync(~0u, v & 1);
  out[n + i] = __all_sync(~0u, v > -1000000) + 2 * __any_sync(~0u, v == 17) + 4 * __all_sync(~0u, v & 1);
  out[2 * n + i] = __match_any_sync(~0u, v & 7);
  int same; out[3 * n + i] = __match_all_sync(~0u, i < 32 ? 5 : v, &same); out[4 * n + i] = same;
  out[5 * n + i] = __reduce_add_sync(~0u, v);
  out[6 * n + i] = __reduce_min_sync(~0u, v);
  out[7 * n + i] = __reduce_max_sync(~0u, (unsigned)v);
  out[8 * n + i] = __reduce_or_sync(~0u, (unsigned)v & 0xF0F0);
  if (i & 1) out[9 * n + i] = __ballot_sync(0xAAAAAAAA, v & 2);
  else out[9 * n + i] = __reduce_xor_sync(0x55555555, (unsigned)v);
  unsigned mask; asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  out[10 * n + i] = __popc(mask & __ballot_sync(~0u, v & 4));
  out[11 * n + i] = __syncthreads_count(v & 1) + 1000 * __syncthreads_and(v != 3) + 10000 * __syncthreads_or(v == 3);
}"""

DIVERGENCE = """
extern "C" __global__ void divergence(const int* x, int* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = (x[i] & 1023) + 1, steps = 0;
  while (v != 1) {
    v = v & 1 ? 3 * v + 1 : v >> 1;
    if (++steps > 300) break;
    if (steps % 7 == 3) continue;
    steps += v & 2 ? 0 : 0;
  }
  __syncwarp();
  int kind;
  switch (x[i] & 7) {
    case 0: kind = steps * 3; break;
    case 1: kind = steps - 100; break;
    case 2: kind = steps << 2; break;
    case 3: kind = -steps; break;
    case 4: kind = steps ^ 0x55; break;
    case 5: kind = steps / 3; break;
    default: kind = 7;
  }
  out[i] = kind + __shfl_xor_sync(~0u, kind, 1);
}"""

CALLS = """
__device__ __noinline__ float polynomial(float x, int degree) {
  float sum = 0;
  for (int k = degree; k >= 0; k--) sum = sum * x + 1.f / (k + 1);
  return sum;
}
__device__ __noinline__ int twice(int v) { return v > 100 ? v : 2 * v; }
extern "C" __global__ void calls(const float* x, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = polynomial(x[i], twice(i & 3)) + (x[i] > 0 ? polynomial(x[i] * 0.5f, 3) : 0.f);
}"""

ATOMICS = """
extern "C" __global__ void atomics(const int* x, int* counts, float* sums, unsigned long long* wide, double* more) {
  __shared__ int local[16];
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
  if (threadIdx.x < 16) local[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&local[v & 15], 1);
  atomicAdd(&counts[v & 7], v & 1023);
  atomicMin(&counts[8], v); atomicMax(&counts[9], v); atomicAnd(&counts[10], v | 1); atomicOr(&counts[11], v & 0xFF00);
  atomicXor(&counts[12], v); atomicSub(&counts[13], 3);
  atomicMin((unsigned*)&counts[14], (unsigned)v); atomicInc((unsigned*)&counts[15], 99);
  atomicDec((unsigned*)&counts[16], 77);
  atomicAdd(&sums[v & 3], 0.25f * (v & 15));
  atomicAdd(wide, (unsigned long long)(unsigned)v);
  atomicMax((long long*)wide + 1, (long long)v << 20);
  atomicAdd(more, 0.5 * (v & 7));
  int old = counts[17], assumed;
  do { assumed = old; old = atomicCAS(&counts[17], assumed, assumed + (v & 3)); } while (old != assumed);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&counts[24 + threadIdx.x], local[threadIdx.x]);
}"""

ATOMIC_HALVES = """
extern "C" __global__ void atomic_halves(__half2* sums, __nv_bfloat162* others, __half* one) {
  atomicAdd(&sums[threadIdx.x & 3], __floats2half2_rn(1.f, 0.5f));
  atomicAdd(&others[threadIdx.x & 3], __floats2bfloat162_rn(1.f, 2.f));
  atomicAdd(one, __float2half(1.f));
}"""

WIDTHS = """
extern "C" __global__ void widths(const float4* a, const double2* b, const short4* c, const uchar4* d, const char* e,
                                  float4* out, double2* wide, int* more) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  float4 v = a[i]; out[i] = make_float4(v.w, v.z, v.y, v.x);
  double2 w = b[i]; wide[i] = make_double2(w.y, w.x);
  short4 s = c[i]; more[i] = s.x + 2 * s.y + 3 * s.z + 4 * s.w;
  uchar4 u = d[i]; more[n + i] = u.x + 256 * u.y - 65536 * u.z + u.w;
  more[2 * n + i] = e[i] * 3;
  ((short*)(more + 3 * n))[i] = (short)(s.x * s.y);
  ((char*)(more + 4 * n))[i] = (char)(u.x * 7);
}"""

LOCALS = """
__constant__ int table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
extern "C" __global__ void locals(const int* x, int* out) {
  extern __shared__ int dynamic[];
  __shared__ short fixed[64];
  int stack[16];
  int i = threadIdx.x;
  for (int j = 0; j < 16; j++) stack[(x[i] + j) & 15] = x[i] * j + table[j & 7];
  dynamic[i] = stack[i & 15]; fixed[i & 63] = 0;
  __syncthreads();
  fixed[i & 63] = (short)(i & 63);
  __syncthreads();
  const int* chosen = i % 3 == 0 ? x : i % 3 == 1 ? stack : dynamic;
  out[i] = chosen[(i * 5) & 15] + dynamic[i ^ 1] + fixed[(i + 9) & 63] + table[x[i] & 7];
}"""

ASYNC = """
extern "C" __global__ void async_copy(const float4* x, float* out) {
  __shared__ alignas(16) float4 tile[2][64];
  int i = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(&tile[0][i]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + i));
  asm volatile("cp.async.commit_group;");
  to = (unsigned)__cvta_generic_to_shared(&tile[1][i]);
  int bytes = i & 1 ? 8 : 16;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(x + 64 + i), "r"(bytes));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 1;");
  __syncthreads();
  float4 a = tile[0][63 - i];
  asm volatile("cp.async.wait_all;");
  __syncthreads();
  float4 b = tile[1][63 - i];
  out[i] = a.x + 2 * a.y + 4 * a.z + 8 * a.w; out[64 + i] = b.x + 2 * b.y + 4 * b.z + 8 * b.w;
}"""


def _mma(name: str, kind: str, k: int) -> CudaProgram:
    """C = A B + C of one warp; A is 16 x k, B is k x 8 (by columns), both as their registers hold them."""
    a_regs, b_regs = k // 4, k // 8
    a = ", ".join(f'"r"(a[{r}])' for r in range(a_regs))
    b = ", ".join(f'"r"(b[{r}])' for r in range(b_regs))
    places = [f"%{p}" for p in range(4 + a_regs + b_regs)]
    dtype = torch.float16 if kind == "f16" else torch.bfloat16
    sums, left, right = ", ".join(places[:4]), ", ".join(places[4 : 4 + a_regs]), ", ".join(places[4 + a_regs :])
    body = f"""
extern "C" __global__ void {name}(const unsigned* A, const unsigned* B, float* out) {{
  unsigned a[{a_regs}], b[{b_regs}]; float c[4];
  int i = threadIdx.x, group = i / 4, lane = i % 4;
  for (int r = 0; r < {a_regs}; r++) a[r] = A[(group + 8 * (r % 2)) * {k // 2} + lane + 4 * (r / 2)];
  for (int r = 0; r < {b_regs}; r++) b[r] = B[group * {k // 2} + lane + 4 * r];
  for (int r = 0; r < 4; r++) c[r] = out[(group + 8 * (r / 2)) * 8 + 2 * lane + r % 2];
  asm volatile("mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 "
               "{{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : {a}, {b});
  for (int r = 0; r < 4; r++) out[(group + 8 * (r / 2)) * 8 + 2 * lane + r % 2] = c[r];
}}"""
    first, second = randoms(16, k, seed=k, dtype=dtype), randoms(8, k, seed=k + 1, dtype=dtype)
    return whole(name, body, first, second, randoms(16, 8, seed=k + 2), block=32, atol=2.0**-20)


LDMATRIX = """
extern "C" __global__ void ldmatrix(const unsigned* x, unsigned* out) {
  __shared__ alignas(16) unsigned tile[256];
  int i = threadIdx.x;
  for (int j = i; j < 256; j += 32) tile[j] = x[j];
  __syncthreads();
  unsigned from = (unsigned)__cvta_generic_to_shared(tile) + i * 16, a, b, c, d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from));
  out[i] = a; out[32 + i] = b; out[64 + i] = c; out[96 + i] = d;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(from));
  out[128 + i] = a; out[160 + i] = b;
}"""

ADD_GELU = """
__device__ float gelu(float v) { return 0.5f * v * (1.f + erff(v * 0.70710678f)); }
extern "C" __global__ void add_gelu(const float4* x, const float4* y, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    float4 a = x[i], b = y[i];
    out[i] = make_float4(gelu(a.x + b.x), gelu(a.y + b.y), gelu(a.z + b.z), gelu(a.w + b.w));
  }
}"""

REDUCE = """
__device__ float all(float v, float* part, bool largest) {
  for (int d = 16; d; d >>= 1) { float o = __shfl_xor_sync(~0u, v, d); v = largest ? fmaxf(v, o) : v + o; }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
  for (int w = 1; w < blockDim.x / 32; w++) v = largest ? fmaxf(v, part[w]) : v + part[w];
  __syncthreads();
  return v;
}"""
SOFTMAX = (
    REDUCE
    + """
extern "C" __global__ void softmax(const float* x, float* out, int n) {
  __shared__ float part[32];
  x += (long long)blockIdx.x * n; out += (long long)blockIdx.x * n;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, x[i]);
  top = all(top, part, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __expf(x[i] - top);
  sum = all(sum, part, false);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = __expf(x[i] - top) / sum;
}"""
)
LAYER_NORM = (
    REDUCE
    + """
extern "C" __global__ void layer_norm(const __nv_bfloat162* x, const float* weight, __nv_bfloat162* out, int n) {
  __shared__ float part[32];
  x += (long long)blockIdx.x * n / 2; out += (long long)blockIdx.x * n / 2;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) { float2 v = __bfloat1622float2(x[i]); sum += v.x + v.y; }
  float mean = all(sum, part, false) / n;
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
    float2 v = __bfloat1622float2(x[i]); squares += (v.x - mean) * (v.x - mean) + (v.y - mean) * (v.y - mean);
  }
  float scale = 1.f / sqrtf(all(squares, part, false) / n + 1e-5f);
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
    float2 v = __bfloat1622float2(x[i]);
    out[i] = __floats2bfloat162_rn((v.x - mean) * scale * weight[2 * i], (v.y - mean) * scale * weight[2 * i + 1]);
  }
}"""
)
MATMUL = """
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float left[16][16], right[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int j = 0; j < 16; j++) sum += left[threadIdx.y][j] * right[j][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}"""


def _transpose(width: int) -> CudaProgram:
    body = f"""
extern "C" __global__ void transpose_{width}(const float* x, float* out, int n) {{
  __shared__ float tile[32][{width}];
  int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) tile[threadIdx.y + k][threadIdx.x] = x[(row + k) * n + column];
  __syncthreads();
  column = blockIdx.y * 32 + threadIdx.x; row = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) out[(row + k) * n + column] = tile[threadIdx.x][threadIdx.y + k];
}}"""
    return whole(f"transpose_{width}", body, randoms(128, 128), torch.zeros(128, 128), 128, grid=(4, 4), block=(32, 8))


def _strided(kind: str, stride: int, shift: int = 0) -> CudaProgram:
    """out[i] = x[i * stride + shift] in elements of `kind`."""
    numbers = {"float": 1, "float2": 2, "float4": 4}[kind]
    name = f"copy_{kind}_{stride}_{shift}"
    body = f"""
extern "C" __global__ void {name}(const {kind}* x, {kind}* out) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i * {stride} + {shift}];
}}"""
    return whole(name, body, randoms(1024 * 32 * numbers + 64), torch.zeros(1024 * numbers), grid=4)


def _banked(kind: str, stride: int, modulus: int = 1024) -> CudaProgram:
    """Shared memory written in order and read with a stride."""
    name = f"banks_{kind}_{stride}"
    numbers = {"float": 1, "float2": 2, "float4": 4, "unsigned char": 1}[kind]
    name = name.replace(" ", "_")
    body = f"""
extern "C" __global__ void {name}(const {kind}* x, {kind}* out) {{
  __shared__ {kind} tile[{modulus}];
  for (int j = threadIdx.x; j < {modulus}; j += blockDim.x) tile[j] = x[j];
  __syncthreads();
  out[threadIdx.x] = tile[(threadIdx.x * {stride}) % {modulus}];
}}"""
    if kind == "unsigned char":
        return whole(name, body, randoms(1024).view(torch.uint8), torch.zeros(256, dtype=torch.uint8))
    return whole(name, body, randoms(modulus * numbers), torch.zeros(256 * numbers))


GATHER = """
extern "C" __global__ void gather(const float* x, const int* index, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[index[i]];
  if (i % 3) out[i] = v;
}"""

X32 = U32[0]
TRAFFIC = [
    *(_strided("float", stride) for stride in (0, 1, 2, 3, 4, 8, 32)),
    *(_strided("float", 1, shift) for shift in (1, 5)),
    *(_strided("float2", stride) for stride in (1, 2, 4)),
    *(_strided("float4", stride) for stride in (1, 2, 3)),
    *(_banked("float", stride) for stride in (0, 1, 2, 3, 4, 8, 16, 32, 33)),
    *(_banked("float2", stride, 512) for stride in (1, 2, 3, 4, 16)),
    *(_banked("float4", stride, 512) for stride in (1, 2, 3, 4, 8)),
    *(_banked("unsigned char", stride) for stride in (1, 4, 8)),
    whole(
        "gather",
        GATHER,
        randoms(4096),
        torch.from_numpy(np.random.default_rng(9).integers(0, 4096, 1024, dtype=np.int32)),
        torch.zeros(1024),
        grid=4,
    ),
    _transpose(32),
    _transpose(33),
    whole(
        "matmul", MATMUL, randoms(64, 64), randoms(64, 64, seed=8), torch.zeros(64, 64), 64, grid=(4, 4), block=(16, 16)
    ),
    whole(
        "add_gelu",
        ADD_GELU,
        randoms(16384),
        randoms(16384, seed=8),
        torch.zeros(16384),
        16384,
        grid=16,
        ulps=4,
        atol=1e-7,
    ),
    whole("softmax", SOFTMAX, 4 * randoms(8, 1000), torch.zeros(8, 1000), 1000, grid=8, ulps=2),
    whole(
        "layer_norm",
        LAYER_NORM,
        randoms(8, 1024, dtype=torch.bfloat16),
        randoms(1024, seed=8),
        torch.zeros(8, 1024, dtype=torch.bfloat16),
        1024,
        grid=8,
    ),
]
WHOLE = [
    whole("shuffles", SHUFFLES, X32[:256], ints(11 * 256)),
    whole("votes", VOTES, X32[:256], ints(12 * 256)),
    whole("divergence", DIVERGENCE, X32[:1024], ints(1024), grid=4),
    whole("calls", CALLS, randoms(512), torch.zeros(512), grid=2),
    whole(
        "atomics",
        ATOMICS,
        X32,
        ints(40),
        torch.zeros(4),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(1).double(),
        grid=4,
    ),
    whole(
        "atomic_halves",
        ATOMIC_HALVES,
        torch.zeros(8, dtype=torch.float16),
        torch.zeros(8, dtype=torch.bfloat16),
        torch.zeros(1, dtype=torch.float16),
    ),
    whole(
        "widths",
        WIDTHS,
        randoms(512, 4),
        randoms(512, 2).double(),
        torch.cat(U16[:2]),
        U32[1][:512].clone().view(torch.uint8),
        U32[2][:128].clone().view(torch.int8),
        torch.zeros(512, 4),
        torch.zeros(512, 2).double(),
        ints(5 * 512),
        grid=2,
    ),
    whole("locals", LOCALS, X32[:256], ints(256), shared=1024),
    whole("async_copy", ASYNC, randoms(128, 4), torch.zeros(128), block=64),
    _mma("mma_f16_16", "f16", 16),
    _mma("mma_bf16_16", "bf16", 16),
    _mma("mma_f16_8", "f16", 8),
    _mma("mma_bf16_8", "bf16", 8),
    whole("ldmatrix", LDMATRIX, X32[:256], ints(192), block=32),
]
PROGRAMS = {program.name: program for program in [*ELEMENTWISE, *WHOLE, *TRAFFIC]}

# Planted faults: what compute-sanitizer says of each, and what the executor does. s: 64 floats of shared memory.
FAULTS = {
    "global_store": "out[threadIdx.x + 1] = 1;",
    "global_load": "out[threadIdx.x] = x[threadIdx.x + 64];",
    "shared_store": "s[threadIdx.x + 1 + (int)x[0]] = 1; __syncthreads(); out[threadIdx.x] = s[threadIdx.x];",
    "misaligned": "out[threadIdx.x] = ((const float2*)(x + 1))->y + ((const float2*)(x + 1))->x;",
    "race_read": "s[threadIdx.x] = x[threadIdx.x]; out[threadIdx.x] = s[threadIdx.x ^ 32];",
    "race_write": "s[threadIdx.x / 2] = x[threadIdx.x] + threadIdx.x; __syncthreads(); out[threadIdx.x] = s[0];",
    "race_after_read": "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); out[threadIdx.x] = s[63 - threadIdx.x]; "
    "s[threadIdx.x] = 2; out[threadIdx.x] += s[threadIdx.x];",
    "barrier": "if (threadIdx.x < 40) __syncthreads(); out[threadIdx.x] = 1;",
    "barrier_after_return": "if (threadIdx.x >= 40) return; __syncthreads(); out[threadIdx.x] = 1;",
    "sound": "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); out[threadIdx.x] = s[threadIdx.x ^ 32];",
    "sound_warp": "s[threadIdx.x] = x[threadIdx.x]; __syncwarp(); out[threadIdx.x] = s[threadIdx.x ^ 1];",
    "sound_same_value": "s[0] = 1; __syncthreads(); out[threadIdx.x] = s[0];",
}


def fault_source(name: str) -> str:
    return f"""extern "C" __global__ void fault_{name}(const float* x, float* out) {{
  __shared__ float s[64];
  {FAULTS[name]}
}}"""
