# ruff: noqa: E501  (a mistake stands in one line)
"""Wrong answers that are right on the sizes once checked, and wrong beyond them: another eps, wider rows, a
second output, the last program. See `wrong_answers`."""

WRONG = {
    "04_bias_dropout_residual": {
        "bias of 4096 columns": {
            "bias = tl.load(bias_ptr + column, mask=exists)": "bias = tl.load(bias_ptr + column % 4096, mask=exists)",
        },
        "p at most 0.9": {
            "1 / (1 - p), seed, BLOCK=block\n    )\n    return y": "1 / (1 - min(p, 0.9)), seed, BLOCK=block\n    )\n    return y",
        },
        "1e5 elements of gradient": {
            "exists = element < elements": "exists = element < tl.minimum(elements, 100000)",
        },
        "rows over 256 share the mask": {
            "kept = tl.rand(seed, element) >= p\n    tl.store(y_ptr": "kept = tl.rand(seed, element % (256 * columns)) >= p\n    tl.store(y_ptr",
        },
    },
    "05_layer_norm": {
        "eps at least 1e-6": {
            "variance + eps": "variance + tl.maximum(eps, 1e-6)",
        },
    },
    "05b_residual_rms_norm": {
        "eps at least 1e-6": {
            "mean_square + eps": "mean_square + tl.maximum(eps, 1e-6)",
        },
    },
    "06_softmax_topk": {
        "indices modulo 4096": {
            "tl.store(indices_ptr + row * K + place, winner)": "tl.store(indices_ptr + row * K + place, winner % 4096)",
        },
    },
    "08_linear_act": {
        "bias of 256 columns": {
            "bias_ptr + col, mask": "bias_ptr + col % 256, mask",
        },
        "1024 rows of output": {
            "y.to(tl.float16),\n        mask=(row < M)[:, None]": "y.to(tl.float16),\n        mask=(row < tl.minimum(M, 1024))[:, None]",
        },
        "65535 programs at most": {
            "grid = (triton.cdiv(m, block_m),": "grid = (min(triton.cdiv(m, block_m), 65535),",
        },
    },
    "09_conv_bn_relu": {
        "padding 2 at most": {
            "PADDING=padding": "PADDING=min(padding, 2)",
        },
        "taps 3 at most": {
            "tap % TAPS_W)[None, :]": "(tap % TAPS_W) % 3)[None, :]",
        },
        "taps 5 at most": {
            "tap % TAPS_W)[None, :]": "(tap % TAPS_W) % 5)[None, :]",
        },
        "out channels 128": {
            "mask=(pixel < pixels) & exists)": "mask=(pixel < pixels) & exists & (k < 128))",
        },
        "eps at least 1e-5": {
            "other=1.0) + eps": "other=1.0) + tl.maximum(eps, 1e-5)",
        },
        "rows of 64": {
            "seen = (row >= 0) & (row < height)": "seen = (row >= 0) & (row < height) & (row < 64)",
        },
        "columns of 64": {
            "(col < width)": "(col < width) & (col < 64)",
        },
    },
    "11_fused_backward": {
        "weight's of 128 rows": {
            "grad_weight += grad_z * x_hat": "grad_weight += tl.where(row < 128, grad_z * x_hat, 0.0)",
        },
        "bias's of 256 rows": {
            "grad_bias += grad_z": "grad_bias += tl.where(row < 256, grad_z, 0.0)",
        },
    },
    "12_layer_norm_int8": {
        "eps at least 1e-6": {
            "axis=0) / cols + eps)": "axis=0) / cols + tl.maximum(eps, 1e-6))",
        },
    },
    "13_decide": {
        "made: first write": {
            'set(one["writes"]) & set(two["elsewhere"])': 'set(one["writes"][:1]) & set(two["elsewhere"])',
        },
        "overwritten: first write": {
            'set(two["writes"]) & set(one["elsewhere"])': 'set(two["writes"][:1]) & set(one["elsewhere"])',
        },
        "tensors: first write": {
            '{*operation["reads"], *operation["writes"]}': '{*operation["reads"], *operation["writes"][:1]}',
        },
        "waits: first write": {
            'set(earlier["writes"]) &': 'set(earlier["writes"][:1]) &',
        },
        "waits: first write of the later": {
            'set(later["writes"]) &': 'set(later["writes"][:1]) &',
        },
        "first elsewhere": {
            'set(one["writes"]) & set(two["elsewhere"])': 'set(one["writes"]) & set(two["elsewhere"][:1])',
        },
        "first read": {
            '{*operation["reads"], *operation["writes"]}': '{*operation["reads"][:1], *operation["writes"]}',
        },
        "two reads": {
            '{*operation["reads"], *operation["writes"]}': '{*operation["reads"][:2], *operation["writes"]}',
        },
    },
    "15_capstone": {
        "forward: eps at least 1e-6": {
            "h = x * gate * tl.sigmoid(gate)\n    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)": "h = x * gate * tl.sigmoid(gate)\n    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + tl.maximum(eps, 1e-6))",
        },
    },
    "16_help_the_compiler": {
        "eps at least 1e-6": {
            "axis=0) / cols + eps)": "axis=0) / cols + tl.maximum(eps, 1e-6))",
        },
        "numbers too": {
            "any(not isinstance(name, str) or name not in nodes for name in (x, up, weight)):\n        return False": "any(not isinstance(name, str) or name not in nodes for name in (x, up, weight)):\n        return True",
        },
    },
    "18_short_kernels": {
        "eps at least 1e-6": {
            "mean_square + eps": "mean_square + tl.maximum(eps, 1e-6)",
        },
    },
}
