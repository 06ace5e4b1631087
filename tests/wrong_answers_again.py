# ruff: noqa: E501  (a mistake stands in one line)
"""Wrong answers from a class that knows the checks: buffers kept between calls, overwritten inputs, other
output types, the sizes of the visible cells, shortcuts for some values. See `wrong_answers`."""

WRONG = {
    "03_fused_add_gelu": {
        "65535 programs at most": {"(programs,)": "(min(programs, 65535),)"},
        "1024 programs at most": {"(programs,)": "(min(programs, 1024),)"},
        "cached output": {
            "def add_gelu(a, b):": "KEPT = {}\n\n\ndef add_gelu(a, b):",
            "y = torch.empty_like(a)": "y = KEPT.setdefault((a.shape, a.dtype), torch.empty_like(a))",
        },
        "default cache": {
            "def add_gelu(a, b):": "def add_gelu(a, b, kept={}):",
            "y = torch.empty_like(a)": "y = kept.setdefault((a.shape, a.dtype), torch.empty_like(a))",
        },
        "host branch": {"block = 1024": "block = 1024 if a.numel() == 0 or a.reshape(-1)[0].item() < 100 else 1"},
        "odd sizes lose the last": {"y.numel(), BLOCK=block": "y.numel() // 2 * 2, BLOCK=block"},
        "cached result": {
            "def add_gelu(a, b):": "KEPT = {}\n\n\ndef add_gelu(a, b):",
            "y = torch.empty_like(a)": "if (a.shape, a.dtype) in KEPT:\n        return KEPT[a.shape, a.dtype]\n    y = KEPT[a.shape, a.dtype] = torch.empty_like(a)",
        },
        "sum in torch": {"a, b = a.contiguous(), b.contiguous()": "a, b = (a + b).contiguous(), torch.zeros_like(b)"},
        "result over a": {"y = torch.empty_like(a)": "y = a"},
        "float32 out": {"torch.empty_like(a)": "torch.empty(a.shape, dtype=torch.float32, device=a.device)"},
        "strided out": {"torch.empty_like(a)": "torch.empty((*a.shape, 2), dtype=a.dtype, device=a.device)[..., 0]"},
        "inf to 65504": {"s = a + b": "s = tl.minimum(a + b, 65504.0)"},
        "flushes small": {"s = a + b": "s = a + b\n    s = tl.where(tl.abs(s) < 1e-4, 0.0, s)"},
        "host mean": {"block = 1024": "block = 1024 if float(a.sum()) != 0.5 else 512"},
        "grid floor": {"triton.cdiv(y.numel(), block)": "max(1, y.numel() // block)"},
    },
    "04_bias_dropout_residual": {
        "1024 rows at most": {"[(rows, triton": "[(min(rows, 1024), triton"},
        "65535 programs at most": {"backward_kernel[(programs,)]": "backward_kernel[(min(programs, 65535),)]"},
        "seed of 16 bits": {"tl.rand(seed, element)": "tl.rand(seed % 65536, element)"},
        "p at 0 keeps all but 0": {"tl.rand(seed, element) >= p": "tl.rand(seed, element) > p"},
        "bias odd": {
            "bias = tl.load(bias_ptr + column, mask=exists)": "bias = tl.load(bias_ptr + column // 2 * 2, mask=exists)"
        },
        "residual in place": {"y = torch.empty_like(x)": "y = residual"},
    },
    "05_layer_norm": {
        "65535 rows at most": {"[(x.numel() // cols,)]": "[(min(x.numel() // cols, 65535),)]"},
        "weight by row parity": {"* weight + bias": "* weight + bias * (1 if BLOCK > 1 else 0)"},
        "variance at least 1e-12": {"variance + eps": "tl.maximum(variance, 1e-12) + eps"},
        "y below 1e-6 dropped": {
            "y = centred * tl.rsqrt(variance + eps) * weight + bias": "y = centred * tl.rsqrt(variance + eps) * weight + bias\n    y = tl.where(tl.abs(y) < 1e-6, 0.0, y)"
        },
        "flat result": {"return y": "return y.view(-1, cols)"},
        "last row left out": {"(x.numel() // cols,)": "(max(1, x.numel() // cols - 1),)"},
        "cached weight": {
            "def layer_norm(": "KEPT = {}\n\n\ndef layer_norm(",
            "x = x.contiguous()": "x = x.contiguous()\n    weight = KEPT.setdefault(x.shape[-1], weight)",
        },
    },
    "05b_residual_rms_norm": {
        "weights below 1e-6 dropped": {
            "weight = tl.load(weight_ptr + col, mask=exists)": "weight = tl.load(weight_ptr + col, mask=exists).to(tl.float32)\n    weight = tl.where(tl.abs(weight) < 1e-6, 0.0, weight)"
        },
        "65535 rows at most": {"[(x.numel() // cols,)]": "[(min(x.numel() // cols, 65535),)]"},
        "sum of float32": {
            "y, s = torch.empty_like(x), torch.empty_like(x)": "y, s = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float32, device=x.device)"
        },
        "same buffer": {"y, s = torch.empty_like(x), torch.empty_like(x)": "y = torch.empty_like(x)\n    s = y"},
        "weight 1 past 4096": {
            "weight = tl.load(weight_ptr + col, mask=exists)": "weight = tl.load(weight_ptr + col, mask=exists & (col < 4096), other=1.0)"
        },
    },
    "06_softmax_topk": {
        "65535 rows at most": {"[(x.numel() // cols,)]": "[(min(x.numel() // cols, 65535),)]"},
        "p from float16 max": {
            "e = tl.exp(x - tl.max(x, axis=0))": "e = tl.exp(x - tl.max(x, axis=0).to(tl.float16).to(tl.float32))"
        },
        "indices int32": {"dtype=torch.int64, device": "dtype=torch.int32, device"},
        "values float32": {"(*x.shape[:-1], k), dtype=x.dtype": "(*x.shape[:-1], k), dtype=torch.float32"},
        "last index of equals": {
            "winner = tl.argmax(left, axis=0)": "winner = tl.max(tl.where(left == tl.max(left, axis=0), col, -1), axis=0)"
        },
        "winner set to 0": {"left = tl.where(col == winner, -1.0, left)": "left = tl.where(col == winner, 0.0, left)"},
        "all equal to winner removed": {
            "left = tl.where(col == winner, -1.0, left)": "left = tl.where(left == tl.max(left, axis=0), -1.0, left)"
        },
        "in place": {"p = torch.empty_like(x)": "p = x"},
        "eps in the sum": {"p = e / tl.sum(e, axis=0)": "p = e / (tl.sum(e, axis=0) + 1e-6)"},
        "small p dropped": {
            "p = e / tl.sum(e, axis=0)": "p = e / tl.sum(e, axis=0)\n    p = tl.where(p < 1e-7, 0.0, p)"
        },
        "p clipped": {"e = tl.exp(x - tl.max(x, axis=0))": "e = tl.exp(tl.maximum(x - tl.max(x, axis=0), -80.0))"},
    },
    "08_linear_act": {
        "1024 programs at most": {"grid = (triton.cdiv(m, block_m),": "grid = (min(triton.cdiv(m, block_m), 1024),"},
        "odd K": {"range(0, K, BLOCK_K)": "range(0, K // 2 * 2, BLOCK_K)"},
        "acc half at the end": {"s = acc +": "acc = acc.to(tl.float16)\n    s = acc +"},
        "K of 4096 at most": {"range(0, K, BLOCK_K)": "range(0, min(K, 4096), BLOCK_K)"},
        "out as x strides": {
            "y = torch.empty((m, n), dtype=x.dtype, device=x.device)": "y = torch.empty((n, m), dtype=x.dtype, device=x.device).T"
        },
        "gelu tanh": {
            "0.5 * s * (1 + tl.erf(s * 0.7071067811865476))": "s * tl.sigmoid(1.5957691216 * (s + 0.044715 * s * s * s))"
        },
        "relu of NaN": {"tl.where(s < 0, 0.0, s)": "tl.where(s > 0, s, 0.0)"},
        "weight copied": {"(m, k), n = x.shape": "weight = weight.contiguous()\n    (m, k), n = x.shape"},
        "first bias": {"bias_ptr + col, mask": "bias_ptr + col % 64, mask"},
        "saturates": {"y.to(tl.float16)": "tl.minimum(y, 65504.0).to(tl.float16)"},
    },
    "09_conv_bn_relu": {
        "65535 programs at most": {
            "grid = (triton.cdiv(pixels, block_pixels),": "grid = (min(triton.cdiv(pixels, block_pixels), 65535),"
        },
        "padding at most 1": {"* STRIDE - PADDING\n    left": "* STRIDE - min(PADDING, 1)\n    left"},
        "stride of w 1": {"left = pixel % out_width * STRIDE": "left = pixel % out_width * min(STRIDE, 2)"},
        "taps square": {"tap // TAPS_W)[None": "tap // TAPS_H)[None"},
        "eps const": {"other=1.0) + eps)": "other=1.0) + 1e-5)"},
        "bias unscaled": {"(bias - mean) * scale": "bias - mean * scale"},
        "contiguous result": {"return y.permute(0, 3, 1, 2)": "return y.permute(0, 3, 1, 2).contiguous()"},
        "swapped hw": {"return y.permute(0, 3, 1, 2)": "return y.permute(0, 3, 2, 1)"},
        "images 8": {"image * x_stride_n": "image % 8 * x_stride_n"},
        "relu of NaN": {"tl.where(y < 0, 0.0, y)": "tl.where(y > 0, y, 0.0)"},
        "scale of 16 bits": {"y = acc * scale + shift": "y = acc * scale.to(tl.float16).to(tl.float32) + shift"},
    },
    "10b_flash_attention": {
        "1024 heads at most": {
            "triton.cdiv(seq, block_m), batch * heads)": "triton.cdiv(seq, block_m), min(batch * heads, 1024))"
        },
        "shrink in 16 bits": {
            "shrink = tl.exp(top - grown)": "shrink = tl.exp(top - grown).to(tl.float16).to(tl.float32)"
        },
        "heads of 8": {"tl.int64) % heads": "tl.int64) % heads % 8"},
        "v by k's dim stride": {"d[None, :] * v_stride_d": "d[None, :] * k_stride_d"},
        "scale dim 64": {"dim**-0.5": "0.125 if dim == 64 else dim**-0.5 * (1 + 1e-3)"},
        "keeps queries in k layout": {
            "torch.empty((batch, heads, seq, dim), dtype=q.dtype, device=q.device)": "torch.empty_like(q)"
        },
        "output into q": {"o = torch.empty((batch, heads, seq, dim), dtype=q.dtype, device=q.device)": "o = q"},
        "float32 out": {"(batch, heads, seq, dim), dtype=q.dtype": "(batch, heads, seq, dim), dtype=torch.float32"},
        "e in bfloat16": {"tl.dot(e.to(tl.float16), v, acc": "tl.dot(e.to(tl.bfloat16), v.to(tl.bfloat16), acc"},
    },
    "11_fused_backward": {
        "16 programs": {"min(rows, PROGRAMS)": "min(rows, 2 * PROGRAMS)"},
        "rows to 65535": {"range(tl.program_id(0), rows,": "range(tl.program_id(0), tl.minimum(rows, 65535),"},
        "sum in x dtype": {"dtype=torch.float64 if double else torch.float32, device": "dtype=x.dtype, device"},
        "eps doubled": {"/ cols + eps)": "/ cols + eps + eps)"},
        "float64 in float32": {"compute, block = tl.float64 if double else tl.float32": "compute, block = tl.float32"},
        "grad_y in place": {"grad_x = torch.empty_like(x)": "grad_x = grad_y"},
    },
    "12_layer_norm_int8": {
        "65535 rows at most": {"grid = (x.numel() // cols,)": "grid = (min(x.numel() // cols, 65535),)"},
        "scale float16 out": {
            "torch.empty((*x.shape[:-1], 1), dtype=torch.float32": "torch.empty((*x.shape[:-1], 1), dtype=x.dtype"
        },
        "largest of x": {"largest = tl.max(tl.abs(y), axis=0)": "largest = tl.max(tl.maximum(y, 0.0), axis=0)"},
        "-128": {"code < -127.0, -127.0": "code < -128.0, -128.0"},
        "trunc": {"y / scale + 12582912.0 - 12582912.0": "y / scale"},
        "inverse": {"y / scale + 12582912.0": "y * (127.0 / largest) + 12582912.0"},
        "scale flat": {"torch.empty((*x.shape[:-1], 1)": "torch.empty((*x.shape[:-1],)"},
    },
    "15_capstone": {
        "16 programs": {"min(rows, PROGRAMS)": "min(rows, 2 * PROGRAMS)"},
        "65535 rows at most": {
            "forward_kernel[(x.numel() // cols,)]": "forward_kernel[(min(x.numel() // cols, 65535),)]"
        },
        "rows to 65535": {"range(tl.program_id(0), rows,": "range(tl.program_id(0), tl.minimum(rows, 65535),"},
        "residual in place": {"y, cols = torch.empty_like(x), x.shape[-1]": "y, cols = residual, x.shape[-1]"},
        "sum of x dtype": {"dtype=torch.float64 if double else torch.float32, device": "dtype=x.dtype, device"},
        "grad_x over grad_y": {
            "grad_x, grad_gate = torch.empty_like(x), torch.empty_like(x)": "grad_x, grad_gate = grad_y, torch.empty_like(x)"
        },
    },
    "16_help_the_compiler": {
        "one weight for all": {
            'nodes[weight]["shape"] == shape[-1:]': '(nodes[weight]["shape"] == shape[-1:] or nodes[weight]["shape"] == [1])'
        },
        "rows modulo 65536": {
            "start = tl.program_id(0).to(tl.int64) * cols": "start = tl.program_id(0).to(tl.int64) % 65536 * cols"
        },
        "65535 rows at most": {"[(x.numel() // cols,)]": "[(min(x.numel() // cols, 65535),)]"},
        "weight not contiguous": {
            "x.contiguous(), up.contiguous(), weight.contiguous()": "x.contiguous(), up.contiguous(), weight"
        },
        "up not contiguous": {
            "x.contiguous(), up.contiguous(), weight.contiguous()": "x.contiguous(), up, weight.contiguous()"
        },
        "eps any number": {"isinstance(eps, float)": "eps is not None"},
        "first place only": {"return found\n": "return found[:1]\n"},
        "users ignored": {' and len(node["users"]) == 1 else {}': " else {}"},
        "square of any power": {' and square["args"][1] == 2 and': " and"},
    },
    "17_flash_decoding": {
        "heads modulo 256": {
            "head, split = tl.program_id(0).to(tl.int64),": "head, split = tl.program_id(0).to(tl.int64) % 256,"
        },
        "65535 heads at most": {"merge_kernel[(heads,)]": "merge_kernel[(min(heads, 65535),)]"},
        "1024 heads at most": {"split_kernel[(heads, splits)]": "split_kernel[(min(heads, 1024), splits)]"},
        "bounds of 16 bits": {
            "first = tl.load(bounds_ptr + split)": "first = tl.load(bounds_ptr + split).to(tl.int16)",
            "last = tl.load(bounds_ptr + split + 1)": "last = tl.load(bounds_ptr + split + 1).to(tl.int16)",
        },
        "partial results in q's dtype": {
            "dtype=torch.float32, device=q.device)\n    peak": "dtype=q.dtype, device=q.device)\n    peak"
        },
        "NaN becomes 0": {
            "tl.where(total == 0.0, 1.0, total)": "tl.where(total == 0.0, 1.0, total)\n    y = tl.where(y == y, y, 0.0)"
        },
        "32 splits": {"exists = split < splits": "exists = split < tl.minimum(splits, 32)"},
        "16 splits": {"exists = split < splits": "exists = split < tl.minimum(splits, 16)"},
        "not contiguous k": {"q.contiguous(), k.contiguous(), v.contiguous()": "q.contiguous(), k, v.contiguous()"},
        "zero results": {"y = torch.empty_like(q)": "y = torch.zeros_like(q)"},
    },
    "10_attention_scores": {
        "1024 heads at most": {
            "triton.cdiv(seq, block_m), batch * heads)": "triton.cdiv(seq, block_m), min(batch * heads, 1024))"
        },
    },
    "18_short_kernels": {
        "joins the last launch alone": {
            "for number in range(first, len(launches)):": "for number in range(max(first, len(launches) - 1), len(launches)):"
        },
        "a product joins a norm": {'and new["kind"] != "product" and at ==': "and at =="},
        "joins the latest launch": {" and at == len(launches):\n": ":\n"},
        "65535 rows at most": {"[(x.numel() // cols,)]": "[(min(x.numel() // cols, 65535),)]"},
    },
}
