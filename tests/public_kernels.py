"""Run public packages' Triton kernels in the meter, each against its PyTorch reference.

    python tests/public_kernels.py FOLDER [NAME ...]

prints a JSON line per kernel: name, launches, largest error, or why it was refused. FOLDER holds the packages named in
test_public_kernels.py, installed without their dependencies: their own code runs on CPU tensors, with stubs for
everything around it that needs a GPU, Hugging Face or bitsandbytes.
"""

# ruff: noqa: E731, N813, RUF012

import contextlib
import importlib.machinery
import json
import logging
import re
import sys
import types
import warnings
from pathlib import Path
from unittest.mock import MagicMock

import torch
from torch.nn import functional

ROOT = Path(__file__).parents[1]
FOLDER = sys.argv[1] if __name__ == "__main__" else ""
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), FOLDER]
    warnings.filterwarnings("ignore")
    logging.disable()

from helpers.instruments import measure  # noqa: E402

CASES = {}


def case(package):
    """Register a function that returns (call, expected): what call() returns must equal expected, both tuples."""

    def add(function):
        CASES[f"{package}: {function.__name__}"] = function
        return function

    return add


# Stubs of what the packages import besides.


class Nothing(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return MagicMock()


def stub(name, kind=types.ModuleType, path=True, **contents):
    module = kind(name)
    module.__path__ = [f"{FOLDER}/{name.replace('.', '/')}"] if path else []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    vars(module).update(contents)
    sys.modules[name] = module


class Platform:
    def is_cuda(self):
        return True

    is_cuda_alike = is_cuda

    def fp8_dtype(self):
        return torch.float8_e4m3fn

    def __getattr__(self, name):
        return lambda *_, **__: False


class Finder:
    """Empty modules for everything that is not a file of kernels."""

    real = re.compile(
        r"vllm\.(v1\.attention\.ops|model_executor\.layers\.mamba\.ops|kernels\.triton)\.\w+|vllm\.utils\.math_utils"
    )
    empty = {
        "unsloth": re.compile(r"(transformers|bitsandbytes|unsloth_zoo|peft)(\.|$)"),
        "vLLM": re.compile(r"vllm(\.|$)"),
    }
    package = ""  # of the kernel that is being tried

    def find_spec(self, name, path=None, target=None):
        empty = self.empty.get(self.package)
        if empty is None or self.real.fullmatch(name) or not empty.match(name):
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [f"{FOLDER}/{name.replace('.', '/')}"]
        return spec

    def create_module(self, spec):
        return Nothing(spec.name)

    def exec_module(self, module):
        pass


def install_stubs():
    import triton
    import triton.language as tl

    class Version:
        def __init__(self, text):
            self.parts = [int(part) for part in re.findall(r"\d+", str(text))[:3]]

        def __lt__(self, other):
            return self.parts < other.parts

        def __le__(self, other):
            return self.parts <= other.parts

        def __gt__(self, other):
            return self.parts > other.parts

        def __ge__(self, other):
            return self.parts >= other.parts

    import fla.modules
    import fla.ops  # noqa: F401  (before Hugging Face is a stub)

    stub("unsloth")
    stub("unsloth.kernels")
    stub(
        "unsloth.device_type",
        is_hip=lambda: False,
        get_device_type=lambda: "cuda",
        DEVICE_TYPE="cuda",
        DEVICE_TYPE_TORCH="cuda",
        DEVICE_COUNT=0,
        ALLOW_PREQUANTIZED_MODELS=True,
    )
    stub("unsloth.bnb_availability", native_kernels_ready=lambda *_: False)
    stub("unsloth_zoo.utils", Version=Version, _get_dtype=lambda dtype: dtype)
    stub("vllm.platforms", path=False, current_platform=Platform())
    stub("vllm.triton_utils", path=False, tl=tl, triton=triton, HAS_TRITON=True)
    sys.meta_path.insert(0, Finder())
    torch.utils._triton.has_triton = lambda: True  # torchao asks
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # of a GPU that is not there


def tensors(*shapes, dtype=torch.float32, scale=1.0):
    torch.manual_seed(0)
    made = [torch.randn(shape, dtype=torch.float32).mul(scale).to(dtype) for shape in shapes]
    return made if len(made) > 1 else made[0]


def with_gradients(function, *inputs, seed=1):
    """(y, *gradients) of the floating-point inputs."""
    leaves = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = function(*leaves)
    torch.manual_seed(seed)
    gradients = torch.autograd.grad(y, [x for x in leaves if x.requires_grad], torch.randn(y.shape))
    return y.detach(), *gradients


def both(ours, theirs, *inputs):
    """A case that compares the result and the gradients of two functions of the same inputs."""
    return lambda: with_gradients(ours, *inputs), with_gradients(theirs, *inputs)


# Liger-Kernel


@case("Liger")
def rms_norm():
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction as op

    x, w = tensors((6, 200), (200,))
    return both(
        lambda x, w: op.apply(x, w, 1e-6, 0.0, "llama", False),
        lambda x, w: functional.rms_norm(x, (200,), w, 1e-6),
        x,
        w,
    )


@case("Liger")
def layer_norm():
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction as op

    x, w, b = tensors((6, 200), (200,), (200,))
    return both(
        lambda x, w, b: op.apply(x, w, b, 1e-6), lambda x, w, b: functional.layer_norm(x, (200,), w, b, 1e-6), x, w, b
    )


@case("Liger")
def group_norm():
    from liger_kernel.ops.group_norm import LigerGroupNormFunction as op

    x, w, b = tensors((2, 6, 40), (6,), (6,))
    return both(
        lambda x, w, b: op.apply(x, w, b, 6, 3, 1e-5), lambda x, w, b: functional.group_norm(x, 3, w, b, 1e-5), x, w, b
    )


@case("Liger")
def geglu():
    from liger_kernel.ops.geglu import LigerGELUMulFunction as op

    return both(op.apply, lambda a, b: functional.gelu(a, approximate="tanh") * b, *tensors((5, 120), (5, 120)))


@case("Liger")
def swiglu():
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction as op

    return both(op.apply, lambda a, b: functional.silu(a) * b, *tensors((5, 120), (5, 120)))


@case("Liger")
def relu_squared():
    from liger_kernel.ops.relu_squared import LigerReLUSquaredFunction as op

    return both(op.apply, lambda x: functional.relu(x) ** 2, tensors((5, 120)))


@case("Liger")
def softmax():
    from liger_kernel.ops.softmax import LigerSoftmaxFunction as op

    return both(op.apply, lambda x: x.softmax(-1), tensors((5, 120)))


@case("Liger")
def cross_entropy():
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction as op

    labels = torch.tensor([0, 3, 119, -100, 7])
    x = tensors((5, 120))
    ours = lambda x: op.apply(x, labels, None, -100, 0.0, 0.1)[0]
    return both(ours, lambda x: functional.cross_entropy(x, labels, label_smoothing=0.1), x)


@case("Liger")
def fused_linear_cross_entropy():
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as op

    labels = torch.tensor([0, 3, 40, 7])
    x, w = tensors((4, 32), (50, 32))
    return both(lambda x, w: op.apply(x, w, labels)[0], lambda x, w: functional.cross_entropy(x @ w.T, labels), x, w)


@case("Liger")
def rope():
    from liger_kernel.ops.rope import LigerRopeFunction as op

    q, k = tensors((2, 4, 6, 16), (2, 2, 6, 16))
    angle = torch.arange(6)[:, None] / 10 ** (torch.arange(8) / 2)
    cos, sin = (f(torch.cat([angle, angle], -1))[None] for f in (torch.cos, torch.sin))

    def rotated(x):
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    return lambda: op.apply(q.clone(), k.clone(), cos, sin), (rotated(q), rotated(k))


@case("Liger")
def kl_div():
    from liger_kernel.ops.kl_div import LigerKLDivLossFunction as op

    x, y = tensors((5, 120), (5, 120))
    x, y = x.log_softmax(-1), y.softmax(-1)
    return lambda: (op.apply(x, y),), (functional.kl_div(x, y, reduction="batchmean"),)


@case("Liger")
def jsd():
    from liger_kernel.ops.jsd import LigerJSDFunction as op

    x, y = tensors((5, 120), (5, 120))
    x, y = x.log_softmax(-1), y.log_softmax(-1)
    m = ((x.exp() + y.exp()) / 2).log()
    expected = 0.5 * (
        functional.kl_div(m, y, log_target=True, reduction="batchmean")
        + functional.kl_div(m, x, log_target=True, reduction="batchmean")
    )
    return lambda: (op.apply(x, y),), (expected,)


@case("Liger")
def tvd():
    from liger_kernel.ops.tvd import LigerTVDLossFunction as op

    p, q = (x.softmax(-1) for x in tensors((5, 120), (5, 120)))
    return lambda: (op.apply(p, q),), ((p - q).abs().sum() / 2 / 5,)


@case("Liger")
def sparsemax():
    from liger_kernel.ops.sparsemax import LigerSparsemaxFunction as op

    x = tensors((5, 120))
    ordered = x.sort(-1, descending=True).values
    sums = ordered.cumsum(-1)
    support = 1 + torch.arange(1, 121) * ordered > sums
    count = support.sum(-1, keepdim=True)
    tau = (sums.gather(-1, count - 1) - 1) / count
    return lambda: (op.apply(x, -1),), ((x - tau).clamp(min=0),)


@case("Liger")
def fused_add_rms_norm():
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as op

    x, r, w = tensors((6, 200), (6, 200), (200,))
    ours = lambda x, r, w: op.apply(x, r, w, 1e-6)[0]
    return both(ours, lambda x, r, w: functional.rms_norm(x + r, (200,), w, 1e-6), x, r, w)


@case("Liger")
def dyt():
    from liger_kernel.ops.dyt import LigerDyTFunction as op

    x, a, g, b = tensors((5, 120), (1,), (120,), (120,))
    return lambda: (op.apply(x, a, g, b),), (g * torch.tanh(a * x) + b,)  # its backward asks for the GPU's SMs


@case("Liger")
def poly_norm():
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction as op

    x, w, b = tensors((5, 120), (3,), ())

    def reference(x, w, b):
        norm = lambda v: v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)
        return w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b

    return both(lambda x, w, b: op.apply(x, w, b, 1e-6, False), reference, x, w, b)


