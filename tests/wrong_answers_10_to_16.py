# ruff: noqa: E501  (a mistake stands in one line)
"""Wrong answers to exercises 10 to 16, as learners or a cheating class might try them: see `wrong_answers`."""

LOW = ".to(x_ptr.dtype.element_ty).to(tl.float32)"
LOWC = ".to(x_ptr.dtype.element_ty).to(COMPUTE)"
SCORES = 's = tl.where(seen, tl.dot(q, k) * scale, -float("inf"))'
SEEN = "seen = valid[None, :] & (key[None, :] <= query[:, None])"
SAFE_TOP = 'safe = tl.where(top == -float("inf"), 0.0, top)'
SAFE_GROWN = 'safe = tl.where(grown == -float("inf"), 0.0, grown)'
SUM = "total = total * tl.exp(top - safe) + tl.sum(tl.exp(s - safe[:, None]), axis=1)"
WALK = "for start in range(0, tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M), BLOCK_N):"
VALID = "valid = tl.load(valid_ptr + batch * seq + key, mask=key < seq, other=0) != 0"
SHARE = "share = tl.where(total == 0, 0.0, 1.0 / total)"
P = "p = tl.exp(s - safe[:, None]) * share[:, None]"
HEAD = "head = tl.program_id(1).to(tl.int64) % heads"
BATCH = "batch = tl.program_id(1).to(tl.int64) // heads"
QUERY = "query = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)"
FLASH_SUM = "total = total * shrink + tl.sum(e, axis=1)"
FLASH_E = "e = tl.exp(s - grown[:, None])"
FLASH_ACC = "acc = tl.dot(e.to(tl.float16), v, acc * shrink[:, None])"
FLASH_SEEN = "seen = seen & (key[None, :] <= query[:, None])"
FLASH_LAST = "last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else seq"
GRAD_Z = "grad_z = grad_y * (gate + 1.702 * z * gate * (1.0 - gate))"
GRAD_X = "rstd * (along - shift - x_hat * stretch)"
OF_WEIGHT = "grad_weight += grad_z * x_hat"
OF_BIAS = "grad_bias += grad_z"
ROWS = "for row in range(tl.program_id(0), rows, tl.num_programs(0)):"
SUMS = "dtype=torch.float64 if double else torch.float32, device"
CENTRED = "centred = tl.where(exists, x - tl.sum(x, axis=0) / cols, 0.0)"
RSTD = "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)"
PROGRAMS = "programs = max(1, min(rows, PROGRAMS))"
CODE = "code = y / scale + 12582912.0 - 12582912.0"
LARGEST = "largest = tl.max(tl.abs(y), axis=0)"
Y8 = "y = centred * rstd * weight + bias"
SCALE8 = "scale = clip * largest / 127.0"
PEAK = "float peak = -INFINITY, sum = 0;"
EXPF = "__expf(v[k].of[w] - peak)"
H = "h = x * gate * tl.sigmoid(gate)"
Y15 = "h * rstd * weight + residual"
H_BACK = "h = x * gate * s\n"
GRAD_H = "grad_h = rstd * (along - h_hat * stretch)"
OF_GATE = "grad_h * x * s * (1.0 + gate * (1.0 - s))"
OF_W15 = "grad_weight += grad_y * h_hat"
STRETCH = "stretch = tl.sum(along * h_hat, axis=0) / cols"
NORM16 = "y = x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps) * weight"
STORE16 = "y * tl.sigmoid(y) * up"
UNFUSED = "unfused = 4 * (15 * n + 6 * rows + columns)"
AMDAHL = "1 / (1 - share + share * least / unfused)"

