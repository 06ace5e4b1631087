# Walks forward from each square, by its readers.

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def gated_norm_kernel(
    x_ptr, up_ptr, weight_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    exists = (row < rows) & (col < cols)
    at = row * cols + col
    x = tl.load(x_ptr + at, mask=exists, other=0.0).to(tl.float32)
    mean = tl.sum(x * x, axis=1)[:, None] / cols
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    gate = x * tl.rsqrt(mean + eps) * weight
    up = tl.load(up_ptr + at, mask=exists, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, up * gate * tl.sigmoid(gate), mask=exists)


# %% grade_id="launcher"
def gated_norm(x, up, weight, eps):
    cols = x.shape[-1]
    flat, gate = x.reshape(-1, cols).contiguous(), up.reshape(-1, cols).contiguous()
    y = torch.empty_like(flat)
    rows, block = flat.shape[0], triton.next_power_of_2(cols)
    together = max(1, 1024 // block)
    gated_norm_kernel[(triton.cdiv(rows, together),)](
        flat, gate, weight.contiguous(), y, rows, cols, eps, ROWS=together, BLOCK=block
    )
    return y.reshape(x.shape)


# %% grade_id="pass"
def find_places(graph):
    nodes = {}
    for node in graph:
        nodes[node["name"]] = node

    def only_reader(node, op):
        if len(node["users"]) != 1 or nodes[node["users"][0]]["op"] != op:
            return None
        return nodes[node["users"][0]]

    def partner(node, name):
        one, other = node["args"]
        if one == name and other == name:
            return None
        return other if one == name else one

    places = []
    for node in graph:
        if node["op"] != "pow" or node["args"][1] != 2:
            continue
        x = node["args"][0]
        steps = [node]
        for op in ["mean", "add", "rsqrt", "mul", "mul", "silu", "mul"]:
            following = only_reader(steps[-1], op)
            if following is None:
                break
            steps.append(following)
        if len(steps) != 8:
            continue
        _, mean, add, rsqrt, scaled, weighted, silu, result = steps
        if mean["args"] != [node["name"], [-1], True]:
            continue
        eps = partner(add, mean["name"])
        weight = partner(weighted, scaled["name"])
        up = partner(result, silu["name"])
        if isinstance(eps, str) or partner(scaled, rsqrt["name"]) != x:
            continue
        if not isinstance(weight, str) or not isinstance(up, str):
            continue
        kinds = [nodes[each]["dtype"] for each in (x, weight, up)]
        if kinds[0] not in ("float16", "bfloat16", "float32") or kinds.count(kinds[0]) != 3:
            continue
        shapes = [nodes[each]["shape"] for each in (x, weight, up)]
        if shapes[2] != shapes[0] or shapes[1] != [shapes[0][-1]]:
            continue
        places.append({"x": x, "up": up, "weight": weight, "eps": eps, "result": result["name"]})
    return places