# flash-linear-attention


@case("fla")
def layer_norm_residual():
    from fla.modules.norm.layernorm import layer_norm

    x, w, b, r = tensors((2, 5, 64), (64,), (64,), (2, 5, 64))
    return both(
        lambda x, w, b, r: layer_norm(x, w, b, r),
        lambda x, w, b, r: functional.layer_norm(x + r, (64,), w, b),
        x,
        w,
        b,
        r,
    )


@case("fla")
def l2norm():
    from fla.modules.norm.l2norm import l2norm

    return both(l2norm, lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6), tensors((2, 5, 64)))


@case("fla")
def rms_norm_gated():
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    x, g, w = tensors((2, 5, 64), (2, 5, 64), (64,))
    return both(
        lambda x, g, w: rms_norm_gated(x, g, w, None),
        lambda x, g, w: functional.rms_norm(x, (64,), w, 1e-6) * functional.silu(g),
        x,
        g,
        w,
    )


@case("fla")
def swiglu_activation():
    from fla.modules.activations.ops import swiglu

    return both(swiglu, lambda x, y: functional.silu(x) * y, *tensors((2, 5, 64), (2, 5, 64)))


@case("fla")
def logsigmoid():
    from fla.modules.activations.ops import logsigmoid

    return both(lambda x: logsigmoid(x, 2.0), lambda x: functional.logsigmoid(x) / 2, tensors((2, 5, 64)))


