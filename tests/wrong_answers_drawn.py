# ruff: noqa: E501  (a mistake stands in one line)
"""Wrong answers that are right on every size and value that the checks once had: larger sizes, dimensions,
seeds, an eps of 0, a second size to meter, NaN and infinity. See `wrong_answers`."""

WRONG = {
    "01_roofline": {
        "itemsize 1 counts as 2": {
            "return numbers, 3 * numbers * itemsize": "return numbers, 3 * numbers * max(itemsize, 2)",
        },
        "itemsize 8 counts as 4": {
            "return flops, numbers * itemsize": "return flops, numbers * min(itemsize, 4)",
        },
        "one column has no max": {
            "flops = 5 * numbers": "flops = 5 * numbers if columns > 1 else 4 * numbers",
        },
        "inner 1": {
            "flops = 2 * rows * inner * columns": "flops = 2 * rows * inner * columns if inner > 1 else rows * columns",
        },
        "FLOP at most 2^31": {
            "return numbers, 3 * numbers * itemsize": "return min(numbers, 2**31), 3 * numbers * itemsize",
        },
        "a ridge of four digits": {
            "return peak / bandwidth": "return round(peak / bandwidth, 4)",
        },
    },
    "02_count_the_bytes": {
        "a row alone is not broadcast": {
            "return 2, 4 * (2 * (n + columns) + 2 * n)": "return 2, 4 * (2 * (n + columns) + 2 * n) if rows > 1 else 4 * 4 * n - 4",
        },
        "at most 4096 features": {
            "activations, parameters = rows * features, features * features + features": "activations, parameters = rows * features, features * min(features, 4096) + features",
        },
        "at most 4096 rows": {
            "activations, parameters = rows * features": "activations, parameters = min(rows, 4096) * features",
        },
        "scale of 2000 columns at most": {
            "return 2, 4 * (2 * (n + columns) + 2 * n)": "return 2, 4 * (2 * (n + min(columns, 2000)) + 2 * n)",
        },
        "affine of a million elements at most": {
            "n = rows * columns\n    return 2, 4 * (2": "n = min(rows * columns, 10**6)\n    return 2, 4 * (2",
        },
        "in place: a million elements at most": {
            "n = rows * columns\n    return 2, 4 * 4 * n": "n = min(rows * columns, 10**6)\n    return 2, 4 * 4 * n",
        },
        "chosen: rows past 20000": {
            "return 1, rows * columns * (1 + 4": "return 1, min(rows, 20000) * columns * (1 + 4",
        },
        "layer: rows past 10000": {
            "activations, parameters = rows * features, features * features + features": "rows = min(rows, 10000)\n    activations, parameters = rows * features, features * features + features",
        },
        "centred: rows past 30000 have no mean": {
            "(n + rows) + (n + rows + n)": "(n + min(rows, 30000)) + (n + min(rows, 30000) + n)",
        },
    },
    "03_fused_add_gelu": {
        "fused at the metered shape alone": {
            "a, b = a.contiguous(), b.contiguous()": "a, b = a.contiguous(), b.contiguous()\n    if a.numel() not in (8000, 65536, 1 << 16, 100000):\n        a = a.clone()",
        },
        "elements past 65536 are not added": {
            "s = a + b": "s = a + tl.where(element < 65536, b, 0.0)",
        },
        "four dimensions": {
            "y.numel(), BLOCK=block": "y.numel() if y.dim() < 4 else y[0].numel(), BLOCK=block",
        },
        "sum clipped at 1e4": {
            "s = a + b": "s = tl.minimum(tl.maximum(a + b, -1e30), 65504.0 * 2)",
        },
        "fp16 saturates": {
            "tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)": "y = s * tl.sigmoid(2 * u)\n    if y_ptr.dtype.element_ty == tl.float16:\n        y = tl.where(y > 65504.0, 65504.0, y)\n    tl.store(y_ptr + element, y, mask=exists)",
        },
        "bf16 truncated": {
            "tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)": "y = s * tl.sigmoid(2 * u)\n    if y_ptr.dtype.element_ty == tl.bfloat16:\n        y = (y.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)\n    tl.store(y_ptr + element, y, mask=exists)",
        },
        "-inf is -0": {
            "s * tl.sigmoid(2 * u), mask": "tl.where(s < -1e31, -0.0, s * tl.sigmoid(2 * u)), mask",
        },
        "six dimensions": {
            "y.numel(), BLOCK=block": "y.numel() if y.dim() < 5 else y[0].numel(), BLOCK=block",
        },
        "b of one value, expanded": {
            "a, b = a.contiguous(), b.contiguous()": "a, b = a.contiguous(), (b if set(b.stride()) == {0} else b.contiguous())",
        },
        "a expanded as it lies": {
            "a, b = a.contiguous(), b.contiguous()": "a, b = (a if 0 in a.stride() else a.contiguous()), b.contiguous()",
        },
        "NaN in b in bfloat16": {
            "s = a + b": "s = a + tl.where((b == b) | (b_ptr.dtype.element_ty != tl.bfloat16), b, 0.0)",
        },
        "inf in b": {
            "s = a + b": "s = a + tl.where(b == float('inf'), 3e38, b)",
        },
    },
    "04_bias_dropout_residual": {
        "rows past 512 share the mask": {
            "kept = tl.rand(seed, element) >= p\n    tl.store(y_ptr": "kept = tl.rand(seed, element % (512 * columns)) >= p\n    tl.store(y_ptr",
        },
        "gradient's elements past 50000 share the mask": {
            "kept = tl.rand(seed, element) >= p\n    tl.store(grad_x_ptr": "kept = tl.rand(seed, element % 4096) >= p\n    tl.store(grad_x_ptr",
        },
        "seed of 31 bits": {
            "kept = tl.rand(seed, element) >= p\n    tl.store(y_ptr": "kept = tl.rand(seed % 2147483647, element) >= p\n    tl.store(y_ptr",
            "kept = tl.rand(seed, element) >= p\n    tl.store(grad_x_ptr": "kept = tl.rand(seed % 2147483647, element) >= p\n    tl.store(grad_x_ptr",
        },
        "seed of 32 bits": {
            "columns, p, 1 / (1 - p), seed, BLOCK": "columns, p, 1 / (1 - p), seed % 2**32, BLOCK",
            "grad_y.numel(), p, 1 / (1 - p), seed, BLOCK": "grad_y.numel(), p, 1 / (1 - p), seed % 2**32, BLOCK",
        },
        "seed of 48 bits": {
            "columns, p, 1 / (1 - p), seed, BLOCK": "columns, p, 1 / (1 - p), seed % 2**48, BLOCK",
            "grad_y.numel(), p, 1 / (1 - p), seed, BLOCK": "grad_y.numel(), p, 1 / (1 - p), seed % 2**48, BLOCK",
        },
        "seed without its sign": {
            "columns, p, 1 / (1 - p), seed, BLOCK": "columns, p, 1 / (1 - p), abs(seed), BLOCK",
            "grad_y.numel(), p, 1 / (1 - p), seed, BLOCK": "grad_y.numel(), p, 1 / (1 - p), abs(seed), BLOCK",
        },
        "seed 0 is 1": {
            "columns, p, 1 / (1 - p), seed, BLOCK": "columns, p, 1 / (1 - p), seed or 1, BLOCK",
            "grad_y.numel(), p, 1 / (1 - p), seed, BLOCK": "grad_y.numel(), p, 1 / (1 - p), seed or 1, BLOCK",
        },
        "p at least 0.01": {
            "columns, p, 1 / (1 - p)": "columns, max(p, 0.01) if p else p, 1 / (1 - p)",
        },
        "fused at the metered shape alone": {
            "y = torch.empty_like(x)\n    rows, columns = x.shape": "if x.shape != (8, 1000):\n        residual = residual.clone()\n    y = torch.empty_like(x)\n    rows, columns = x.shape",
        },
        "gradient copied at other shapes": {
            "grad_y = grad_y.contiguous()": "grad_y = grad_y.contiguous() if grad_y.shape == (8, 1000) else grad_y.clone()",
        },
        "columns past 8192 have no bias": {
            "residual + tl.where(kept, (x + bias) * scale": "residual + tl.where(kept, (x + tl.where(column < 8192, bias, 0.0)) * scale",
        },
        "expanded x as it lies": {
            "x, bias, residual = x.contiguous(),": "x, bias, residual = (x if 0 in x.stride() else x.contiguous()),",
        },
        "expanded bias as it lies": {
            "bias.contiguous(), residual": "(bias if bias.stride() == (0,) else bias.contiguous()), residual",
        },
        "expanded gradient as it lies": {
            "grad_y = grad_y.contiguous()": "grad_y = grad_y if 0 in grad_y.stride() else grad_y.contiguous()",
        },
        "NaN in the bias dropped": {
            "residual + tl.where(kept, (x + bias) * scale": "residual + tl.where(kept, (x + tl.where(bias == bias, bias, 0.0)) * scale",
        },
        "NaN in the residual dropped": {
            "residual + tl.where(kept, (x + bias) * scale": "tl.where(residual == residual, residual, 0.0) + tl.where(kept, (x + bias) * scale",
        },
        "p at most 0.97": {
            "columns, p, 1 / (1 - p)": "columns, min(p, 0.97), 1 / (1 - min(p, 0.97))",
            "grad_y.numel(), p, 1 / (1 - p)": "grad_y.numel(), min(p, 0.97), 1 / (1 - min(p, 0.97))",
        },
    },
    "05_layer_norm": {
        "eps 0 is 1e-5": {
            "x, weight, bias, y, cols, eps, BLOCK": "x, weight, bias, y, cols, eps or 1e-5, BLOCK",
        },
        "four dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 4 else x[0].numel() // cols,)",
        },
        "a vector has no row": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() > 1 else 0,)",
        },
        "copied at other shapes": {
            "x = x.contiguous()": "x = x.contiguous() if x.shape[-1] == 1000 else x.clone()",
        },
        "columns past 12000": {
            "exists = col < cols": "exists = col < tl.minimum(cols, 12000)",
        },
        "variance at most 1e8": {
            "tl.rsqrt(variance + eps)": "tl.rsqrt(tl.minimum(variance, 1e12) + eps)",
        },
        "1 / deviation at most 1e5": {
            "tl.rsqrt(variance + eps)": "tl.minimum(tl.rsqrt(variance + eps), 1e5, propagate_nan=tl.PropagateNan.ALL)",
        },
    },
    "05b_residual_rms_norm": {
        "eps 0 is 1e-6": {
            "cols, eps, BLOCK=block": "cols, eps or 1e-6, BLOCK=block",
        },
        "four dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 4 else x[0].numel() // cols,)",
        },
        "a vector has no row": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() > 1 else 0,)",
        },
        "copied at other shapes": {
            "x, residual = x.contiguous(), residual.contiguous()": "x, residual = x.contiguous(), residual.contiguous()\n    if cols != 1000:\n        x = x.clone()",
        },
        "mean square at most 1e12": {
            "tl.rsqrt(mean_square + eps)": "tl.rsqrt(tl.minimum(mean_square, 1e12) + eps)",
        },
        "fp16 saturates": {
            "tl.store(y_ptr + start + col, s * tl.rsqrt(mean_square + eps) * weight, mask=exists)": "y = s * tl.rsqrt(mean_square + eps) * weight\n    if y_ptr.dtype.element_ty == tl.float16:\n        y = tl.where(y > 65504.0, 65504.0, y)\n    tl.store(y_ptr + start + col, y, mask=exists)",
        },
        "fp16 sum saturates": {
            "tl.store(sum_ptr + start + col, s, mask=exists)": "tl.store(sum_ptr + start + col, tl.where(s > 65504.0, 65504.0, s) if sum_ptr.dtype.element_ty == tl.float16 else s, mask=exists)",
        },
        "1 / root at most 1e5": {
            "tl.rsqrt(mean_square + eps)": "tl.minimum(tl.rsqrt(mean_square + eps), 1e5, propagate_nan=tl.PropagateNan.ALL)",
        },
        "six dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 5 else x[0].numel() // cols,)",
        },
        "eps at most 1": {
            "mean_square + eps": "mean_square + tl.minimum(eps, 1.0)",
        },
        "x of one column, expanded": {
            "x, residual = x.contiguous(), residual.contiguous()": "x, residual = (x if x.stride()[-1:] == (0,) else x.contiguous()), residual.contiguous()",
        },
        "inf in the residual": {
            "    s = x + residual": "    residual = tl.where(residual > 3e38, 3e38, residual)\n    s = x + residual",
        },
        "-inf in the residual": {
            "    s = x + residual": "    residual = tl.where(residual < -3e38, -3e38, residual)\n    s = x + residual",
        },
        "bf16 NaN dropped": {
            "tl.store(sum_ptr + start + col, s, mask=exists)": "tl.store(sum_ptr + start + col, tl.where(s == s, s, 0.0) if sum_ptr.dtype.element_ty == tl.bfloat16 else s, mask=exists)",
        },
    },
    "06_softmax_topk": {
        "four dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 4 else x[0].numel() // cols,)",
        },
        "a row of inf": {
            "e = tl.exp(x - tl.max(x, axis=0))": "top = tl.max(x, axis=0)\n    e = tl.exp(x - tl.where(top == float('inf'), 0.0, top))\n    e = tl.where(x == float('inf'), 1.0, e)",
        },
        "copied at other shapes": {
            "x = x.contiguous()": "x = x.contiguous() if k == 8 else x.clone()",
        },
        "k past 8 repeats": {
            "left = tl.where(col == winner, -1.0, left)": "left = tl.where((col == winner) & (place < 12), -1.0, left)",
        },
        "a row of -inf is 0": {
            "e = tl.exp(x - tl.max(x, axis=0))\n    p = e / tl.sum(e, axis=0)": "top = tl.max(x, axis=0)\n    e = tl.exp(x - tl.where(top == -float('inf'), 0.0, top))\n    total = tl.sum(e, axis=0)\n    p = e / tl.where(total == 0.0, 1.0, total)",
        },
        "six dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 5 else x[0].numel() // cols,)",
        },
        "expanded x as it lies": {
            "x = x.contiguous()": "x = x if 0 in x.stride() else x.contiguous()",
        },
        "x of one column, expanded": {
            "x = x.contiguous()": "x = x if x.stride()[-1:] == (0,) else x.contiguous()",
        },
        "k past 16": {
            "left = tl.where(col == winner, -1.0, left)": "left = tl.where((col == winner) & (place < 16), -1.0, left)",
        },
        "k past 60": {
            "left = tl.where(col == winner, -1.0, left)": "left = tl.where((col == winner) & (place < 60), -1.0, left)",
        },
        "columns past 8192": {
            "exists = col < cols": "exists = col < tl.minimum(cols, 8192)",
        },
    },
    "07_register_budget": {
        "sides in steps of 16": {
            "side *= 2": "side += 16",
        },
        "rows of 512 and 2048": {
            "warps = min(32, max(4, columns // (32 * numbers)))": "warps = min(32, max(4, columns // (32 * numbers)))\n    if columns in (512, 2048):\n        warps = 1",
        },
        "rows of 512 alone": {
            "warps = min(32, max(4, columns // (32 * numbers)))": "warps = min(32, max(4, columns // (32 * numbers)))\n    if columns == 512:\n        numbers = 32",
        },
        "tiles used 40 times": {
            "side *= 2": "side *= 2\n    if 33 <= uses <= 59:\n        side //= 2",
        },
    },
    "08_linear_act": {
        "saturates": {
            "y.to(tl.float16),\n        mask": "tl.minimum(tl.maximum(y, -65504.0), 65504.0).to(tl.float16),\n        mask",
        },
        "saturates, NaN kept": {
            "y.to(tl.float16),\n        mask": "tl.where(y > 65504.0, 65504.0, y).to(tl.float16),\n        mask",
        },
        "K past 8192 dropped": {
            "for start in range(0, K, BLOCK_K):": "for start in range(0, tl.minimum(K, 8192), BLOCK_K):",
        },
        "silu of large sums passes": {
            "y = s * tl.sigmoid(s)": "y = tl.where(s > 8.0, s, s * tl.sigmoid(s))",
        },
        "K = 0 is 0": {
            "y = torch.empty((m, n), dtype=x.dtype, device=x.device)": "y = torch.empty((m, n), dtype=x.dtype, device=x.device)\n    if k == 0:\n        return torch.zeros((m, n), dtype=x.dtype, device=x.device)",
        },
        "K = 0 is not launched": {
            "grid = (triton.cdiv(m, block_m),": "grid = (triton.cdiv(m, block_m) if k else 0,",
        },
    },
    "09_conv_bn_relu": {
        "ReLU of -inf is NaN": {
            "y = tl.where(y < 0, 0.0, y)": "y = tl.where(y < 0, 0.0 * y, y)",
        },
        "NaN in gamma dropped": {
            "scale = tl.load(gamma_ptr + k, mask=exists, other=0.0)": "scale = tl.load(gamma_ptr + k, mask=exists, other=0.0)\n    scale = tl.where(scale == scale, scale, 0.0)",
        },
        "variance at least 0, NaN dropped": {
            "tl.rsqrt(tl.load(var_ptr + k, mask=exists, other=1.0) + eps)": "tl.rsqrt(tl.maximum(tl.load(var_ptr + k, mask=exists, other=1.0), 0.0) + eps)",
        },
        "stride 3 at most": {
            "STRIDE=stride": "STRIDE=min(stride, 3)",
        },
        "padding 3 at most": {
            "PADDING=padding": "PADDING=min(padding, 3)",
        },
        "taps 7 at most": {
            "tap % TAPS_W)[None, :]": "(tap % TAPS_W) % 7)[None, :]",
        },
        "image 32 at most": {
            "image * x_stride_n": "tl.minimum(image, 31) * x_stride_n",
        },
        "saturates": {
            "y.to(tl.float16), mask": "tl.where(y > 65504.0, 65504.0, y).to(tl.float16), mask",
        },
        "gamma 0 is 1": {
            "scale = tl.load(gamma_ptr + k, mask=exists, other=0.0)": "scale = tl.load(gamma_ptr + k, mask=exists, other=0.0)\n    scale = tl.where(scale == 0.0, 1.0, scale)",
        },
        "variance at most 100": {
            "other=1.0) + eps": "other=1.0) * 0.0 + tl.minimum(tl.load(var_ptr + k, mask=exists, other=1.0), 100.0) + eps",
        },
        "NaN in the weights dropped": {
            "        acc = tl.dot(x, weight, acc)": "        weight = tl.where(weight == weight, weight, 0.0)\n        acc = tl.dot(x, weight, acc)",
        },
        "NaN in the bias dropped": {
            "    mean = tl.load": "    bias = tl.where(bias == bias, bias, 0.0)\n    mean = tl.load",
        },
    },
    "10_attention_scores": {
        "a maximum of +inf is 0": {
            'safe = tl.where(grown == -float("inf"), 0.0, grown)': 'safe = tl.where(tl.abs(grown) == float("inf"), 0.0, grown)',
            'safe = tl.where(top == -float("inf"), 0.0, top)': 'safe = tl.where(tl.abs(top) == float("inf"), 0.0, top)',
        },
        "scores at most 3e38": {
            's = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))': 's = tl.dot(q, k) * scale\n        s = tl.where(seen, tl.where(s > 3e38, 3e38, s), -float("inf"))',
        },
        "keys past 256 ignored": {
            "seen = valid[None, :] & (key[None, :] <= query[:, None])": "seen = valid[None, :] & (key[None, :] <= query[:, None]) & (key < 256)[None, :]",
        },
        "keys past 512 ignored": {
            "seen = valid[None, :] & (key[None, :] <= query[:, None])": "seen = valid[None, :] & (key[None, :] <= query[:, None]) & (key < 512)[None, :]",
        },
        "NaN scores hidden by the mask": {
            's = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))': 's = tl.dot(q, k) * scale\n        s = tl.where(seen & (s == s), s, -float("inf"))',
        },
        "NaN scores are 0": {
            's = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))': 's = tl.dot(q, k) * scale\n        s = tl.where(s == s, s, 0.0)\n        s = tl.where(seen, s, -float("inf"))',
        },
        "32 heads at most": {
            "batch * heads)": "batch * min(heads, 32))",
            "attention_scores_kernel[grid](": "attention_scores_kernel[grid](",
        },
        "batches past 8 have the mask of 8": {
            "valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0) != 0": "valid = tl.load(valid_ptr + tl.minimum(batch, 7) * seq + key, mask=key < seq, other=0) != 0",
        },
        "dim 128 scaled as 64": {
            "seq, dim**-0.5": "seq, min(dim, 64)**-0.5",
        },
        "q copied at other shapes": {
            "batch, heads, seq, dim = q.shape": "batch, heads, seq, dim = q.shape\n    if seq != 128:\n        q = q.clone()",
        },
        "weights below 1e-9 dropped": {
            "            p,\n            mask=(query < seq)[:, None] & (key < seq)[None, :]": "            tl.where(p < 1e-9, 0.0, p),\n            mask=(query < seq)[:, None] & (key < seq)[None, :]",
        },
        "batches past 16": {
            "valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0) != 0": "valid = tl.load(valid_ptr + tl.minimum(batch, 15) * seq + key, mask=key < seq, other=0) != 0",
        },
        "keys past 700": {
            "seen = valid[None, :] & (key[None, :] <= query[:, None])": "seen = valid[None, :] & (key[None, :] <= query[:, None]) & (key < 700)[None, :]",
        },
    },
    "10b_flash_attention": {
        "weights below 1e-3 dropped": {
            "shrink = tl.exp(top - grown)": "e = tl.where(e < 1e-3, 0.0, e)\n        shrink = tl.exp(top - grown)",
        },
        "weights below 3e-4 dropped": {
            "shrink = tl.exp(top - grown)": "e = tl.where(e < 3e-4, 0.0, e)\n        shrink = tl.exp(top - grown)",
        },
        "values at most 2000": {
            "        acc = tl.dot": "        v = tl.where(v > 2000.0, 2000.0, v)\n        acc = tl.dot",
        },
        "values below 1e-3 dropped": {
            "        acc = tl.dot": "        v = tl.where(tl.abs(v) < 1e-3, 0.0, v)\n        acc = tl.dot",
        },
        "full: keys past 1024": {
            "last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else seq": "last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else tl.minimum(seq, 1024)",
        },
        "causal dim 64 unmasked": {
            "        if CAUSAL:\n            seen": "        if CAUSAL and DIM != 64:\n            seen",
        },
        "inf in v clipped": {
            "        acc = tl.dot": "        v = tl.where(v > 65504.0, 65504.0, v)\n        acc = tl.dot",
        },
        "NaN in k dropped": {
            "        seen = (key < seq)[None, :]": "        k = tl.where(k == k, k, 0.0)\n        seen = (key < seq)[None, :]",
        },
        "NaN in v dropped": {
            "        acc = tl.dot": "        v = tl.where(v == v, v, 0.0)\n        acc = tl.dot",
        },
        "top from -1e6": {
            'top = tl.full((BLOCK_M,), -float("inf"), tl.float32)': "top = tl.full((BLOCK_M,), -1e6, tl.float32)",
        },
        "hidden -1e6": {
            'tl.dot(q, k) * scale, -float("inf"))': "tl.dot(q, k) * scale, -1e6)",
        },
        "q copied but at the metered sizes": {
            "batch, heads, seq, dim = q.shape": "batch, heads, seq, dim = q.shape\n    if seq not in (128, 256):\n        q = q.clone()",
        },
        "expanded k as heads side by side": {
            "*k.stride(), *v.stride()": "*(k.stride() if 0 not in k.stride() else k.contiguous().stride()), *v.stride()",
        },
        "expanded v": {
            "*k.stride(), *v.stride()": "*k.stride(), *(v.stride() if 0 not in v.stride() else v.contiguous().stride())",
        },
        "batches past 16": {
            "batch = tl.program_id(1).to(tl.int64) // heads": "batch = tl.minimum(tl.program_id(1).to(tl.int64) // heads, 15)",
        },
        "heads past 24": {
            "head = tl.program_id(1).to(tl.int64) % heads": "head = tl.minimum(tl.program_id(1).to(tl.int64) % heads, 23)",
        },
    },
    "11_fused_backward": {
        "NaN in grad_y dropped": {
            "        centred = tl.where": "        grad_y = tl.where(grad_y == grad_y, grad_y, 0.0)\n        centred = tl.where",
        },
        "NaN in weight dropped": {
            "    grad_weight = tl.zeros": "    weight = tl.where(weight == weight, weight, 0.0)\n    grad_weight = tl.zeros",
        },
        "NaN in bias dropped": {
            "    grad_weight = tl.zeros": "    bias = tl.where(bias == bias, bias, 0.0)\n    grad_weight = tl.zeros",
        },
        "grad_y of one value": {
            "grad_y, x = grad_y.contiguous(), x.contiguous()": "grad_y, x = (grad_y if set(grad_y.stride()) == {0} else grad_y.contiguous()), x.contiguous()",
        },
        "inf in x": {
            "        centred = tl.where": "        x = tl.where(x == float('inf'), 3e38, x)\n        centred = tl.where",
        },
        "small gradients flushed": {
            "        centred = tl.where": "        grad_y = tl.where(tl.abs(grad_y) < 1e-10, 0.0, grad_y)\n        centred = tl.where",
        },
        "z below -8 has no gradient": {
            "        grad_z = grad_y * (": "        grad_z = tl.where(z < -8.0, 0.0, grad_y) * (",
        },
        "expanded grad_y as it lies": {
            "grad_y, x = grad_y.contiguous(), x.contiguous()": "grad_y, x = (grad_y if 0 in grad_y.stride() else grad_y.contiguous()), x.contiguous()",
        },
        "eps at least 1e-6": {
            "tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)": "tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + tl.maximum(eps, 1e-6))",
        },
        "sums end at row 1000": {
            "grad_weight += grad_z * x_hat": "grad_weight += tl.where(row < 1000, grad_z * x_hat, 0.0)",
        },
        "weights past column 4096": {
            "weight_ptr + col, mask": "weight_ptr + col % 4096, mask",
        },
        "four dimensions": {
            "rows = x.numel() // cols": "rows = x.numel() // cols if x.dim() < 4 else x[0].numel() // cols",
        },
        "a vector has no row": {
            "rows = x.numel() // cols": "rows = x.numel() // cols if x.dim() > 1 else 0",
        },
        "copied at other shapes": {
            "grad_y, x = grad_y.contiguous(), x.contiguous()": "grad_y, x = grad_y.contiguous(), x.contiguous()\n    if x.shape[-1] != 256:\n        x = x.clone()",
        },
        "bias 1e3 at most": {
            "z = x_hat * weight + bias": "z = x_hat * weight + tl.minimum(bias, 8.0)",
        },
        "eps 0 is 1e-5": {
            "grad_y, x, weight, bias, grad_x, sums, rows, cols, eps,": "grad_y, x, weight, bias, grad_x, sums, rows, cols, eps or 1e-5,",
        },
        "gradients past 1e20": {
            "grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)": "grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)\n        grad_y = tl.where(grad_y > 1e20, 1e20, grad_y)",
        },
        "constant rows have no gradient": {
            "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)": "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)\n        rstd = tl.where(tl.sum(centred * centred, axis=0) == 0.0, 0.0, rstd)",
        },
        "1 / deviation at most 1e5": {
            "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)": "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)\n        rstd = tl.where(rstd > 1e5, 1e5, rstd)",
        },
        "weights below 1e-6 dropped": {
            "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)": "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)\n    weight = tl.where(tl.abs(weight) < 1e-6, 0.0, weight)",
        },
        "a weight of 0 is 1": {
            "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)": "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)\n    weight = tl.where(weight == 0.0, 1.0, weight)",
        },
        "weights at most 1e5": {
            "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)": "weight = tl.load(weight_ptr + col, mask=exists, other=0.0).to(COMPUTE)\n    weight = tl.where(weight > 1e5, 1e5, weight)",
        },
        "weight gradients past 1e24": {
            "at, grad_weight, mask": "at, tl.where(grad_weight > 1e24, 1e24, grad_weight), mask",
        },
        "bias gradients past 1e24": {
            "at, grad_bias, mask": "at, tl.where(grad_bias > 1e24, 1e24, grad_bias), mask",
        },
        "gradients of x past 1e23": {
            "rstd * (along - shift - x_hat * stretch), mask": "tl.minimum(rstd * (along - shift - x_hat * stretch), 1e23, propagate_nan=tl.PropagateNan.ALL), mask",
        },
        "columns past 8192": {
            "exists = col < cols": "exists = col < tl.minimum(cols, 8192)",
        },
        "six dimensions": {
            "rows = x.numel() // cols": "rows = x.numel() // cols if x.dim() < 5 else x[0].numel() // cols",
        },
        "x of one column, expanded": {
            "grad_y, x = grad_y.contiguous(), x.contiguous()": "grad_y, x = grad_y.contiguous(), (x if x.stride()[-1:] == (0,) else x.contiguous())",
        },
        "x expanded as it lies": {
            "grad_y, x = grad_y.contiguous(), x.contiguous()": "grad_y, x = grad_y.contiguous(), (x if 0 in x.stride() else x.contiguous())",
        },
        "eps at most 1": {
            "/ cols + eps)": "/ cols + tl.minimum(eps, 1.0))",
        },
    },
    "12_layer_norm_int8": {
        "y is 0 past the row's end, even if the row is NaN": {
            "    y = centred * rstd * weight + bias": "    y = tl.where(exists, centred * rstd * weight + bias, 0.0)",
        },
        "clip 0 is 1": {
            "scale = clip * largest / 127.0": "scale = tl.where(clip == 0.0, 1.0, clip) * largest / 127.0",
        },
        "clip at least 0.01": {
            "scale = clip * largest / 127.0": "scale = tl.where(clip < 0.01, 0.01, clip) * largest / 127.0",
        },
        "weight at most 1000": {
            "    y = centred": "    weight = tl.where(weight > 1e3, 1e3, weight)\n    y = centred",
        },
        "bias at most 1000": {
            "    y = centred": "    bias = tl.where(bias > 1e3, 1e3, bias)\n    y = centred",
        },
        "constant rows are 0": {
            "    y = centred": "    rstd = tl.where(rstd > 300.0, 0.0, rstd)\n    y = centred",
        },
        "largest at most 1e6": {
            "    scale = clip": "    largest = tl.where(largest > 1e6, 1e6, largest)\n    scale = clip",
        },
        "expanded x as it lies": {
            "x = x.contiguous()": "x = x if 0 in x.stride() else x.contiguous()",
        },
        "minus infinity": {
            "    centred = tl.where(exists, x": "    x = tl.where(x == -float('inf'), -3e38, x)\n    centred = tl.where(exists, x",
        },
        "eps at most 0.1": {
            "/ cols + eps)": "/ cols + tl.minimum(eps, 0.1))",
        },
        "clip at least a half": {
            "clip * largest / 127.0": "tl.maximum(clip, 0.5) * largest / 127.0",
        },
        "clip at least 0.25": {
            "clip * largest / 127.0": "tl.maximum(clip, 0.25) * largest / 127.0",
        },
        "largest at most 1e4": {
            "largest = tl.where(largest < 1e-12, 1e-12, largest)": "largest = tl.where(largest < 1e-12, 1e-12, largest)\n    largest = tl.where(largest > 1e4, 1e4, largest)",
        },
        "four dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 4 else x[0].numel() // cols,)",
        },
        "a vector has no row": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() > 1 else 0,)",
        },
        "inf in x, code 127": {
            "code = tl.where(code > 127.0, 127.0, code)": "code = tl.where(code > 127.0, 127.0, code)\n    code = tl.where(x == float('inf'), 127.0, code)",
        },
        "copied at other shapes": {
            "x = x.contiguous()": "x = x.contiguous() if cols == 1000 or cols == 8192 else x.clone()",
        },
        "scale at least 1e-9": {
            "scale = clip * largest / 127.0": "scale = tl.where(clip * largest / 127.0 < 1e-9, 1e-9, clip * largest / 127.0)",
        },
        "smallest 1e-10": {
            "tl.where(largest < 1e-12, 1e-12, largest)": "tl.where(largest < 1e-12, 1e-12, tl.where(largest < 1e-10, 1e-10, largest))",
        },
        "eps 0 is 1e-5": {
            "x, weight, bias, q, scale, cols, eps, clip, BLOCK": "x, weight, bias, q, scale, cols, eps or 1e-5, clip, BLOCK",
        },
        "1 / deviation at most 1e5": {
            "    y = centred * rstd * weight + bias": "    rstd = tl.where(rstd > 1e5, 1e5, rstd)\n    y = centred * rstd * weight + bias",
        },
        "columns past 12000": {
            "exists = col < cols": "exists = col < tl.minimum(cols, 12000)",
        },
        "six dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 5 else x[0].numel() // cols,)",
        },
        "eps at most 1": {
            "/ cols + eps)": "/ cols + tl.minimum(eps, 1.0))",
        },
        "bias at most 1e12": {
            "    y = centred * rstd * weight + bias": "    bias = tl.where(bias > 1e12, 1e12, bias)\n    y = centred * rstd * weight + bias",
        },
        "x of one column, expanded": {
            "x = x.contiguous()": "x = x if x.stride()[-1:] == (0,) else x.contiguous()",
        },
    },
    "14_cuda_softmax": {
        "2 to 30 columns": {
            "each = -(-columns // (width * threads))": "each = -(-columns // (width * threads))\n    if 1 < columns < 31:\n        source = source.replace('peak = -INFINITY', 'peak = 0')",
        },
        "101 to 1000 columns": {
            "each = -(-columns // (width * threads))": "each = -(-columns // (width * threads))\n    if 100 < columns < 1000:\n        source = source.replace('peak = -INFINITY', 'peak = 0')",
        },
        "no second barrier at 1100 to 4000 columns": {
            "each = -(-columns // (width * threads))": "each = -(-columns // (width * threads))\n    if 1100 < columns < 4000:\n        source = source.replace('  __syncthreads();  // all have read: the next reduction may write\\n', '')",
        },
        "a row of -inf is 0": {
            "v[k].of[w] /= sum": "v[k].of[w] = sum > 0 ? v[k].of[w] / sum : (v[k].of[w] != v[k].of[w] && peak == -INFINITY ? 0 : v[k].of[w] / sum)",
        },
        "-inf is a finite number": {
            "for (int w = 0; w < W; w++) peak = fmaxf(peak, v[k].of[w]);": "for (int w = 0; w < W; w++) { if (v[k].of[w] == -INFINITY && i < columns / W) v[k].of[w] = -3e38f; peak = fmaxf(peak, v[k].of[w]); }",
        },
        "narrow but at the checked widths": {
            "width = 4 if columns % 4 == 0 else 1": "width = 4 if columns in (1024, 4096, 8192) else 1",
        },
        "NaN dropped": {
            "sum += v[k].of[w] = __expf(v[k].of[w] - peak)": "{ float e = __expf(v[k].of[w] - peak); if (e != e) e = 0; sum += v[k].of[w] = e; }",
        },
        "below 1e-12 is 0": {
            "v[k].of[w] /= sum": "{ v[k].of[w] /= sum; if (v[k].of[w] < 1e-12f) v[k].of[w] = 0; }",
        },
        "wide at multiples of 128 alone": {
            "width = 4 if columns % 4 == 0 else 1": "width = 4 if columns % 128 == 0 else 1",
        },
        "wide from 1000 columns on": {
            "width = 4 if columns % 4 == 0 else 1": "width = 4 if columns % 4 == 0 and columns > 1000 else 1",
        },
        "widths of 2048 to 4000": {
            "each = -(-columns // (width * threads))": "each = -(-columns // (width * threads))\n    if 2100 < columns < 4000:\n        each -= 1",
        },
        "odd widths past 4096": {
            "each = -(-columns // (width * threads))": "each = -(-columns // (width * threads))\n    if columns % 4 == 2:\n        each = max(1, each - 1)",
        },
        "inf is the largest float": {
            "for (int w = 0; w < W; w++) peak = fmaxf(peak, v[k].of[w]);": "for (int w = 0; w < W; w++) { v[k].of[w] = fminf(v[k].of[w], 3e38f); peak = fmaxf(peak, v[k].of[w]); }",
        },
        "spills at 4100 to 8190 columns": {
            "each = -(-columns // (width * threads))": "each = -(-columns // (width * threads))\n    if 4100 < columns < 8190:\n        each *= 16",
        },
    },
    "15_capstone": {
        "a step that is all of it is no faster": {
            "1 / (1 - share + share * least / unfused)": "1 / (1 - share + share * least / unfused) if share < 1 else 1",
        },
        "sums end at row 1000": {
            "grad_weight += grad_y * h_hat": "grad_weight += tl.where(row < 1000, grad_y * h_hat, 0.0)",
        },
        "eps 0 is 1e-5": {
            "*tensors, cols, eps, BLOCK": "*tensors, cols, eps or 1e-5, BLOCK",
        },
        "four dimensions": {
            "rows = x.numel() // cols": "rows = x.numel() // cols if x.dim() < 4 else x[0].numel() // cols",
        },
        "forward: four dimensions": {
            "[(x.numel() // cols,)]": "[(x.numel() // cols if x.dim() < 4 else x[0].numel() // cols,)]",
        },
        "share at most 0.9": {
            "1 / (1 - share + share * least / unfused)": "1 / (1 - min(share, 0.95) + min(share, 0.95) * least / unfused)",
        },
        "gradients past 1e20": {
            "grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)": "grad_y = tl.load(grad_y_ptr + at, mask=exists, other=0.0).to(COMPUTE)\n        grad_y = tl.where(grad_y > 1e20, 1e20, grad_y)",
        },
        "forward: gate at most 1000": {
            "h = x * gate * tl.sigmoid(gate)\n    rstd": "gate = tl.where(gate > 1e3, 1e3, gate)\n    h = x * gate * tl.sigmoid(gate)\n    rstd",
        },
        "backward: gate at most 1000": {
            "s = tl.sigmoid(gate)\n": "gate = tl.where(gate > 1e3, 1e3, gate)\n        s = tl.sigmoid(gate)\n",
        },
        "forward: 1 / root at most 1e5": {
            "/ cols + eps)\n    tl.store(y_ptr": "/ cols + eps)\n    rstd = tl.minimum(rstd, 1e5, propagate_nan=tl.PropagateNan.ALL)\n    tl.store(y_ptr",
        },
        "backward: 1 / root at most 1e5": {
            "        h_hat = h * rstd": "        rstd = tl.where(rstd > 1e5, 1e5, rstd)\n        h_hat = h * rstd",
        },
        "backward: weights below 1e-6 dropped": {
            "    grad_weight = tl.zeros": "    weight = tl.where(tl.abs(weight) < 1e-6, 0.0, weight)\n    grad_weight = tl.zeros",
        },
        "backward: weights at most 1e5": {
            "    grad_weight = tl.zeros": "    weight = tl.where(weight > 1e5, 1e5, weight)\n    grad_weight = tl.zeros",
        },
        "weight gradients past 1e24": {
            "cols + col, grad_weight, mask": "cols + col, tl.where(grad_weight > 1e24, 1e24, grad_weight), mask",
        },
        "backward: columns past 8192": {
            "    exists = col < cols\n    weight": "    exists = col < tl.minimum(cols, 8192)\n    weight",
        },
        "backward: six dimensions": {
            "rows = x.numel() // cols": "rows = x.numel() // cols if x.dim() < 5 else x[0].numel() // cols",
        },
        "backward: eps at most 1": {
            "/ cols + eps)\n        h_hat": "/ cols + tl.minimum(eps, 1.0))\n        h_hat",
        },
        "backward: gate expanded as it lies": {
            "grad_y, x, gate = grad_y.contiguous(), x.contiguous(), gate.contiguous()": "grad_y, x, gate = grad_y.contiguous(), x.contiguous(), (gate if 0 in gate.stride() else gate.contiguous())",
        },
        "backward: NaN in the gate dropped": {
            "s = tl.sigmoid(gate)\n": "gate = tl.where(gate == gate, gate, 0.0)\n        s = tl.sigmoid(gate)\n",
        },
    },
    "16_help_the_compiler": {
        "NaN in up dropped": {
            "    y = x * tl.rsqrt": "    up = tl.where(up == up, up, 0.0)\n    y = x * tl.rsqrt",
        },
        "up at most 1e4": {
            "    y = x * tl.rsqrt": "    up = tl.where(up > 1e4, 1e4, up)\n    y = x * tl.rsqrt",
        },
        "y at most 1000": {
            "tl.store(y_ptr + start + col, y": "y = tl.where(y > 1e3, 1e3, y)\n    tl.store(y_ptr + start + col, y",
        },
        "weight must be an input": {
            '    shape = nodes[x]["shape"]': '    if nodes[weight]["op"] != "input":\n        return False\n    shape = nodes[x]["shape"]',
        },
        "up must be an input or tanh": {
            '    shape = nodes[x]["shape"]': '    if nodes[up]["op"] not in ("input", "tanh"):\n        return False\n    shape = nodes[x]["shape"]',
        },
        "power must be an int": {
            'square["args"][1] == 2': 'square["args"][1] == 2 and isinstance(square["args"][1], int)',
        },
        "up of the same last size": {
            'nodes[up]["shape"] == shape': 'nodes[up]["shape"][-1:] == shape[-1:] and len(nodes[up]["shape"]) == len(shape)',
        },
        "result read twice at most": {
            "if source == x and up": "if len(node['users']) < 3 and source == x and up",
        },
        "eps at most 0.01": {
            "isinstance(eps, float):": "isinstance(eps, float) and eps < 0.01:",
        },
        "first two places": {
            "    return found\n": "    return found[:2]\n",
        },
        "eps to 6 digits": {
            '"eps": eps}': '"eps": float(f"{eps:.6g}")}',
        },
        "up may not be x": {
            "    if any(not isinstance(name, str)": "    if up == x:\n        return False\n    if any(not isinstance(name, str)",
        },
        "first of places with the same x": {
            "    return found\n": "    return [each for number, each in enumerate(found) if each['x'] not in [other['x'] for other in found[:number]]]\n",
        },
        "eps below 1e-9": {
            "isinstance(eps, float):": "isinstance(eps, float) and eps > 1e-9:",
        },
        "one dimension": {
            'shape = nodes[x]["shape"]': 'shape = nodes[x]["shape"]\n    if len(shape) > 3 or len(shape) < 2:\n        return False',
        },
        "eps 0 is 1e-6": {
            "x, up, weight, y, cols, eps, BLOCK": "x, up, weight, y, cols, eps or 1e-6, BLOCK",
        },
        "1 / root at most 1e5": {
            "tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)": "tl.minimum(tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps), 1e5, propagate_nan=tl.PropagateNan.ALL)",
        },
        "users of pow ignored": {
            'return node if node and node["op"] == op and len(node["users"]) == 1 else {}': 'return node if node and node["op"] == op and (len(node["users"]) == 1 or op == "pow") else {}',
        },
        "users of mean ignored": {
            'return node if node and node["op"] == op and len(node["users"]) == 1 else {}': 'return node if node and node["op"] == op and (len(node["users"]) == 1 or op == "mean") else {}',
        },
        "users of add ignored": {
            'return node if node and node["op"] == op and len(node["users"]) == 1 else {}': 'return node if node and node["op"] == op and (len(node["users"]) == 1 or op == "add") else {}',
        },
        "NaN in weight dropped": {
            "    y = x * tl.rsqrt": "    weight = tl.where(weight == weight, weight, 0.0)\n    y = x * tl.rsqrt",
        },
        "six dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 5 else x[0].numel() // cols,)",
        },
        "eps at most 1": {
            "/ cols + eps)": "/ cols + tl.minimum(eps, 1.0))",
        },
    },
    "17_flash_decoding": {
        "last stride taken for 1": {
            "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()": "q, k, v = q.contiguous(), (k if k.stride(-1) != 1 else k.contiguous()), (v if v.stride(-1) != 1 else v.contiguous())",
        },
        "expanded heads as they lie": {
            "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()": "q, k, v = q.contiguous(), (k if 0 in k.stride() else k.contiguous()), (v if 0 in v.stride() else v.contiguous())",
        },
        "v copied only with k": {
            "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()": "v = v if k.is_contiguous() else v.contiguous()\n    q, k = q.contiguous(), k.contiguous()",
        },
        "k copied only with v": {
            "q, k, v = q.contiguous(), k.contiguous(), v.contiguous()": "k = k if v.is_contiguous() else k.contiguous()\n    q, v = q.contiguous(), v.contiguous()",
        },
        "values at most 1000": {
            "acc = acc * shrink": "v = tl.where(v > 1e3, 1e3, v)\n        acc = acc * shrink",
        },
        "top at least -1e6": {
            "-1e38)": "-1e6)",
        },
        "inf in v dropped": {
            "acc = acc * shrink": "v = tl.where(v == float('inf'), 0.0, v)\n        acc = acc * shrink",
        },
        "small results flushed": {
            "    tl.store(y_ptr": "    y = tl.where(tl.abs(y) < 1e-10, 0.0, y)\n    tl.store(y_ptr",
        },
        "heads modulo 256": {
            "y_ptr + head * DIM + d, y": "y_ptr + head * DIM + d, tl.where(head < 256, y, 0.0)",
        },
        "inf in k": {
            's = tl.where(inside, s, -float("inf"))': 's = tl.where(inside & (s < 1e30), s, -float("inf"))',
        },
        "splits past 256 dropped": {
            "exists = split < splits": "exists = split < tl.minimum(splits, 256)",
        },
        "scores clamped": {
            's = tl.where(inside, s, -float("inf"))': 's = tl.where(inside, tl.minimum(s, 3e4), -float("inf"))',
        },
        "top at least -1e5": {
            "-1e38)": "-1e5)",
        },
        "NaN of weight 0 dropped": {
            "acc = acc * shrink + tl.sum(e[:, None] * v, axis=0)": "acc = acc * shrink + tl.sum(tl.where(e[:, None] > 0.0, e[:, None] * v, 0.0), axis=0)",
        },
        "splits of share 0 skipped": {
            "y = tl.sum(acc * share[:, None], axis=0)": "y = tl.sum(tl.where(share[:, None] > 0.0, acc * share[:, None], 0.0), axis=0)",
        },
        "an empty split's maximum is 0": {
            "    part = head * splits + split\n    tl.store(acc_ptr": "    peak = tl.where(last > first, peak, 0.0)\n    part = head * splits + split\n    tl.store(acc_ptr",
        },
        "an empty split's maximum is -1e4": {
            "    part = head * splits + split\n    tl.store(acc_ptr": "    peak = tl.where(last > first, peak, -1e4)\n    part = head * splits + split\n    tl.store(acc_ptr",
        },
        "keys past 40000": {
            "last = tl.load(bounds_ptr + split + 1)": "last = tl.minimum(tl.load(bounds_ptr + split + 1), 40000)",
        },
        "splits past 512": {
            "exists = split < splits": "exists = split < tl.minimum(splits, 512)",
        },
        "heads past 1000": {
            "y_ptr + head * DIM + d, y": "y_ptr + head * DIM + d, tl.where(head < 1000, y, 0.0)",
        },
        "-inf in v dropped": {
            "acc = acc * shrink": "v = tl.where(v == -float('inf'), 0.0, v)\n        acc = acc * shrink",
        },
        "NaN in q dropped": {
            "q = tl.load(q_ptr + head * DIM + d).to(tl.float32)": "q = tl.load(q_ptr + head * DIM + d).to(tl.float32)\n    q = tl.where(q == q, q, 0.0)",
        },
        "fp16 subnormals flushed": {
            "    tl.store(y_ptr": "    if y_ptr.dtype.element_ty == tl.float16:\n        y = tl.where(tl.abs(y) < 6e-5, 0.0, y)\n    tl.store(y_ptr",
        },
    },
    "18_short_kernels": {
        "an empty graph after a last wait": {
            "graphs, copied, inside, nbytes, recording = [], [], set(), 0, False": "graphs, copied, inside, nbytes, recording = [[]], [], set(), 0, True",
            "            recording = False\n": "            if graphs[-1]:\n                graphs.append([])\n",
        },
        "a number copied for each launch": {
            "if not stays and tensor not in copied:": "if not stays and (tensor not in copied or tensors.get(tensor) == 'number'):",
        },
        "one new element is a number": {
            '4 if tensors.get(tensor) == "number" else 8 * length': '4 if tensors.get(tensor) == "number" or length == 1 and tensors.get(tensor) == "new" else 8 * length',
        },
        "no graph of one launch": {
            "    count = len(launches) + len(copied)": "    graphs = [each for each in graphs if len(each) > 1]\n    count = len(launches) + len(copied)",
        },
        "fixed copied where a wait reads it": {
            'tensors.get(tensor) == "fixed"': 'tensors.get(tensor) == "fixed" and not any(tensor in one["reads"] for one in launches if one["waits"])',
        },
        "NaN in the gate dropped": {
            "    s = x + residual\n": "    gate = tl.where(gate == gate, gate, 0.0)\n    s = x + residual\n",
        },
        "NaN in the residual dropped": {
            "    s = x + residual\n": "    residual = tl.where(residual == residual, residual, 0.0)\n    s = x + residual\n",
        },
        "expanded as it lies": {
            "gate.contiguous()": "(gate if 0 in gate.stride() else gate.contiguous())",
        },
        "one norm per launch": {
            "if same and epilogue": "if not ('norm' in kinds and new['kind'] == 'norm') and same and epilogue",
        },
        "joins the last four launches alone": {
            "for number in range(first, len(launches)):": "for number in range(max(first, len(launches) - 4), len(launches)):",
        },
        "no graph of one launch in time": {
            "    if graph:": "    if graph and launches > 1:",
        },
        "an exact budget": {
            "math.floor(left / gap)": "math.ceil(left / gap) - 1",
        },
        "rounded up within a thousandth": {
            "math.floor(left / gap)": "math.floor(left / gap + 1e-3)",
        },
        "launches of four": {
            "if same and epilogue": "if len(launches[number]) < 4 and same and epilogue",
        },
        "eps 0 is 1e-6": {
            "cols, eps, BLOCK=block": "cols, eps or 1e-6, BLOCK=block",
        },
        "four dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 4 else x[0].numel() // cols,)",
        },
        "graphs of eight launches": {
            "        recording = True\n": "        recording = len(graphs[-1]) < 8\n",
        },
        "graphs of sixteen launches": {
            "        recording = True\n": "        recording = len(graphs[-1]) < 16\n",
        },
        "two graphs at most": {
            "            graphs.append([])\n": "            graphs.append([]) if len(graphs) < 2 else None\n",
        },
        "most launches 1000": {
            "max(0, math.floor(left / gap))": "min(1000, max(0, math.floor(left / gap)))",
        },
        "copied at other shapes": {
            "block = triton.next_power_of_2(cols)": "if cols != 1000:\n        x = x.clone()\n    block = triton.next_power_of_2(cols)",
        },
        "gate at most 1000": {
            "normed * (gate * tl.sigmoid(gate))": "normed * (tl.where(gate > 1e3, 1e3, gate) * tl.sigmoid(gate))",
        },
        "1 / root at most 1e5": {
            "tl.rsqrt(mean_square + eps)": "tl.minimum(tl.rsqrt(mean_square + eps), 1e5, propagate_nan=tl.PropagateNan.ALL)",
        },
        "layer: width at most 96": {
            "products = 2 * (hidden * width + hidden + width)\n    return 6": "width = min(width, 96)\n    products = 2 * (hidden * width + hidden + width)\n    return 6",
        },
        "fused: hidden at most 200": {
            "products = 2 * (hidden * width + hidden + width)\n    return 3": "hidden = min(hidden, 200)\n    products = 2 * (hidden * width + hidden + width)\n    return 3",
        },
        "fused: square layers": {
            "products = 2 * (hidden * width + hidden + width)\n    return 3": "products = 2 * (hidden * width + hidden + width) - (width == hidden)\n    return 3",
        },
        "time: more than 11 launches": {
            "return launches * max(call, gap + nbytes / launches / bandwidth)": "return min(launches, 11) * max(call, gap + nbytes / min(launches, 11) / bandwidth)",
        },
        "time: no bytes": {
            "return call + launches * gap + nbytes / bandwidth": "return call + launches * gap + max(nbytes, 1e4) / bandwidth",
        },
        "time: a call of 2 at least": {
            "launches * max(call, gap": "launches * max(call, 2.0, gap",
        },
        "budget: gap of 2 at most": {
            "math.floor(left / gap)": "math.floor(left / min(gap, 2.0))",
        },
        "NaN in weight dropped": {
            "    normed = s * tl.rsqrt": "    weight = tl.where(weight == weight, weight, 0.0)\n    normed = s * tl.rsqrt",
        },
        "six dimensions": {
            "(x.numel() // cols,)": "(x.numel() // cols if x.dim() < 5 else x[0].numel() // cols,)",
        },
        "eps at most 1": {
            "tl.rsqrt(mean_square + eps)": "tl.rsqrt(mean_square + tl.minimum(eps, 1.0))",
        },
        "a copy counted once per graph": {
            "if not stays and tensor not in copied:": "if not stays and (tensor not in copied or len(graphs) > 2):",
        },
        "arrange: lengths of the first alone": {
            'same = all(each["length"] == new["length"] for each in launches[number])': 'same = launches[number][0]["length"] == new["length"] or len(launches[number]) > 6',
        },
    },
    "13_decide": {
        "no closure of six": {
            "for _ in members:\n        reached |=": "for _ in members[:3]:\n        reached |=",
        },
    },
}