WRONG = {
    "10_attention_scores": {
        "four heads": {HEAD: "head = tl.program_id(1).to(tl.int64) % heads % 4"},
        "the fourth head for all later": {HEAD: "head = tl.minimum(tl.program_id(1).to(tl.int64) % heads, 3)"},
        "the first head": {HEAD: "head = tl.program_id(1).to(tl.int64) * 0"},
        "the first batch": {BATCH: "batch = tl.program_id(1).to(tl.int64) * 0"},
        "two batches": {BATCH: "batch = tl.program_id(1).to(tl.int64) // heads % 2"},
        "j < i": {SEEN: "seen = valid[None, :] & (key[None, :] < query[:, None])"},
        "keys after the query": {SEEN: "seen = valid[None, :] & (key[None, :] >= query[:, None])"},
        "no causal mask": {SEEN: "seen = valid[None, :] & (key[None, :] < seq)"},
        "one key too many": {SEEN: "seen = valid[None, :] & (key[None, :] <= query[:, None] + 1)"},
        "first valid row for all": {VALID: "valid = tl.load(valid_ptr + key, mask=key < seq, other=0) != 0"},
        "valid by head": {
            VALID: "valid = tl.load(valid_ptr + tl.program_id(1) * seq + key, mask=key < seq, other=0) != 0"
        },
        "valid unmasked": {VALID: "valid = tl.load(valid_ptr + batch * seq + key) != 0"},
        "hidden -1e4": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, -1e4)"},
        "hidden -1e9": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, -1e9)"},
        "hidden -65504": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, -65504.0)"},
        "hidden 0": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, 0.0)"},
        "score added, not replaced": {SCORES: "s = tl.dot(q, k) * scale + tl.where(seen, 0.0, -1e5)"},
        "score times mask": {SCORES: "s = tl.dot(q, k) * scale * seen - 1e5 * (1 - seen.to(tl.float32))"},
        "scale twice": {SCORES: 's = tl.where(seen, tl.dot(q, k) * scale * scale, -float("inf"))'},
        "scale of dim 16": {SCORES: 's = tl.where(seen, tl.dot(q, k) * 0.25, -float("inf"))'},
        "score rounded": {
            SCORES: 's = tl.where(seen, (tl.dot(q, k) * scale).to(tl.float16).to(tl.float32), -float("inf"))'
        },
        "product rounded": {
            SCORES: 's = tl.where(seen, tl.dot(q, k).to(tl.float16).to(tl.float32) * scale, -float("inf"))'
        },
        "score of bfloat16": {
            SCORES: 's = tl.where(seen, (tl.dot(q, k) * scale).to(tl.bfloat16).to(tl.float32), -float("inf"))'
        },
        "operands of bfloat16": {
            SCORES: 's = tl.where(seen, tl.dot(q.to(tl.bfloat16), k.to(tl.bfloat16)) * scale, -float("inf"))'
        },
        "clipped scores": {SCORES: 's = tl.where(seen, tl.minimum(tl.dot(q, k) * scale, 1000.0), -float("inf"))'},
        "clipped at 80": {SCORES: 's = tl.where(seen, tl.minimum(tl.dot(q, k) * scale, 80.0), -float("inf"))'},
        "top from -1e4": {
            'top = tl.full((BLOCK_M,), -float("inf"), tl.float32)': "top = tl.full((BLOCK_M,), -1e4, tl.float32)"
        },
        "top from -100": {
            'top = tl.full((BLOCK_M,), -float("inf"), tl.float32)': "top = tl.full((BLOCK_M,), -100.0, tl.float32)"
        },
        "maximum of the last tile": {"grown = tl.maximum(top, tl.max(s, axis=1))": "grown = tl.max(s, axis=1)"},
        "maximum along queries": {
            "grown = tl.maximum(top, tl.max(s, axis=1))": "grown = tl.maximum(top, tl.max(tl.max(s, axis=0), axis=0))"
        },
        "total in 16 bits": {
            SUM: "total = (total * tl.exp(top - safe) + tl.sum(tl.exp(s - safe[:, None]), axis=1))"
            ".to(tl.float16).to(tl.float32)"
        },
        "exponentials in 16 bits": {
            SUM: "total = total * tl.exp(top - safe) + tl.sum(tl.exp(s - safe[:, None])"
            ".to(tl.float16).to(tl.float32), axis=1)"
        },
        "rescaled after": {SUM: "total = (total + tl.sum(tl.exp(s - safe[:, None]), axis=1)) * tl.exp(top - safe)"},
        "rescaled the other way": {
            SUM: "total = total * tl.exp(safe - top) + tl.sum(tl.exp(s - safe[:, None]), axis=1)"
        },
        "weights in 16 bits": {P: "p = (tl.exp(s - safe[:, None]) * share[:, None]).to(tl.float16)"},
        "weights cut to 0": {
            P: "p = tl.exp(s - safe[:, None]) * share[:, None]\n        p = tl.where(p < 1e-5, 0.0, p)"
        },
        "weights at most 0.999": {P: "p = tl.minimum(tl.exp(s - safe[:, None]) * share[:, None], 0.999)"},
        "share with an eps": {SHARE: "share = 1.0 / (total + 1e-6)"},
        "rows without a key are NaN": {SHARE: "share = 1.0 / total"},
        "walk of one tile": {WALK: "for start in range(0, BLOCK_N, BLOCK_N):"},
        "stores one tile": {"for start in range(0, seq, BLOCK_N):": "for start in range(0, BLOCK_N, BLOCK_N):"},
        "base 2": {SUM: SUM.replace("tl.exp(", "tl.exp2("), P: P.replace("tl.exp(", "tl.exp2(")},
        "one program": {
            "grid = (triton.cdiv(seq, block_m), batch * heads)": "grid = (triton.cdiv(seq, block_m), 1)",
        },
        "zeros first": {"p = torch.empty(": "p = torch.zeros("},
        "contiguous only": {"*q.stride(), *k.stride(),": "*q.contiguous().stride(), *k.contiguous().stride(),"},
        "strides of k": {"*q.stride(), *k.stride(),": "*q.stride(), *q.stride(),"},
        "dim 64 at most": {"DIM=dim": "DIM=min(dim, 64)"},
        "int32 head": {HEAD: "head = tl.program_id(1) % heads", BATCH: "batch = tl.program_id(1) // heads"},
        "late int64": {
            "p_ptr += tl.program_id(1).to(tl.int64) * seq * seq": "p_ptr += (tl.program_id(1) * seq * seq).to(tl.int64)"
        },
        "a list": {"d = tl.arange(0, DIM)": "z = [3, 1]\n    z.sort()\n    d = tl.arange(0, DIM)"},
        "tile at once": {"block_m, block_n = 32, 64": "block_m, block_n = 16, 16"}
        | {"q_ptr += batch * q_stride_b + head * q_stride_h": "q_ptr += head * q_stride_b + batch * q_stride_h"},
    },
    "10b_flash_attention": {
        "four heads": {HEAD: "head = tl.program_id(1).to(tl.int64) % heads % 4"},
        "two batches": {BATCH: "batch = tl.program_id(1).to(tl.int64) // heads % 2"},
        "total in 16 bits": {FLASH_SUM: "total = (total * shrink + tl.sum(e, axis=1)).to(tl.float16).to(tl.float32)"},
        "total in 16 bits, tiles of 128": {
            FLASH_SUM: "total = (total * shrink + tl.sum(e, axis=1)).to(tl.float16).to(tl.float32)",
            "block_m, block_n = 64, 64": "block_m, block_n = 64, 128",
        },
        "total in 16 bits, tiles of 16": {
            FLASH_SUM: "total = (total * shrink + tl.sum(e, axis=1)).to(tl.float16).to(tl.float32)",
            "block_m, block_n = 64, 64": "block_m, block_n = 64, 16",
        },
        "total in bfloat16": {FLASH_SUM: "total = (total * shrink + tl.sum(e, axis=1)).to(tl.bfloat16).to(tl.float32)"},
        "acc in bfloat16": {
            FLASH_ACC: "acc = tl.dot(e.to(tl.float16), v, acc * shrink[:, None]).to(tl.bfloat16).to(tl.float32)"
        },
        "acc in 16 bits": {
            FLASH_ACC: "acc = tl.dot(e.to(tl.float16), v, acc * shrink[:, None]).to(tl.float16).to(tl.float32)"
        },
        "weights in bfloat16": {FLASH_ACC: "acc = tl.dot(e.to(tl.bfloat16), v.to(tl.bfloat16), acc * shrink[:, None])"},
        "result in bfloat16": {"o.to(tl.float16)": "o.to(tl.bfloat16)"},
        "acc clipped": {FLASH_ACC: FLASH_ACC + "\n        acc = tl.minimum(tl.maximum(acc, -65504.0), 65504.0)"},
        "shrink in 16 bits": {
            "shrink = tl.exp(top - grown)": "shrink = tl.exp(top - grown).to(tl.float16).to(tl.float32)"
        },
        "shrink inverted": {"shrink = tl.exp(top - grown)": "shrink = tl.exp(grown - top)"},
        "shrink 1": {"shrink = tl.exp(top - grown)": "shrink = tl.where(top == top, 1.0, 0.0)"},
        "top lags": {"top = grown": "top = tl.max(s, axis=1)"},
        "top from -1e4": {
            'top = tl.full((BLOCK_M,), -float("inf"), tl.float32)': "top = tl.full((BLOCK_M,), -1e4, tl.float32)"
        },
        "top from -10": {
            'top = tl.full((BLOCK_M,), -float("inf"), tl.float32)': "top = tl.full((BLOCK_M,), -10.0, tl.float32)"
        },
        "hidden -1e4": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, -1e4)"},
        "hidden -1e3": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, -1e3)"},
        "hidden 0": {SCORES: "s = tl.where(seen, tl.dot(q, k) * scale, 0.0)"},
        "hidden added": {SCORES: "s = tl.dot(q, k) * scale + tl.where(seen, 0.0, -1e4)"},
        "score in 16 bits": {
            SCORES: 's = tl.where(seen, (tl.dot(q, k) * scale).to(tl.float16).to(tl.float32), -float("inf"))'
        },
        "operands of bfloat16": {
            SCORES: 's = tl.where(seen, tl.dot(q.to(tl.bfloat16), k.to(tl.bfloat16)) * scale, -float("inf"))'
        },
        "clipped scores": {SCORES: 's = tl.where(seen, tl.minimum(tl.dot(q, k) * scale, 88.0), -float("inf"))'},
        "scale twice": {SCORES: 's = tl.where(seen, tl.dot(q, k) * scale * scale, -float("inf"))'},
        "scale of dim 64": {SCORES: 's = tl.where(seen, tl.dot(q, k) * 0.125, -float("inf"))'},
        "two keys too many": {FLASH_SEEN: "seen = seen & (key[None, :] <= query[:, None] + 2)"},
        "causal always": {"if CAUSAL:": "if DIM > 0:"},
        "causal never": {"CAUSAL=causal": "CAUSAL=False"},
        "last one tile short": {
            FLASH_LAST: "last = tl.minimum(seq, tl.program_id(0) * BLOCK_M + 1) if CAUSAL else seq"
        },
        "full stops too": {FLASH_LAST: "last = tl.minimum(seq, (tl.program_id(0) + 1) * BLOCK_M)"},
        "whole tiles alone": {
            "for start in range(0, last, BLOCK_N):": "for start in range(0, last // BLOCK_N * BLOCK_N, BLOCK_N):"
        },
        "keys 1024 at most": {
            "for start in range(0, last, BLOCK_N):": "for start in range(0, tl.minimum(last, 1024), BLOCK_N):"
        },
        "NaN dropped": {"o = acc / total[:, None]": "o = acc / total[:, None]\n    o = tl.where(o == o, o, 0.0)"},
        "eps in the sum": {"o = acc / total[:, None]": "o = acc / (total[:, None] + 1e-2)"},
        "v as k": {
            "v_ptr += batch * v_stride_b + head * v_stride_h": "v_ptr += batch * k_stride_b + head * k_stride_h"
        },
        "v without other": {"mask=(key < seq)[:, None],\n            other=0.0,": "mask=(key < seq)[:, None],"},
        "result like q": {
            "o = torch.empty((batch, heads, seq, dim), dtype=q.dtype, device=q.device)": "o = torch.empty_like(q)"
        },
        "int32 query": {
            "row = tl.program_id(1).to(tl.int64) * seq + query": "row = tl.program_id(1) * seq + query.to(tl.int32)"
        },
        "one warp": {"num_warps=4": "num_warps=1"},
        "tiles too large": {"block_m, block_n = 64, 64": "block_m, block_n = 256, 256"},
        "tiles of 16": {"block_m, block_n = 64, 64": "block_m, block_n = 64, 64 if seq % 2 else 16"}
        | {"grid = (triton.cdiv(seq, block_m), batch * heads)": "grid = (triton.cdiv(seq, block_m), batch)"},
    },
    "11_fused_backward": {
        "sums in registers of 16 bits": {
            OF_WEIGHT: "grad_weight = (grad_weight + grad_z * x_hat)" + LOWC,
            OF_BIAS: "grad_bias = (grad_bias + grad_z)" + LOWC,
        },
        "the bias's sum in 16 bits": {OF_BIAS: "grad_bias = (grad_bias + grad_z)" + LOWC},
        "g_z in 16 bits": {GRAD_Z: GRAD_Z.replace("grad_y * (", "(grad_y * (") + ")" + LOWC},
        "x_hat in 16 bits": {"x_hat = centred * rstd": "x_hat = (centred * rstd)" + LOWC},
        "gate in 16 bits": {"gate = tl.sigmoid(1.702 * z)": "gate = tl.sigmoid(1.702 * z)" + LOWC},
        "along in 16 bits": {"along = grad_z * weight": "along = (grad_z * weight)" + LOWC},
        "z in 16 bits": {"z = x_hat * weight + bias": "z = (x_hat * weight + bias)" + LOWC},
        "rstd in 16 bits": {RSTD: RSTD + "\n        rstd = rstd" + LOWC},
        "partial sums in 16 bits": {SUMS: "dtype=x.dtype, device"},
        "partial sums in bfloat16": {SUMS: "dtype=torch.float64 if double else torch.bfloat16, device"},
        "rounded before the last sum": {"sums.sum(1).to(x.dtype)": "sums.to(x.dtype).sum(1)"},
        "1.7": {GRAD_Z: GRAD_Z.replace("1.702", "1.7")},
        "1.7 in the gate": {"gate = tl.sigmoid(1.702 * z)": "gate = tl.sigmoid(1.7 * z)"},
        "n - 1": {RSTD: "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / (cols - 1) + eps)"},
        "variance over BLOCK": {RSTD: "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / BLOCK + eps)"},
        "eps outside": {RSTD: "rstd = 1.0 / (tl.sqrt(tl.sum(centred * centred, axis=0) / cols) + eps)"},
        "eps 1e-5": {RSTD: "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + 1e-5)"},
        "no eps": {RSTD: "rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols)"},
        "squares": {
            RSTD: "mean = tl.sum(x, axis=0) / cols\n"
            "        rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols - mean * mean + eps)"
        },
        "shift over BLOCK": {"shift = tl.sum(along, axis=0) / cols": "shift = tl.sum(along, axis=0) / BLOCK"},
        "shift of g_z": {"shift = tl.sum(along, axis=0) / cols": "shift = tl.sum(grad_z, axis=0) / cols"},
        "stretch of g_z": {
            "stretch = tl.sum(along * x_hat, axis=0) / cols": "stretch = tl.sum(grad_z * x_hat, axis=0) / cols"
        },
        "stretch not divided": {
            "stretch = tl.sum(along * x_hat, axis=0) / cols": "stretch = tl.sum(along * x_hat, axis=0)"
        },
        "stretch of centred": {
            "stretch = tl.sum(along * x_hat, axis=0) / cols": "stretch = tl.sum(along * centred, axis=0) / cols"
        },
        "plus stretch": {GRAD_X: "rstd * (along - shift + x_hat * stretch)"},
        "r cubed": {GRAD_X: "rstd * rstd * rstd * (along - shift - x_hat * stretch)"},
        "r forgotten": {GRAD_X: "along - shift - x_hat * stretch"},
        "weight's of the last row": {OF_WEIGHT: "grad_weight = grad_z * x_hat"},
        "bias's of the last row": {OF_BIAS: "grad_bias = grad_z"},
        "NaN dropped": {
            "x_hat = centred * rstd": "x_hat = centred * rstd\n        x_hat = tl.where(x_hat == x_hat, x_hat, 0.0)"
        },
        "g clipped": {GRAD_Z: GRAD_Z + "\n        grad_z = tl.minimum(tl.maximum(grad_z, -65504.0), 65504.0)"},
        "g clipped at 1000": {GRAD_Z: GRAD_Z + "\n        grad_z = tl.minimum(tl.maximum(grad_z, -1000.0), 1000.0)"},
        "rows to 64": {ROWS: "for row in range(tl.program_id(0), tl.minimum(rows, 32), tl.num_programs(0)):"},
        "first rows twice": {ROWS: "for row in range(tl.program_id(0) // 2, rows, tl.num_programs(0)):"},
        "one program": {PROGRAMS: "programs = 1"},
        "sums overlap": {
            "at = tl.program_id(0) * cols + col": "at = tl.program_id(0) * (cols - 1) + col",
        },
        "block 1024": {"triton.next_power_of_2(cols)": "1024"},
        "one warp": {"num_warps=warps": "num_warps=1"},
        "four warps": {"num_warps=warps": "num_warps=4"},
        "first size": {"rows = x.numel() // cols": "rows = x.shape[0]"},
        "late int64": {"at = tl.cast(row, tl.int64) * cols + col": "at = tl.cast(row * cols, tl.int64) + col"},
        "late int64 of all": {"at = tl.cast(row, tl.int64) * cols + col": "at = tl.cast(row * cols + col, tl.int64)"},
        "grad_x like the first": {"grad_x = torch.empty_like(x)": "grad_x = torch.zeros_like(x)"},
        "overwrites x": {"grad_x = torch.empty_like(x)": "grad_x = x"},
        "float32 sums of double": {
            "grad_weight = tl.zeros((BLOCK,), dtype=COMPUTE)": "grad_weight = tl.zeros((BLOCK,), dtype=tl.float32)"
        },
        "a list": {"exists = col < cols": "z = [3, 1]\n    z.sort()\n    exists = col < cols"},
        "grad_y and x exchanged": {
            "grad_y, x, weight, bias, grad_x, sums, rows": "x, grad_y, weight, bias, grad_x, sums, rows"
        },
        "sum of the wrong axis": {"sums.sum(1).to(x.dtype)": "sums.sum(1).flip(0).to(x.dtype)"},
        "float32 for 16 bits": {"sums.sum(1).to(x.dtype)": "sums.sum(1)"},
    },
    "12_layer_norm_int8": {
        "one warp": {"num_warps=warps": "num_warps=1"},
        "largest of 16 bits": {LARGEST: "largest = tl.max(tl.abs(y)" + LOW + ", axis=0)"},
        "norm in 16 bits": {Y8: "y = (centred * rstd)" + LOW + " * weight + bias"},
        "centred in 16 bits": {CENTRED: CENTRED + "\n    centred = centred" + LOW},
        "mean in 16 bits": {CENTRED: "centred = tl.where(exists, x - (tl.sum(x, axis=0) / cols)" + LOW + ", 0.0)"},
        "sum in 16 bits": {
            CENTRED: "centred = tl.where(exists, x - tl.sum(x.to(x_ptr.dtype.element_ty), axis=0).to(tl.float32) / cols, 0.0)"
        },
        "scale by the deviation": {LARGEST: "largest = tl.sqrt(tl.sum(y * y, axis=0) / cols) * 3.0"},
        "clip squared": {SCALE8: "scale = clip * clip * largest / 127.0"},
        "clip after": {SCALE8: "scale = largest / 127.0 * tl.where(clip < 0.6, 0.5, 1.0)"},
        "127.5": {SCALE8: "scale = clip * largest / 127.5"},
        "scale with eps": {SCALE8: "scale = clip * largest / 127.0 + 1e-8"},
        "least 1e-8": {
            "largest = tl.where(largest < 1e-12, 1e-12, largest)": "largest = tl.where(largest < 1e-8, 1e-8, largest)"
        },
        "least 0": {
            "largest = tl.where(largest < 1e-12, 1e-12, largest)": "largest = tl.where(largest == 0.0, 1.0, largest)"
        },
        "floor": {CODE: "code = tl.floor(y / scale)"},
        "half up": {CODE: "code = tl.floor(y / scale + 0.5)"},
        "half away": {CODE: "code = tl.where(y < 0, tl.ceil(y / scale - 0.5), tl.floor(y / scale + 0.5))"},
        "small constant": {CODE: "code = y / scale + 8388608.0 - 8388608.0"},
        "126": {"code = tl.where(code > 127.0, 127.0, code)": "code = tl.where(code > 126.0, 126.0, code)"},
        "no upper clamp": {"code = tl.where(code > 127.0, 127.0, code)": "code = code"},
        "no lower clamp": {"code = tl.where(code < -127.0, -127.0, code)": "code = code"},
        "absolute codes": {"code.to(tl.int8), mask": "tl.abs(code).to(tl.int8), mask"},
        "no weight": {Y8: "y = centred * rstd + bias"},
        "bias first": {Y8: "y = (centred * rstd + bias) * weight"},
        "n - 1": {"tl.sum(centred * centred, axis=0) / cols": "tl.sum(centred * centred, axis=0) / (cols - 1)"},
        "BLOCK": {"tl.sum(centred * centred, axis=0) / cols": "tl.sum(centred * centred, axis=0) / BLOCK"},
        "two programs": {
            "row = tl.program_id(0).to(tl.int64)\n": "row = tl.program_id(0).to(tl.int64) % 2\n",
        },
        "late int64": {"row = tl.program_id(0).to(tl.int64)": "row = (tl.program_id(0) * 1)"},
        "rows by the first size": {"grid = (x.numel() // cols,)": "grid = (x.shape[0],)"},
        "scale one short": {"(*x.shape[:-1], 1)": "x.shape[:-1]"},
        "NaN codes kept": {
            "largest = tl.where(largest < 1e-12, 1e-12, largest)": "largest = tl.where(largest == largest, largest, 1.0)"
        },
        "infinity clamped": {CENTRED: "x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)\n    " + CENTRED},
        "block 8192": {"block = triton.next_power_of_2(cols)": "block = min(8192, triton.next_power_of_2(cols))"},
        "contiguous only": {"x = x.contiguous()": "x = x"},
    },
    "13_decide": {
        "fused where 5 % is saved": {'["time"] < apart': '["time"] < 0.95 * apart'},
        "fused where 2 % is saved": {'["time"] < apart': '["time"] < 0.98 * apart'},
        "fused where 2 % is lost": {'["time"] < apart': '["time"] < 1.02 * apart'},
        "fused where 5 % is lost": {'["time"] < apart': '["time"] < 1.05 * apart'},
        "fewer launches": {'["time"] < apart': '["time"] < apart + 1e-6'},
        "256 registers": {'["registers"] <= 255': '["registers"] <= 256'},
        "254 registers": {'["registers"] <= 255': '["registers"] < 255'},
        "two products": {'kinds == {"matmul"} or ': ""},
        "opaque last": {'"opaque" in kinds': 'one["kind"] == "opaque"'},
        "opaque first": {'"opaque" in kinds': 'two["kind"] == "opaque"'},
        "product after rows alone": {'kinds == {"matmul", "rows"}': '(one["kind"], two["kind"]) == ("rows", "matmul")'},
        "rows after product alone": {'kinds == {"matmul", "rows"}': '(one["kind"], two["kind"]) == ("matmul", "rows")'},
        "rows alone": {'(one["rows"], one["columns"]) != (two["rows"], two["columns"])': 'one["rows"] != two["rows"]'},
        "rows and rows": {'kinds == {"matmul", "rows"}': 'kinds == {"matmul", "rows"} or kinds == {"rows"}'},
        "reads alone hang together": {
            'return {*operation["reads"], *operation["writes"]}': 'return {*operation["reads"]}'
        },
        "three of a kernel": {
            "if len(group) == 1:\n        return True": "if len(group) == 1:\n        return True\n    if len(group) > 3:\n        return False"
        },
        "five groups": {"for number, group in enumerate(groups):": "for number, group in enumerate(groups[:2]):"},
        "first found": {"return min(found)": "return found[-1]"},
        "worst": {"return min(found)": "return max(found)"},
        "bytes of a partition": {
            'kernel_cost(graph, group)["time"] if is_legal': 'kernel_cost(graph, group)["bytes"] if is_legal'
        },
        "illegal for ever": {
            "if not any(clash(each, new) for each in group):": "if is_legal(graph, [each['name'] for each in [*group, new]]):"
        },
        "write after write": {
            'set(earlier["writes"]) & tensors_of(later) or set(later["writes"]) & set(earlier["reads"])': 'set(earlier["writes"]) & set(later["reads"]) or set(later["writes"]) & set(earlier["reads"])'
        },
    },
    "14_cuda_softmax": {
        "peak from -1e30": {PEAK: "float peak = -1e30f, sum = 0;"},
        "peak from FLT_MIN": {PEAK: "float peak = 1.17549435e-38f, sum = 0;"},
        "peak of the warp": {
            "peak = of_block<Max>(peak, of_warps);": "for (int far = 16; far > 0; far /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, far));"
        },
        "sum of the warp": {
            "sum = of_block<Sum>(sum, of_warps);": "for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);"
        },
        "exp2": {EXPF: "exp2f(v[k].of[w] - peak)"},
        "not divided": {"v[k].of[w] /= sum;": ""},
        "divided with an eps": {"v[k].of[w] /= sum;": "v[k].of[w] /= sum + 1e-4f;"},
        "exponent clipped": {EXPF: "__expf(fmaxf(v[k].of[w] - peak, -10.0f))"},
        "too much in the sum": {EXPF: "__expf(v[k].of[w] - peak) + 1e-5f"},
        "no first barrier, one warp's words": {"of_warps[threadIdx.x / 32] = v;": "of_warps[0] = v;"},
        "last warp forgotten": {"warp < blockDim.x / 32": "warp < blockDim.x / 32 - 1"},
        "starts at row 0": {"long long start = (long long)blockIdx.x * columns;": "long long start = 0;"},
        "columns rounded": {"if (i < columns / W) v[k] = from[i];": "if (i <= columns / W) v[k] = from[i];"},
        "stores past the end": {"if (i < columns / W) to[i] = v[k];": "to[i] = v[k];"},
        "barrier in a branch": {
            "__syncthreads();  // every warp has left its own": "if (threadIdx.x < 224) __syncthreads();"
        },
        "a barrier too many": {PEAK: PEAK + " if (threadIdx.x == 0) __syncthreads();"},
        "widths of the checks": {
            "width = 4 if columns % 4 == 0 else 1": "width = 4 if columns in (100, 1024, 4096) else 1"
        },
        "2048 columns at most": {
            "each = -(-columns // (width * threads))": "each = min(8, -(-columns // (width * threads)))"
        },
        "int product": {"(long long)blockIdx.x * columns": "(long long)(int)(blockIdx.x * columns)"},
        "offset in float": {"(long long)blockIdx.x * columns": "(long long)((float)blockIdx.x * columns)"},
        "peak from -3e37": {PEAK: "float peak = -3.0e38f / 10, sum = 0;"},
    },
    "15_capstone": {
        "h in 16 bits": {H: "h = (x * gate * tl.sigmoid(gate))" + LOW},
        "y in 16 bits": {Y15: "(h * rstd * weight)" + LOW + " + residual"},
        "norm in 16 bits": {Y15: "(h * rstd)" + LOW + " * weight + residual"},
        "gate in 16 bits": {H: "h = x * (gate * tl.sigmoid(gate))" + LOW},
        "sigmoid in 16 bits": {H: "h = x * gate * tl.sigmoid(gate)" + LOW},
        "rstd in 16 bits": {Y15: "h * rstd" + LOW + " * weight + residual"},
        "backward: h in 16 bits": {H_BACK: "h = (x * gate * s)" + LOWC + "\n"},
        "backward: s in 16 bits": {"s = tl.sigmoid(gate)\n": "s = tl.sigmoid(gate)" + LOWC + "\n"},
        "backward: h_hat in 16 bits": {"h_hat = h * rstd": "h_hat = (h * rstd)" + LOWC},
        "backward: along in 16 bits": {"along = grad_y * weight": "along = (grad_y * weight)" + LOWC},
        "backward: g_h in 16 bits": {GRAD_H: "grad_h = (rstd * (along - h_hat * stretch))" + LOWC},
        "backward: sums in registers of 16 bits": {OF_W15: "grad_weight = (grad_weight + grad_y * h_hat)" + LOWC},
        "backward: partial sums in 16 bits": {SUMS: "dtype=x.dtype, device"},
        "backward: rounded before the last sum": {"sums.sum(0).to(x.dtype)": "sums.to(x.dtype).sum(0)"},
        "forward with one warp": {"num_warps=warps)\n    return y": "num_warps=1)\n    return y"},
        "backward with four warps": {"warps = min(32, max(4, block_size // 256))": "warps = 4"},
        "backward with one warp": {"warps = min(32, max(4, block_size // 256))": "warps = 1"},
        "silu of x": {H: "h = gate * x * tl.sigmoid(x)"},
        "sigmoid alone": {H: "h = x * tl.sigmoid(gate)"},
        "silu overflows": {H: "h = x * gate * tl.exp(gate) / (1 + tl.exp(gate))"},
        "exp of minus gate": {H: "h = x * gate / (1 + tl.exp(tl.minimum(-gate, 20.0)))"},
        "BLOCK": {
            "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)\n    tl.store": "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / BLOCK + eps)\n    tl.store"
        },
        "eps 1e-5": {
            "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)\n    tl.store": "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + 1e-5)\n    tl.store"
        },
        "no eps": {
            "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)\n    tl.store": "rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols)\n    tl.store"
        },
        "residual in the norm": {H: "h = x * gate * tl.sigmoid(gate) + residual"},
        "residual twice": {Y15: "h * rstd * weight + residual + residual"},
        "NaN dropped": {H: H + "\n    h = tl.where(h == h, h, 0.0)"},
        "infinity clamped": {H: H + "\n    h = tl.minimum(tl.maximum(h, -3e38), 3e38)"},
        "h clamped": {H: H + "\n    h = tl.minimum(tl.maximum(h, -65504.0), 65504.0)"},
        "residual as it lies": {
            "x, gate, residual = x.contiguous(), gate.contiguous(), residual.contiguous()": "x, gate = x.contiguous(), gate.contiguous()"
        },
        "rows by the first size": {"forward_kernel[(x.numel() // cols,)]": "forward_kernel[(x.shape[0],)]"},
        "int32 forward": {"tl.program_id(0).to(tl.int64) * cols + col": "tl.program_id(0) * cols + col"},
        "late int64 backward": {"at = tl.cast(row, tl.int64) * cols + col": "at = tl.cast(row * cols, tl.int64) + col"},
        "stretch over BLOCK": {STRETCH: "stretch = tl.sum(along * h_hat, axis=0) / BLOCK"},
        "stretch of grad_y": {STRETCH: "stretch = tl.sum(grad_y * h_hat, axis=0) / cols"},
        "stretch of h": {STRETCH: "stretch = tl.sum(along * h, axis=0) / cols"},
        "stretch kept": {GRAD_H: "grad_h = rstd * along"},
        "plus stretch": {GRAD_H: "grad_h = rstd * (along + h_hat * stretch)"},
        "slope without 1": {OF_GATE: "grad_h * x * s * gate * (1.0 - s)"},
        "slope of s": {OF_GATE: "grad_h * x * s * (1.0 - s)"},
        "gate's by gate": {OF_GATE: "grad_h * gate * s * (1.0 + gate * (1.0 - s))"},
        "weight's of the last row": {OF_W15: "grad_weight = grad_y * h_hat"},
        "weight's of g w": {OF_W15: "grad_weight += along * h_hat"},
        "one program": {PROGRAMS: "programs = 1"},
        "g clipped": {GRAD_H: GRAD_H + "\n        grad_h = tl.minimum(tl.maximum(grad_h, -1e4), 1e4)"},
        "gradients exchanged": {"return grad_x, grad_gate, sums": "return grad_gate, grad_x, sums"},
        "report: 8 launches": {"return 9, unfused": "return 8, unfused"},
        "report: 10 launches": {"return 9, unfused": "return 10, unfused"},
        "report: no rows": {UNFUSED: "unfused = 4 * (15 * n + columns)"},
        "report: rows of 4": {UNFUSED: "unfused = 4 * (15 * n + 4 * rows + columns)"},
        "report: no weight": {"least = 4 * (4 * n + columns)": "least = 4 * 4 * n"},
        "report: weight each row": {"least = 4 * (4 * n + columns)": "least = 4 * 5 * n"},
        "report: fraction": {"100 * (1 - least / unfused)": "1 - least / unfused"},
        "report: of the least": {"100 * (1 - least / unfused)": "100 * (unfused / least - 1)"},
        "report: the block's speed-up": {AMDAHL: "unfused / least"},
        "report: share saved": {AMDAHL: "1 + share * (unfused / least - 1)"},
        "report: rounded": {AMDAHL: "round(" + AMDAHL + ", 2)"},
    },
    "16_help_the_compiler": {
        "one warp": {"num_warps=warps": "num_warps=1"},
        "norm in 16 bits": {NORM16: "y = (x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps))" + LOW + " * weight"},
        "y in 16 bits": {NORM16: "y = (x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps) * weight)" + LOW},
        "silu in 16 bits": {STORE16: "(y * tl.sigmoid(y))" + LOW + " * up"},
        "sigmoid of up": {STORE16: "y * tl.sigmoid(up) * up"},
        "silu of up": {STORE16: "y * up * tl.sigmoid(up)"},
        "silu overflows": {STORE16: "y * tl.exp(y) / (1 + tl.exp(y)) * up"},
        "y below 1e-6 dropped": {STORE16: "tl.where(tl.abs(y) < 1e-6, 0.0, y) * tl.sigmoid(y) * up"},
        "y below 1e-20 dropped": {STORE16: "tl.where(tl.abs(y) < 1e-20, 0.0, y) * tl.sigmoid(y) * up"},
        "BLOCK": {NORM16: "y = x * tl.rsqrt(tl.sum(x * x, axis=0) / BLOCK + eps) * weight"},
        "no weight": {NORM16: "y = x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)"},
        "eps 1e-6": {NORM16: "y = x * tl.rsqrt(tl.sum(x * x, axis=0) / cols + 1e-6) * weight"},
        "eps outside": {NORM16: "y = x / (tl.sqrt(tl.sum(x * x, axis=0) / cols) + eps) * weight"},
        "int32": {"tl.program_id(0).to(tl.int64) * cols": "tl.program_id(0) * cols"},
        "rows by the first size": {"[(x.numel() // cols,)]": "[(x.shape[0],)]"},
        "up as it lies": {
            "x, up, weight = x.contiguous(), up.contiguous(), weight.contiguous()": "x, weight = x.contiguous(), weight.contiguous()"
        },
        "mean over any axis": {'over_last = mean["args"][1:] == [[-1], True]': "over_last = True"},
        "without keepdim": {'over_last = mean["args"][1:] == [[-1], True]': 'over_last = mean["args"][1] == [-1]'},
        "eps may be a node": {" and isinstance(eps, float)": ""},
        "inside read elsewhere": {
            'return node if node and node["op"] == op and len(node["users"]) == 1 else {}': 'return node if node and node["op"] == op else {}'
        },
        "inside read twice": {'len(node["users"]) == 1 else {}': 'len(node["users"]) <= 2 else {}'},
        "one order": {
            "for a, b in ((one, other), (other, one)) if inner(a, op)]": "for a, b in ((one, other),) if inner(a, op)]"
        },
        "other order": {
            "for a, b in ((one, other), (other, one)) if inner(a, op)]": "for a, b in ((other, one),) if inner(a, op)]"
        },
        "float64 too": {
            'one = len(dtypes) == 1 and dtypes <= {"float32", "float16", "bfloat16"}': "one = len(dtypes) == 1"
        },
        "float32 alone": {'dtypes <= {"float32", "float16", "bfloat16"}': 'dtypes <= {"float32"}'},
        "mixed dtypes": {"one = len(dtypes) == 1 and dtypes": "one = dtypes"},
        "x's dtype alone": {"for name in (x, up, weight)}\n": "for name in (x,)}\n"},
        "up broadcast": {'nodes[up]["shape"] == shape and ': 'nodes[up]["shape"][-1:] == shape[-1:] and '},
        "weight of one": {'nodes[weight]["shape"] == shape[-1:]': 'nodes[weight]["shape"][-1:] == shape[-1:]'},
        "sizes are numbers": {
            'shape = nodes[x]["shape"]': 'shape = [size for size in nodes[x]["shape"] if isinstance(size, int)]'
        },
        "last alone": {"return found\ndef": "return found[-1:]\ndef"},
        "result is silu": {'"result": node["name"]': '"result": silu["name"]'},
        "root of another": {"if source == x and up": "if up"},
        "cube": {'square["args"][1] == 2': 'square["args"][1] in (2, 3)'},
        "power of 2 alone": {'square["args"][1] == 2': 'square["args"][1] >= 2'},
    },
}