@case("fla")
def rotary():
    from fla.modules.rotary.ops import rotary_embedding, rotary_embedding_ref

    x, cos, sin = tensors((2, 5, 2, 32), (5, 16), (5, 16))
    return both(lambda x: rotary_embedding(x, cos, sin), lambda x: rotary_embedding_ref(x, cos, sin), x)


@case("fla")
def matmul():
    from fla.ops.utils.matmul import matmul

    a, b = tensors((32, 48), (48, 64), dtype=torch.float16)
    return lambda: (matmul(a, b),), ((a.float() @ b.float()).half(),)


@case("fla")
def cumsum():
    from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum

    x = tensors((2, 32, 3, 8))
    local = x.view(2, 2, 16, 3, 8).cumsum(2).view_as(x)
    return lambda: (chunk_local_cumsum(x, 16), chunk_global_cumsum(x)), (local, x.cumsum(1))


@case("fla")
def mean_pooling():
    from fla.ops.utils.pooling import mean_pooling

    return both(lambda x: mean_pooling(x, 8), lambda x: x.view(2, 4, 8, 3, 16).mean(2), tensors((2, 32, 3, 16)))


@case("fla")
def softmax_utility():
    from fla.ops.utils.softmax import softmax_fwd

    x = tensors((6, 40))
    return lambda: (softmax_fwd(x),), (x.softmax(-1),)


