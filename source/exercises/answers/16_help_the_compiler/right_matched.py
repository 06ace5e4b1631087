# Structural pattern matching and generators; the kernel's SiLU divides.
# ruff: noqa: C408

# %%
import torch
import triton
import triton.language as tl


# %% grade_id="kernel"
@triton.jit
def gated_norm_kernel(source, factor, gains, target, n, eps, WIDTH: tl.constexpr):
    lane = tl.arange(0, WIDTH)
    real = lane < n
    gain = tl.load(gains + lane, real, other=0.0).to(tl.float32)
    lane += tl.program_id(0).to(tl.int64) * n
    value = tl.load(source + lane, mask=real, other=0.0).to(tl.float32)
    other = tl.load(factor + lane, mask=real, other=0.0).to(tl.float32)
    normed = gain * value / tl.sqrt(tl.sum(value * value) / n + eps)
    tl.store(target + lane, other * (normed / (1.0 + tl.exp(-normed))), mask=real)


# %% grade_id="launcher"
def gated_norm(x, up, weight, eps):
    target = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not target.numel():
        return target
    n = x.shape[-1]
    width = triton.next_power_of_2(n)
    gated_norm_kernel[lambda _: (target.numel() // n,)](
        x.contiguous(), up.contiguous(), weight.contiguous(), target, n, eps, WIDTH=width,
        num_warps=max(1, min(32, width // 512)),
    )  # fmt: skip
    return target


# %% grade_id="pass"
def either_way(args):
    one, other, *_ = args
    yield one, other
    if one != other:
        yield other, one


def find_places(graph):
    nodes = {each["name"]: each for each in graph}

    def only(name, op, users=1):
        """The arguments of the node of this name, if `op` makes it and one node reads it."""
        match nodes.get(name if isinstance(name, str) else None):
            case {"op": made, "users": [_], "args": args} if made == op:
                return args
        return None

    def norms(name):
        """(x, eps) of x * rsqrt(mean(x^2) + eps), for each way to read the node of this name."""
        for scale, x in either_way(only(name, "mul") or (None, None)):
            match only(scale, "rsqrt"):
                case [variance, *_]:
                    for mean, eps in either_way(only(variance, "add") or (None, None)):
                        match only(mean, "mean"):
                            case [square, [-1], True] if isinstance(eps, float):
                                if only(square, "pow") == [x, 2]:
                                    yield x, eps

    def suits(*names):
        if not all(isinstance(name, str) and name in nodes for name in names):
            return False
        x, up, weight = (nodes[name] for name in names)
        floats = ("float32", "float16", "bfloat16")
        same = x["dtype"] in floats and x["dtype"] == up["dtype"] == weight["dtype"]
        return same and x["shape"] == up["shape"] and list(weight["shape"]) == list(x["shape"][-1:])

    def places():
        for node in graph:
            match node:
                case {"op": "mul", "name": result, "args": args}:
                    for silu, up in either_way(args):
                        for inner in only(silu, "silu") or ():
                            for norm, weight in either_way(only(inner, "mul") or (None, None)):
                                for x, eps in norms(norm):
                                    if up != silu and suits(x, up, weight):
                                        yield dict(
                                            x=x, up=up, weight=weight, eps=eps, result=result
                                        )

    return list(places())