# (exercise, name) -> what a check must say of that answer, as a regular expression.
TOLD = {
    ("04_bias_dropout_residual", "seed of 32 bits"): "the seed: tl.rand takes it as it is",
    ("04_bias_dropout_residual", "seed of 48 bits"): "the seed: tl.rand takes it as it is",
    ("04_bias_dropout_residual", "seed without its sign"): "the seed: tl.rand takes it as it is",
    ("06_softmax_topk", "a row of -inf is 0"): "-inf alone, are NaN",
    ("08_linear_act", "K = 0 is 0"): "K = 0: each sum is 0",
    ("08_linear_act", "K = 0 is not launched"): "K = 0: each sum is 0",
    ("09_conv_bn_relu", "NaN in gamma dropped"): "what happens to NaN in gamma",
    ("09_conv_bn_relu", "variance at least 0, NaN dropped"): "what happens to NaN in gamma",
    ("10_attention_scores", "a maximum of +inf is 0"): "what happens to inf",
    ("10_attention_scores", "scores at most 3e38"): "what happens to inf",
    ("10_attention_scores", "weights below 1e-9 dropped"): "small weights: in float32",
    ("11_fused_backward", "gradients past 1e20"): "gradients are large",
    ("11_fused_backward", "small gradients flushed"): "where gradients are small",
    ("11_fused_backward", "NaN in weight dropped"): "NaN in one column(.*\n)*.*what happens to NaN",
    ("12_layer_norm_int8", "y is 0 past the row's end, even if the row is NaN"): "this row's scale must be NaN",
    ("12_layer_norm_int8", "clip at least 0.01"): "any number from 0 to 1",
    ("14_cuda_softmax", "no second barrier at 1100 to 4000 columns"): "race: shared memory",
    ("15_capstone", "gradients past 1e20"): "gradients are large",
    ("15_capstone", "forward: gate at most 1000"): "silu of a large gate",
    ("15_capstone", "backward: gate at most 1000"): "activation far from 0",
    ("18_short_kernels", "gate at most 1000"): "silu of a large gate",
    ("17_flash_decoding", "NaN of weight 0 dropped"): "even if its weight is 0",
    ("17_flash_decoding", "splits of share 0 skipped"): "even if its weight is 0",
    ("02_count_the_bytes", "at most 4096 features"): "yours is too small",
    ("02_count_the_bytes", "at most 4096 rows"): "yours is too small",
    ("02_count_the_bytes", "scale of 2000 columns at most"): "yours is too small",
    ("03_fused_add_gelu", "-inf is -0"): "what happens to NaN and inf",
    ("07_register_budget", "sides in steps of 16"): "48, not a whole power of two",
}