@case("fla")
def causal_conv1d():
    from fla.modules.causal_conv1d.ops import causal_conv1d

    x, w = tensors((2, 12, 16), (16, 4))

    def reference(x, w):
        return functional.silu(functional.conv1d(functional.pad(x.mT, (3, 0)), w[:, None], groups=16)).mT

    return both(lambda x, w: causal_conv1d(x, w, activation="silu")[0], reference, x, w)


@case("fla")
def token_shift():
    from fla.modules.token_shift import token_shift, token_shift_ref

    return both(token_shift, token_shift_ref, tensors((2, 12, 16)))


@case("fla")
def chunk_linear_attn():
    from fla.ops.linear_attn import chunk_linear_attn
    from fla.ops.linear_attn.naive import naive_recurrent_linear_attn

    q, k, v = tensors(*[(1, 64, 1, 16)] * 3, scale=0.3)
    return (
        lambda: (chunk_linear_attn(q, k, v, normalize=False)[0],),
        (naive_recurrent_linear_attn(q, k, v)[0],),
    )


@case("fla")
def fused_recurrent_gla():
    from fla.ops.gla import fused_recurrent_gla
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, g = tensors(*[(1, 16, 2, 16)] * 4, scale=0.3)
    g = functional.logsigmoid(g)
    return both(
        lambda q, k, v: fused_recurrent_gla(q, k, v, g)[0], lambda q, k, v: naive_recurrent_gla(q, k, v, g)[0], q, k, v
    )


@case("fla")
def chunk_gla():
    from fla.ops.gla import chunk_gla
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, g = tensors(*[(1, 64, 1, 16)] * 4, scale=0.3)
    g = functional.logsigmoid(g)
    return lambda: (chunk_gla(q, k, v, g)[0],), (naive_recurrent_gla(q, k, v, g)[0],)


@case("fla")
def chunk_delta_rule():
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    q, k, v, beta = tensors(*[(1, 64, 1, 16)] * 3, (1, 64, 1))
    k, beta = functional.normalize(k, dim=-1), beta.sigmoid()
    expected = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)))[0].transpose(1, 2)
    ours = lambda: (chunk_delta_rule(*(x.bfloat16() for x in (q, k, v, beta)))[0].float(),)
    return ours, (expected,)


@case("fla")
def fused_recurrent_delta_rule():
    from fla.ops.delta_rule import fused_recurrent_delta_rule
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    q, k, v, beta = tensors(*[(1, 16, 2, 16)] * 3, (1, 16, 2))
    k, beta = functional.normalize(k, dim=-1), beta.sigmoid()
    expected = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)))[0].transpose(1, 2)
    return lambda: (fused_recurrent_delta_rule(q, k, v, beta)[0],), (expected,)


@case("fla")
def chunk_gated_delta_rule():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    q, k, v, beta, g = tensors(*[(1, 64, 1, 16)] * 3, (1, 64, 1), (1, 64, 1))
    k, beta, g = functional.normalize(k, dim=-1), beta.sigmoid(), functional.logsigmoid(g)
    expected = naive_recurrent_gated_delta_rule(q, k, v, beta, g)[0]
    return lambda: (chunk_gated_delta_rule(q, k, v, g, beta)[0],), (expected,)


