# ruff: noqa: E501  (a change stands in one line)
"""Right answers to exercises 10 to 16 in other styles, in the format of `wrong_answers`. Each must pass every check."""

from wrong_answers_10_to_16 import (
    CODE,
    FLASH_ACC,
    FLASH_E,
    FLASH_LAST,
    FLASH_SUM,
    GRAD_X,
    GRAD_Z,
    NORM16,
    OF_GATE,
    PROGRAMS,
    SCORES,
    SHARE,
    STORE16,
    SUM,
    UNFUSED,
    WALK,
    Y15,
    H,
    P,
)

BASE_2 = 's = tl.where(seen, tl.dot(q, k) * (scale * 1.4426950408889634), -float("inf"))'
GRID = "grid = (triton.cdiv(seq, block_m), batch * heads)"

RIGHT = {
    "10_attention_scores": {
        "base 2": {SCORES: BASE_2, SUM: SUM.replace("tl.exp(", "tl.exp2("), P: P.replace("tl.exp(", "tl.exp2(")},
        "mask added": {SCORES: 's = tl.dot(q, k) * scale + tl.where(seen, 0.0, -float("inf"))'},
        "tiles of 64 and 32": {"block_m, block_n = 32, 64": "block_m, block_n = 64, 32"},
        "tiles of 16": {"block_m, block_n = 32, 64": "block_m, block_n = 16, 16"},
        "walks over all keys": {WALK: "for start in range(0, seq, BLOCK_N):"},
        "logarithm of the sum": {
            SHARE: 'lse = safe + tl.log(tl.where(total == 0, 1.0, total))\n    lse = tl.where(top == -float("inf"), float("inf"), lse)',
            P: "p = tl.exp(s - lse[:, None])",
        },
        "divides": {
            SHARE: "share = tl.where(total == 0, 1.0, total)",
            P: "p = tl.exp(s - safe[:, None]) / share[:, None]",
        },
        "scale of the kernel's own": {"tl.dot(q, k) * scale": "tl.dot(q, k) / tl.sqrt(DIM * 1.0)"},
        # In rows without a key every exponential is 0, whatever the share.
        "rows without a key have a share": {SHARE: "share = tl.where(total == 0, 1.0 / seq, 1.0 / total)"},
        "walk in whole tiles of keys": {
            WALK: "for start in range(0, tl.minimum(seq, tl.program_id(0) * BLOCK_M + 1), BLOCK_N):"
        },
    },
    "10b_flash_attention": {
        "base 2": {
            SCORES: BASE_2,
            FLASH_E: "e = tl.exp2(s - grown[:, None])",
            "shrink = tl.exp(top - grown)": "shrink = tl.exp2(top - grown)",
        },
        "acc, then add": {FLASH_ACC: "acc = acc * shrink[:, None]\n        acc += tl.dot(e.to(tl.float16), v)"},
        "sum of rounded weights": {
            FLASH_SUM: "e = e.to(tl.float16)\n        total = total * shrink + tl.sum(e.to(tl.float32), axis=1)"
        },
        "multiplied by the inverse": {"o = acc / total[:, None]": "o = acc * (1.0 / total)[:, None]"},
        "tiles of 128 and 32": {"block_m, block_n = 64, 64": "block_m, block_n = 128, 32"},
        "tiles of 32 and 128": {"block_m, block_n = 64, 64": "block_m, block_n = 32, 128"},
        "last in one line": {
            FLASH_LAST: "last = seq\n    if CAUSAL:\n        last = tl.minimum(last, tl.program_id(0) * BLOCK_M + BLOCK_M)"
        },
    },
    "11_fused_backward": {
        "no program for no row": {PROGRAMS: "programs = min(rows, PROGRAMS)"},
        "five programs": {PROGRAMS: "programs = max(1, min(rows, 5))"},
        "slope of sigmoid": {
            GRAD_Z: "slope = 1.702 * gate * (1.0 - gate)\n        grad_z = grad_y * gate + grad_y * z * slope"
        },
        "one fraction": {GRAD_X: "(along * cols - shift * cols - x_hat * stretch * cols) * (rstd / cols)"},
        "shifted variance": {
            "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)": "rstd = 1.0 / tl.sqrt(tl.sum(tl.where(exists, centred * centred, 0.0), axis=0) / cols + eps)"
        },
        "exponential": {"gate = tl.sigmoid(1.702 * z)": "gate = 1.0 / (1.0 + tl.exp(-1.702 * z))"},
        "32 warps": {"num_warps=warps": "num_warps=32 if block >= 1024 else 4"},
    },
    "12_layer_norm_int8": {
        "square root": {
            "tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)": "1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / cols + eps)"
        },
        "largest of two": {
            "largest = tl.max(tl.abs(y), axis=0)": "largest = tl.where(tl.max(y, axis=0) > -tl.min(y, axis=0), tl.max(y, axis=0), -tl.min(y, axis=0))"
        },
        "clamps before rounding": {
            CODE: "code = y / scale\n    code = tl.where(code > 127.0, 127.0, tl.where(code < -127.0, -127.0, code))\n    code = code + 12582912.0 - 12582912.0"
        },
        "scale by a product": {"scale = clip * largest / 127.0": "scale = largest * (clip / 127.0)"},
        "32 warps": {"warps = min(32, max(4, block // 512))": "warps = 32 if block > 2048 else 8"},
    },
    "13_decide": {
        "earlier end": {'["time"] < apart': '["time"] <= apart * (1 - 1e-12)'},
        "sets": {
            'return {*operation["reads"], *operation["writes"]}': 'return set(operation["reads"]).union(operation["writes"])'
        },
        "groups from the last": {
            "for number, group in enumerate(groups):": "for number, group in reversed(list(enumerate(groups))):"
        },
    },
    "14_cuda_softmax": {
        "128 threads": {"threads = 256": "threads = 128 if columns <= 4096 else 512"},
        "expf": {"__expf(v[k].of[w] - peak)": "expf(v[k].of[w] - peak)"},
        "inverse": {"v[k].of[w] /= sum;": "v[k].of[w] *= 1.0f / sum;"},
        "size_t": {
            "long long start = (long long)blockIdx.x * columns;": "size_t start = (size_t)blockIdx.x * columns;"
        },
        "shuffle down": {"__shfl_xor_sync(0xffffffff, v, far)": "__shfl_down_sync(0xffffffff, v, far)"},
        "lowest number": {"-INFINITY, sum": "-3.402823466e38f, sum"},
        "do while": {
            "for (int far = 16; far > 0; far /= 2) v = op(v, __shfl_xor_sync(0xffffffff, v, far));": "int far = 16;\n  do { v = op(v, __shfl_xor_sync(0xffffffff, v, far)); far >>= 1; } while (far != 0);"
        },
        "conditional maximum": {"return fmaxf(a, b);": "return a > b ? a : b;"},
    },
    "15_capstone": {
        "silu by exponential": {H: "h = x * (gate / (1.0 + tl.exp(-gate)))"},
        "division": {Y15: "residual + weight * (h * rstd)"},
        "slope": {OF_GATE: "grad_h * x * (s + gate * (s - s * s))"},
        "five programs": {PROGRAMS: "programs = max(1, min(rows, 5))"},
        "32 warps": {"warps = min(32, max(4, block_size // 512))": "warps = 32 if block_size > 1024 else 4"},
        "report term by term": {
            UNFUSED: "unfused = 4 * (2 * n + 3 * n + 2 * n + n + rows + 2 * rows + 2 * rows + 2 * n + rows + 2 * n + columns + 3 * n)"
        },
    },
    "16_help_the_compiler": {
        "up first": {STORE16: "up * (y * tl.sigmoid(y))"},
        "square root": {NORM16: "y = weight * (x / tl.sqrt(tl.sum(x * x, axis=0) / cols + eps))"},
        "16 warps": {"num_warps=warps": "num_warps=16"},
        "float or int eps": {"isinstance(eps, float)": "isinstance(eps, (int, float))"},
    },
}