@case("fla")
def fused_recurrent_hgrn():
    from fla.ops.hgrn import fused_recurrent_hgrn
    from fla.ops.hgrn.naive import naive_recurrent_hgrn

    x, g = tensors((2, 12, 16), (2, 12, 16))
    g = functional.logsigmoid(g)
    return both(lambda x: fused_recurrent_hgrn(x, g)[0], lambda x: naive_recurrent_hgrn(x, g)[0], x)


@case("fla")
def parallel_attn():
    from fla.ops.attn.parallel import parallel_attn

    q, k, v = tensors(*[(1, 32, 2, 16)] * 3)
    reference = lambda q, k, v: functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    return both(parallel_attn, reference, q, k, v)


# unsloth


@case("unsloth")
def fast_rms_layernorm():
    from unsloth.kernels.rms_layernorm import Fast_RMS_Layernorm as op

    x, w = tensors((6, 200), (200,))
    return lambda: with_gradients(lambda x: op.apply(x, w, 1e-6), x), with_gradients(
        lambda x: functional.rms_norm(x, (200,), w, 1e-6), x
    )


@case("unsloth")
def fast_layernorm():
    from unsloth.kernels.layernorm import Fast_Layernorm as op

    x, w, b = tensors((6, 200), (200,), (200,))
    return lambda: (op.apply(x, w, b, 1e-6),), (functional.layer_norm(x, (200,), w, b, 1e-6),)


@case("unsloth")
def geglu_exact():
    from unsloth.kernels.geglu import geglu_exact_forward_kernel as op

    e, g = tensors((2, 3, 120), (2, 3, 120))
    return lambda: (op(e, g),), (functional.gelu(e) * g,)


@case("unsloth")
def geglu_approximate():
    from unsloth.kernels.geglu import geglu_approx_forward_kernel as op

    e, g = tensors((2, 3, 120), (2, 3, 120))
    return lambda: (op(e, g),), (functional.gelu(e, approximate="tanh") * g,)


@case("unsloth")
def swiglu_forward_and_backward():
    from unsloth.kernels.swiglu import swiglu_DWf_DW_dfg_kernel, swiglu_fg_kernel

    e, g = tensors((6, 120), (6, 120))
    h, de, dg = with_gradients(lambda e, g: functional.silu(e) * g, e, g)
    torch.manual_seed(1)
    upstream = torch.randn_like(h)

    def ours():
        return swiglu_fg_kernel(e[None], g[None])[0], *swiglu_DWf_DW_dfg_kernel(upstream.clone(), e.clone(), g.clone())

    # Their backward returns h, dg as "df * dw" and de, in this order: h = f * g, df = dW * f, de.
    return ours, (h, h, dg, de)


@case("unsloth")
def fast_cross_entropy():
    from unsloth.kernels.cross_entropy_loss import Fast_CrossEntropyLoss as op

    labels = torch.tensor([0, 3, 119, 7, 5])
    return both(
        lambda x: op.apply(x, labels),
        lambda x: functional.cross_entropy(x, labels, reduction="none"),
        tensors((5, 120)),
    )


@case("unsloth")
def fast_rope():
    from unsloth.kernels.rope_embedding import Fast_RoPE_Embedding as op

    q = tensors((2, 6, 4, 16))
    angle = torch.arange(6)[:, None] / 10 ** (torch.arange(8) / 2)
    cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))
    left, right = q.chunk(2, -1)
    expected = q * cos[:, None] + torch.cat([-right, left], -1) * sin[:, None]
    return lambda: (op.apply(q.clone(), cos, sin),), (expected,)


# torchao


@case("torchao")
def int_matmul():
    from torchao.kernel.intmm_triton import int8_mm_kernel_configs, int_matmul_kernel

    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((32, 64), (64, 48)))
    c = torch.zeros(32, 48, dtype=torch.int32)
    return lambda: (int_matmul_kernel(a, b, c, int8_mm_kernel_configs[0]),), (a.int() @ b.int(),)


@case("torchao")
def scaled_int8_mm():
    from torchao.prototype.quantized_training.int8_mm import scaled_int8_mm_cuda

    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((128, 64), (64, 256)))
    row, column = tensors((128, 1), (1, 256))
    return lambda: (scaled_int8_mm_cuda(a, b, row, column),), ((a.int() @ b.int()) * row * column,)


@case("torchao")
def fp8_blockwise_act_quant():
    from torchao.kernel.blockwise_quantization import fp8_blockwise_act_quant

    x = tensors((4, 256))
    scale = x.view(4, 2, 128).abs().amax(-1) / 448
    y = (x.view(4, 2, 128) / scale[..., None]).view(4, 256).to(torch.float8_e4m3fn)
    ours = lambda: tuple(each.float() for each in fp8_blockwise_act_quant(x))
    return ours, (y.float(), scale)


@case("torchao")
def hqq_mixed_mm():
    from torchao.prototype.hqq.mixed_mm import pack_2xint4, triton_mixed_mm

    x = tensors((128, 128), dtype=torch.float16)
    packed = torch.randint(0, 16, (128, 256), dtype=torch.uint8)
    scale, zero = tensors((256, 4), (256, 4), dtype=torch.float16)
    weight = (packed.T.reshape(256, 4, 32).float() - zero[..., None].float()) * scale[..., None].float()
    weight = weight.reshape(256, 128)
    ours = lambda: (
        triton_mixed_mm(
            x,
            pack_2xint4(packed),
            scale.T.contiguous(),
            zero.T.contiguous(),
            transposed=False,
            group_size=32,
            fp8_fast_accum=False,
        ),
    )
    return ours, ((x.float() @ weight.T).half(),)


# xformers


@case("xformers")
def xformers_rms_norm():
    from xformers.ops._triton.rmsnorm_kernels import _rms_norm_add_forward, _rms_norm_forward

    x, y, w = tensors((6, 200), (6, 200), (200,))

    def ours():
        total = x.clone()
        return _rms_norm_forward(x, w, 1e-6), _rms_norm_add_forward(total, y, w, 1e-6), total

    norm = lambda x: functional.rms_norm(x, (200,), w, 1e-6)
    return ours, (norm(x), norm(x + y), x + y)


@case("xformers")
def index_select_cat():
    from xformers.ops._triton.k_index_select_cat import index_select_cat_fwd_kernel as kernel

    source, index = tensors((20, 100)), torch.tensor([3, 7, 19])
    y = torch.full((3, 100), torch.nan)

    def ours():
        kernel[(3, 1)](y, source, index, 3, 100, *source.stride(), BLOCK_SIZE_INDEX=1, BLOCK_SIZE_COL=512)
        return (y,)

    return ours, (source[index],)


@case("xformers")
def tiled_matmul():
    from xformers.ops._triton.tiled_matmul_kernels import _launch_triton_matmul

    a, b = tensors((32, 48), (48, 64), dtype=torch.float16)
    c = torch.full((32, 64), torch.nan, dtype=torch.float16)

    def ours():
        _launch_triton_matmul([[a]], [[b]], [[c]], [32], [64], [48])
        return (c,)

    return ours, ((a.float() @ b.float()).half(),)


# vLLM


@case("vLLM")
def merge_attn_states():
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    a, b, la, lb = tensors((5, 4, 32), (5, 4, 32), (4, 5), (4, 5))
    y, lse = torch.full_like(a, torch.nan), torch.full_like(la, torch.nan)
    weight = torch.softmax(torch.stack([la, lb]), 0).mT[..., None]

    def ours():
        merge_attn_states(y, a, la, b, lb, lse)
        return y, lse

    return ours, (weight[0] * a + weight[1] * b, torch.logaddexp(la, lb))


@case("vLLM")
def prefill_attention():
    from vllm.v1.attention.ops.triton_prefill_attention import context_attention_fwd

    q, k, v = tensors(*[(20, 2, 32)] * 3)
    y = torch.full_like(q, torch.nan)
    start, lengths = torch.tensor([0, 8], dtype=torch.int32), torch.tensor([8, 12], dtype=torch.int32)

    def ours():
        context_attention_fwd(q, k, v, y, start, lengths, 12)
        return (y,)

    parts = [
        functional.scaled_dot_product_attention(*(x[a:b].transpose(0, 1) for x in (q, k, v)), is_causal=True).transpose(
            0, 1
        )
        for a, b in ((0, 8), (8, 20))
    ]
    return ours, (torch.cat(parts),)


@case("vLLM")
def decode_attention():
    from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

    q, k, v = tensors((2, 4, 32), (16, 4, 32), (16, 4, 32))
    table, lengths = torch.arange(16, dtype=torch.int32).view(2, 8), torch.tensor([8, 5], dtype=torch.int32)
    y, lse, logits = torch.full_like(q, torch.nan), torch.zeros(2, 4), torch.zeros(2, 4, 2, 33)

    def ours():
        decode_attention_fwd(q, k, v, y, lse, table, lengths, logits, 2, 32**-0.5)
        return (y,)

    parts = [
        functional.scaled_dot_product_attention(q[i][:, None], *(x[8 * i : 8 * i + n].transpose(0, 1) for x in (k, v)))[
            :, 0
        ]
        for i, n in enumerate((8, 5))
    ]
    return ours, (torch.stack(parts),)


@case("vLLM")
def mamba_rms_norm_gated():
    from vllm.model_executor.layers.mamba.ops.layernorm_gated import rms_norm_gated

    x, z, w = tensors((6, 128), (6, 128), (128,))
    expected = functional.rms_norm(x, (128,), w, 1e-6) * functional.silu(z)
    return lambda: (rms_norm_gated(x, w, None, z),), (expected,)


@case("vLLM")
def selective_state_update():
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    state, x, dt, a, b, c, d = tensors((2, 8, 16), (2, 8), (2, 8), (8, 16), (2, 16), (2, 16), (8,))
    a = -a.exp()
    y = torch.full_like(x, torch.nan)
    step = functional.softplus(dt)
    after = state * (step[..., None] * a).exp() + (step * x)[..., None] * b[:, None]

    def ours():
        changed = state.clone()
        selective_state_update(changed, x, dt, a, b, c, d, torch.zeros(8), dt_softplus=True, out=y, null_block_id=-1)
        return y, changed

    return ours, ((after * c[:, None]).sum(-1) + d * x, after)


# Products of fp32 operands, which Triton rounds to TF32's ten bits, or of fp16 ones.
ROUNDED = re.compile(r"chunk_|parallel_attn|prefill_|matmul|_mm$|linear_cross")


LARGEST = {"fla: chunk_delta_rule": 2e-2}  # of bfloat16


def outcome(name):
    """A dictionary: kernel, outcome ("right", "wrong", "refused"), launches, configurations, error, message."""
    found = {"kernel": name}
    Finder.package = name.partition(":")[0]
    try:
        call, expected = CASES[name]()
        traffic = measure(call)
    except Exception as error:
        place = error.__traceback__
        while place.tb_next is not None:
            place = place.tb_next
        where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}"
        return found | {"outcome": "refused", "message": f"{type(error).__name__}: {error}"[:400], "where": where}
    worst = 0.0
    for ours, theirs in zip(traffic.result, expected, strict=True):
        scale = theirs.double().abs().max().clamp(min=1)
        worst = max(worst, ((ours.double() - theirs.double()).abs().max() / scale).nan_to_num(nan=torch.inf).item())
    return found | {
        "outcome": "right" if worst < LARGEST.get(name, 3e-3 if ROUNDED.search(name) else 2e-5) else "wrong",
        "launches": traffic.launches,
        "bytes": traffic.bytes_total,
        "hazards": [str(each) for each in traffic.hazards],
        "configurations": [": ".join(each) for each in traffic.configurations],
        "error": worst,
    }


if __name__ == "__main__":
    install_stubs()
    for each in sys.argv[2:] or CASES:
        print(json.dumps(outcome(each)), flush=True)
