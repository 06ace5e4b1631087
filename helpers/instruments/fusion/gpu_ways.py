"""Use PyTorch's GPU paths, where they differ from the CPU's, for tensors traced on a CPU.

    RMSNorm, dropout, cells of recurrent layers    one kernel each, which a CPU splits up
    attention       FlashAttention, the memory-efficient kernel, or matmuls and a softmax, by PyTorch's own conditions
                    and those of sdpa_kernel; cuDNN's where only it is left
    TransformerEncoderLayer, MultiheadAttention    PyTorch's fast path in evaluation without gradients
    LSTM, GRU, RNN  one call of cuDNN
    autocast        CUDA's rules: the operators that run in 16 bits, and those in fp32
    optimizers, clip_grad_norm_    the foreach kernels, CUDA's default
    flex_attention  the kernel that torch.compile generates
    "cuda"          as a device: stays where it is; x.is_cuda and torch.cuda.is_available() are true for a model
    x[mask] = 0     a masked fill

What is chosen inside a library, or depends on values, is marked as uncertain.
"""

import contextlib
import functools
import itertools
import linecache
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp import autocast_mode
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.nn.attention import flex_attention as flex
from torch.optim import swa_utils
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._pytree import tree_leaves

from helpers.instruments.fusion.hollow import is_users
from helpers.instruments.prediction import flop_formula

aten = torch.ops.aten

# On a CPU, PyTorch takes these apart before any tracer sees them; the graph gets the GPU's operators for them.
_library = torch.library.Library("as_on_a_gpu", "DEF")
_library.define("_fused_rms_norm(Tensor x, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_library.define(
    "_fused_rms_norm_backward(Tensor grad, Tensor x, int[] normalized_shape, Tensor rstd, Tensor? weight, "
    "bool[2] output_mask) -> (Tensor, Tensor)"
)
_library.define(
    "cudnn_rnn(Tensor x, Tensor[] hidden, Tensor[] weights, int layers, bool bidirectional, bool batch_first) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.define(
    "cudnn_rnn_backward(Tensor grad, Tensor x, Tensor[] hidden, Tensor[] weights, Tensor output) -> Tensor[]"
)
_library.define(
    "_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias, Tensor? hidden_bias) "
    "-> (Tensor, Tensor)"
)
_library.define(
    "_thnn_fused_gru_cell_backward(Tensor grad, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor, Tensor?)"
)
_library.define("_transform_bias_rescale_qkv(Tensor qkv, Tensor qkv_bias, int num_heads) -> (Tensor, Tensor, Tensor)")
_library.define("_masked_softmax(Tensor self, Tensor mask, int? dim, int? mask_type) -> Tensor")
_stand_ins = torch.ops.as_on_a_gpu
GPU_OPERATORS = {
    _stand_ins._fused_rms_norm.default: aten._fused_rms_norm.default,
    _stand_ins._fused_rms_norm_backward.default: aten._fused_rms_norm_backward.default,
}


_marks: list[dict] = []


@contextlib.contextmanager
def _marked(**meta) -> Iterator[None]:
    """Give the nodes of operators traced inside these entries of `meta`."""
    _marks.append(meta)
    try:
        yield
    finally:
        _marks.pop()


def uncertain(reason: str) -> contextlib.AbstractContextManager:
    """Mark operators traced inside as uncertain, with the reason."""
    return _marked(unsure=reason)


def marks() -> dict:
    """Return the entries of `meta` of the operator being traced: the reason that it is uncertain as "unsure"; as
    "cudnn" False if attention is not left to cuDNN where PyTorch would prefer it; as "compiled_mask" how attention
    runs under torch.compile, if only there it has a mask."""
    return dict(itertools.chain(*(each.items() for each in _marks)))


# RMSNorm and dropout


@torch.library.impl(_library, "_fused_rms_norm", "Meta")
def _rms_norm_shapes(x, normalized_shape, weight, eps):
    rows = x.shape[: x.dim() - len(normalized_shape)]
    # It computes in fp32, whatever its input.
    return torch.empty_like(x), x.new_empty((*rows, *(1 for _ in normalized_shape)), dtype=torch.float32)


@torch.library.impl(_library, "_fused_rms_norm_backward", "Meta")
def _rms_norm_backward_shapes(grad, x, normalized_shape, rstd, weight, output_mask):
    return torch.empty_like(x), torch.empty_like(weight) if weight is not None else x.new_empty(())


def _keep_for_backward(ctx, inputs, output):
    x, ctx.normalized_shape, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _backward_of_rms_norm(ctx, grad, _):
    x, weight, rstd = ctx.saved_tensors
    needed = [True, weight is not None]
    found = _stand_ins._fused_rms_norm_backward(grad, x, ctx.normalized_shape, rstd, weight, needed)
    return found[0], None, found[1] if needed[1] else None, None


torch.library.register_autograd(
    "as_on_a_gpu::_fused_rms_norm", _backward_of_rms_norm, setup_context=_keep_for_backward, lib=_library
)


def _rms_norm(input, normalized_shape, weight=None, eps=None):
    return _stand_ins._fused_rms_norm(input, list(normalized_shape), weight, eps)[0]


def _dropout(input, p=0.5, training=True, inplace=False):
    if inplace or not training or not 0 < p < 1:
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    return torch.native_dropout(input, p, True)[0]


# Attention


ONLY_CUDNN = (
    "attention that only cuDNN's kernel supports, such as a mask with fewer key heads: counted as matmuls in fp32, but "
    "Hopper runs cuDNN's kernel"
)
# How attention runs under torch.compile where transformers skips its mask in eager mode -> what the user reads.
COMPILED_MASKS = {
    "masked": "attention whose mask transformers skips in eager mode: torch.compile builds the mask, so the compiled "
    "time is that of attention with a mask; which kernel takes that mask is not certain",
    "matmuls": "attention whose mask transformers skips in eager mode: torch.compile builds one that no attention "
    "kernel takes, so the compiled time is that of matmuls and a softmax in fp32",
}
BY_DEFAULT = [1, 2, 0, 3, 4]  # the order of SDPBackends; on Hopper and B200, PyTorch moves cuDNN to its front


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Choose as PyTorch does on a GPU (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).

    FlashAttention takes 16-bit values without a mask, also with fewer key heads; the memory-efficient kernel takes the
    rest, except fewer key heads. Both need rows whose elements are neighbours, those of a mask too. Anything else runs
    as matmuls and a softmax, in fp32. torch.nn.attention.sdpa_kernel leaves some of them, or orders them. cuDNN's
    kernel takes 16-bit values with any mask: where it is allowed, GPUs that prefer it run it for either kernel.
    """
    given = query, key, value
    settings, order = torch.backends.cuda, torch._C._get_sdp_priority_order()
    heads_alike = query.dim() == 4 and query.shape[1] == key.shape[1] == value.shape[1]
    is_dense = query.dim() == 4 and (heads_alike or enable_gqa) and query.shape[-2] * key.shape[-2] > 0
    is_dense &= query.shape[0] == key.shape[0] == value.shape[0]
    is_dense &= all(each.stride(-1) == 1 for each in (*given, attn_mask) if each is not None)
    in_16_bits = query.dtype in HALVES
    width, of_values = query.shape[-1], value.shape[-1]
    square = not is_causal or query.shape[-2] == key.shape[-2]
    step = 8 if in_16_bits else 4  # elements of 16 bytes, which the kernel loads at once
    whole = width % step == of_values % step == 0
    by_flash = attn_mask is None and in_16_bits and width == of_values <= 256 and square
    by_efficient = heads_alike and whole and query.dtype != torch.float64
    by_cudnn = in_16_bits and whole and max(width, of_values) <= 256
    takes = {
        SDPBackend.FLASH_ATTENTION: settings.flash_sdp_enabled() and is_dense and by_flash,
        SDPBackend.EFFICIENT_ATTENTION: settings.mem_efficient_sdp_enabled() and is_dense and by_efficient,
        SDPBackend.CUDNN_ATTENTION: settings.cudnn_sdp_enabled() and is_dense and by_cudnn,
        SDPBackend.MATH: settings.math_sdp_enabled(),
    }
    way = next((each for each in map(SDPBackend, order) if takes.get(each)), None)
    if way is None:
        raise ValueError("none of the attention kernels that sdpa_kernel allows supports this call")
    sooner = order == BY_DEFAULT or order.index(SDPBackend.CUDNN_ATTENTION.value) <= order.index(way.value)
    prefers_cudnn = takes[SDPBackend.CUDNN_ATTENTION] and sooner
    if way == SDPBackend.MATH:
        with uncertain(ONLY_CUDNN) if prefers_cudnn else contextlib.nullcontext():
            return torch._scaled_dot_product_attention_math(
                *given, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
    skipped = {}
    if _skipped_masks and attn_mask is None:
        skipped = {"unsure": COMPILED_MASKS[_skipped_masks[-1]], "compiled_mask": _skipped_masks[-1]}
    with _marked(cudnn=prefers_cudnn, **skipped):
        if way == SDPBackend.FLASH_ATTENTION:
            if width % 8:
                given = [functional.pad(each, (0, -width % 8)) for each in given]
                scale = 1 / math.sqrt(width) if scale is None else scale
            made = aten._scaled_dot_product_flash_attention(*given, dropout_p, is_causal, scale=scale)[0]
            return made[..., :width] if width % 8 else made
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                nothing = torch.zeros_like(attn_mask, dtype=query.dtype)
                attn_mask = nothing.masked_fill_(attn_mask.logical_not(), float("-inf"))
            if way == SDPBackend.EFFICIENT_ATTENTION and any(step % 8 for step in attn_mask.stride()[:-1]):
                columns = attn_mask.shape[-1]
                attn_mask = functional.pad(attn_mask, (0, 8 - columns % 8))[..., :columns]
            attn_mask = attn_mask.expand(*query.shape[:2], query.shape[2], key.shape[2])
        keep = torch.is_grad_enabled() and any(each.requires_grad for each in given)
        kernel = aten._scaled_dot_product_efficient_attention
        if way == SDPBackend.CUDNN_ATTENTION:
            kernel = aten._scaled_dot_product_cudnn_attention
        return kernel(*given, attn_mask, keep, dropout_p, is_causal, scale=scale)[0]


def _flex_attention(query, key, value, score_mod, block_mask, scale, kernel_options, *others):
    """Return the kernel that torch.compile generates, without the blocks that its mask skips."""
    with uncertain("flex_attention: timed without its score_mod, and without skipping masked blocks"):
        found = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False, scale=scale)
    return found[0], found[1], found[1]


# Recurrent layers


@torch.library.impl(_library, "cudnn_rnn", "Meta")
def _rnn_shapes(x, hidden, weights, layers, bidirectional, batch_first):
    width = hidden[0].shape[-1] * (2 if bidirectional else 1)
    return x.new_empty(*x.shape[:-1], width), torch.empty_like(hidden[0]), torch.empty_like(hidden[-1])


@torch.library.impl(_library, "cudnn_rnn_backward", "Meta")
def _rnn_backward_shapes(grad, x, hidden, weights, output):
    return [torch.empty_like(each) for each in (x, *hidden, *weights)]


def _keep_rnn(ctx, inputs, output):
    x, hidden, weights, *_ = inputs
    ctx.counts = len(hidden), len(weights)
    ctx.save_for_backward(x, *hidden, *weights, output[0])


def _backward_of_rnn(ctx, grad, *_):
    x, *others, output = ctx.saved_tensors
    hidden, weights = others[: ctx.counts[0]], others[ctx.counts[0] :]
    found = _stand_ins.cudnn_rnn_backward(grad, x, hidden, weights, output)
    return found[0], found[1 : 1 + len(hidden)], found[1 + len(hidden) :], None, None, None


torch.library.register_autograd("as_on_a_gpu::cudnn_rnn", _backward_of_rnn, setup_context=_keep_rnn, lib=_library)


@flop_formula(_stand_ins.cudnn_rnn)
def _rnn_flops(x, hidden, weights, *others, out_shape=None, **named) -> int:
    """Each weight matrix meets each element of the sequence once."""
    places = x[0] * x[1] if len(x) == 3 else x[0]
    return sum(2 * places * weight[0] * weight[1] for weight in weights if len(weight) == 2)


@flop_formula(_stand_ins.cudnn_rnn_backward)
def _rnn_backward_flops(grad, x, hidden, weights, *others, out_shape=None, **named) -> int:
    return 2 * _rnn_flops(x, hidden, weights)


@flop_formula(aten._grouped_mm)
def _grouped_flops(one, other, *others, out_shape=None, **named) -> int:
    """(rows, k) by (groups, k, n), each row with the matrix of its group; or by (k, n) in groups of k."""
    if len(one) == 3 and len(other) == 3:
        return 2 * one[0] * one[1] * one[2] * other[2]
    return 2 * one[-2] * one[-1] * other[-1]


def _recurrent(name: str):
    why = f"cuDNN's {name}: the number of kernels and the wait between time steps are estimates"

    def run(input, hx, params, has_biases, num_layers=None, dropout=0.0, train=False, bidirectional=False, *rest):
        if isinstance(params, bool) or isinstance(hx, list | tuple) == (name != "LSTM"):
            raise ValueError(
                f"the lengths of a packed sequence are data, which is unknown here: pass {name} a padded tensor"
            )
        hidden = list(hx) if name == "LSTM" else [hx]
        with uncertain(why):
            found = _stand_ins.cudnn_rnn(input, hidden, list(params), num_layers, bidirectional, bool(rest and rest[0]))
        return found if name == "LSTM" else found[:2]

    return run


@torch.library.impl(_library, "_thnn_fused_gru_cell", "Meta")
def _gru_cell_shapes(input_gates, hidden_gates, hx, input_bias, hidden_bias):
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


@torch.library.impl(_library, "_thnn_fused_gru_cell_backward", "Meta")
def _gru_cell_backward_shapes(grad, workspace, has_bias):
    gates = grad.new_empty(grad.shape[0], 3 * grad.shape[1])
    bias = grad.new_empty(3 * grad.shape[1]) if has_bias else None
    return gates, torch.empty_like(gates), torch.empty_like(grad), bias


def _backward_of_gru_cell(ctx, grad, _):
    gates, hidden_gates, hx, bias = _stand_ins._thnn_fused_gru_cell_backward(grad, ctx.saved_tensors[0], ctx.has_bias)
    return gates, hidden_gates, hx, bias, bias


def _keep_gru_cell(ctx, inputs, output):
    ctx.has_bias = inputs[3] is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


torch.library.register_autograd(
    "as_on_a_gpu::_thnn_fused_gru_cell", _backward_of_gru_cell, setup_context=_keep_gru_cell, lib=_library
)


def _lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    return aten._thnn_fused_lstm_cell(input @ w_ih.t(), hx[0] @ w_hh.t(), hx[1], b_ih, b_hh)[:2]


def _gru_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    return _stand_ins._thnn_fused_gru_cell(input @ w_ih.t(), hx @ w_hh.t(), hx, b_ih, b_hh)[0]


# Encoder layers in evaluation without gradients (aten/src/ATen/native/transformers/transformer.cpp)


@torch.library.impl(_library, "_transform_bias_rescale_qkv", "Meta")
def _heads_shapes(qkv, qkv_bias, num_heads):
    batch, length, width = qkv.shape
    return tuple(qkv.new_empty(batch, num_heads, length, width // 3 // num_heads) for _ in range(3))


@torch.library.impl(_library, "_masked_softmax", "Meta")
def _masked_softmax_shapes(self, mask, dim, mask_type):
    return torch.empty_like(self)


FAST_PATH = "the fast path of PyTorch's encoder layers: GPUs that prefer cuDNN's attention may run it as matmuls"


def _encoder_attention(
    query, key, value, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
    mask=None, need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    batch, width = query.shape[0], embed_dim // num_heads
    if mask is None and not need_weights and width % 8 == 0:
        heads = [
            each.unflatten(-1, (num_heads, width)).transpose(1, 2)
            for each in functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        ]
        with uncertain(FAST_PATH):
            made = _attention(*heads)
        return functional.linear(made.transpose(1, 2).reshape(batch, -1, embed_dim), proj_weight, proj_bias), None
    q, k, v = _stand_ins._transform_bias_rescale_qkv(query @ qkv_weight.t(), qkv_bias, num_heads)
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, (batch, num_heads))
    scores = scores.softmax(-1) if mask is None else _stand_ins._masked_softmax(scores, mask.bool(), 3, mask_type)
    made = torch.bmm(scores.flatten(0, 1), v.flatten(0, 1)).unflatten(0, (batch, num_heads))
    made = functional.linear(made.transpose(1, 2).reshape(batch, -1, embed_dim), proj_weight, proj_bias)
    if need_weights and average_attn_weights:
        scores = scores.sum(1).div_(num_heads)
    return made, scores if need_weights else None


def _encoder_layer(
    x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
    norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, up_weight, up_bias, down_weight, down_bias,
    mask=None, mask_type=None,
):  # fmt: skip
    def first_norm(x):
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x):
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    given = first_norm(x) if norm_first else x
    attention = qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    x = _encoder_attention(given, given, given, embed_dim, num_heads, *attention)[0].add_(x)
    if not norm_first:
        x = first_norm(x)
    given = second_norm(x) if norm_first else x
    rows = given.reshape(-1, embed_dim)
    inner = aten._addmm_activation(up_bias, rows, up_weight.t(), use_gelu=use_gelu)
    x = functional.linear(inner.unflatten(0, given.shape[:-1]), down_weight, down_bias).add_(x)
    return x if norm_first else second_norm(x)


def _has_torch_function(arguments) -> bool:
    """Let the encoder layers take their fast path, though a mode that traces is active; a whole encoder would
    leave padded tokens out of nested tensors."""
    caller = sys._getframe(1).f_locals.get("self")
    layer = isinstance(caller, torch.nn.TransformerEncoderLayer | torch.nn.MultiheadAttention)
    return not layer and _plain_has_torch_function(arguments)


_plain_has_torch_function = torch.overrides.has_torch_function


def _set_item(tensor, key, value) -> None:
    """PyTorch fills where a mask is set if the value is a number."""
    with _marked(number=True) if isinstance(value, bool | int | float) else contextlib.nullcontext():
        torch.Tensor.__setitem__(tensor, key, value)


def as_masked_fill(func, args: tuple):
    """Return the fill that a GPU runs instead of an index_put_ of a number where a mask is set, and its arguments."""
    if func is not aten.index_put_.default or not marks().get("number"):
        return func, args
    tensor, indices, value = args[:3]
    (mask, *others) = [each for each in indices if each is not None]
    if others or mask.dtype not in (torch.bool, torch.uint8):
        return func, args
    before = next(place for place, each in enumerate(indices) if each is not None)
    after = tensor.dim() - before - mask.dim()
    shape = (*[1] * before, *mask.shape, *[1] * after)
    return aten.masked_fill_.Tensor, (tensor, mask.view(shape) if after else mask, value)


def _to_the_host(tensor, *others, **named):
    with uncertain(COPIED):
        copied = tensor.clone()
    _on_the_host[id(copied)] = copied
    return copied


def _from_the_host(tensor):
    """Return a tensor as it is on the GPU: copied, if it was on the host."""
    if id(tensor) not in _on_the_host:
        return tensor
    with uncertain(COPIED):
        return tensor.clone()


COPIED = "a copy between the GPU and the host, over the bus: counted as one within the GPU's memory"
ON_THE_HOST = "after x.cpu(), it runs on the host: counted as if it ran on the GPU"
_on_the_host: dict[int, torch.Tensor] = {}  # by id: results of x.cpu(), and of operators on them


def host_marks(func, args) -> dict:
    """Return what to note on an operator whose operands x.cpu() has copied to the host."""
    on_the_host = bool(_on_the_host) and any(id(each) in _on_the_host for each in tree_leaves(args))
    return {"unsure": ON_THE_HOST} if on_the_host and marks().get("unsure") != COPIED else {}


def follow_on_the_host(noted: dict, result) -> None:
    if noted.get("unsure") == ON_THE_HOST:
        _on_the_host.update((id(each), each) for each in tree_leaves(result) if isinstance(each, torch.Tensor))


def _asks_for_cuda(frame) -> bool:
    """Return whether a line of source compares with "cuda", as `x.device.type == "cuda"` does."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return any(each in line for each in ('"cuda"', "'cuda'"))


def _is_pytorchs(frame) -> bool:
    return frame.f_code.co_filename.startswith(_PYTORCH)


_PYTORCH = str(Path(torch.__file__).parent)
_IS_CUDA = torch.Tensor.is_cuda.__get__
_plain_device = FakeTensor.device


def _device(self) -> torch.device:
    caller = sys._getframe(1)
    return torch.device("cuda", 0) if not _is_pytorchs(caller) and _asks_for_cuda(caller) else _plain_device.fget(self)


WAYS = {
    functional.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    functional.scaled_dot_product_attention: _attention,
    torch.lstm: _recurrent("LSTM"),
    torch.gru: _recurrent("GRU"),
    torch.rnn_tanh: _recurrent("RNN"),
    torch.rnn_relu: _recurrent("RNN"),
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.Tensor.cuda: lambda tensor, *others, **named: _from_the_host(tensor),
    torch.Tensor.__setitem__: _set_item,
}

# CUDA's autocast (aten/src/ATen/autocast_mode.h): products run in 16 bits, as on a CPU; these in fp32, unlike there,
IN_FP32 = frozenset(
    "pow rpow exp expm1 log log10 log2 log1p reciprocal rsqrt acos asin cosh sinh tan erfinv softplus layer_norm "
    "native_layer_norm group_norm cosine_similarity nll_loss nll_loss2d nll_loss_nd cross_entropy_loss kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp".split()
)
# and these give fp32 of what they get.
TO_FP32 = frozenset("softmax log_softmax sum prod cumsum cumprod norm linalg_vector_norm".split())
HALVES = (torch.float16, torch.bfloat16)


class _GpusWays(TorchFunctionMode):
    """The ways above for what PyTorch's functions are called with."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _names_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if func in _OF_A_PLACE:
            caller = sys._getframe(1)
            if func == torch.Tensor.cpu and not _is_pytorchs(caller):
                return _to_the_host(*args)
            if func == _IS_CUDA and not _is_pytorchs(caller):
                return True
        if func is torch.Tensor.to:
            if any(isinstance(each, str | torch.device) for each in (*args[1:], kwargs.get("device"))):
                args = (_from_the_host(args[0]), *args[1:])
            args = tuple("cpu" if _names_cuda(each) else each for each in args)
        if torch.is_autocast_enabled("cpu"):
            args, kwargs = _as_autocast_does(getattr(func, "__name__", "").strip("_"), args, kwargs)
        return WAYS.get(func, func)(*args, **kwargs)


_OF_A_PLACE = frozenset([torch.Tensor.cpu, _IS_CUDA])


def _names_cuda(device) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


def _as_autocast_does(name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    tensors = [each for each in args if isinstance(each, torch.Tensor) and each.dtype in HALVES]
    if not tensors:
        return args, kwargs
    if name in IN_FP32:
        args = tuple(each.float() if isinstance(each, torch.Tensor) and each.dtype in HALVES else each for each in args)
        kwargs = {
            key: each.float() if isinstance(each, torch.Tensor) and each.dtype in HALVES else each
            for key, each in kwargs.items()
        }
    elif name in TO_FP32 and not any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values())):
        kwargs = {**kwargs, "dtype": torch.float32}
    return args, kwargs


def _autocast(self, device_type, dtype=None, enabled=True, cache_enabled=None):
    """CUDA's autocast, entered as that of the CPU, where the tensors are while they are traced."""
    if device_type == "cuda":
        device_type, dtype = "cpu", dtype or _autocast_dtype("cuda")
    _plain_autocast(self, device_type, dtype, enabled, cache_enabled)


_plain_autocast = autocast_mode.autocast.__init__
_autocast_enabled, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


def _scaler_step(self, optimizer, *args, **kwargs):
    """Step as a scaler that is disabled, for lack of a GPU or on purpose."""
    if self._enabled:
        return _plain_scaler_step(self, optimizer, *args, **kwargs)
    with uncertain(SCALER):
        return _plain_scaler_step(self, optimizer, *args, **kwargs)


def _offload(self, *args, **kwargs):
    raise ValueError("save_on_cpu copies saved tensors over the bus, which isn't analysed: leave it out")


SCALER = "torch.amp.GradScaler is disabled here: where it is enabled, it also unscales and checks all gradients"
_plain_scaler_step = torch.amp.GradScaler.step


_skipped_masks: list[str] = []  # of COMPILED_MASKS, a key for each mask that the current trace has skipped so far


@contextlib.contextmanager
def believed_real(has_values: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Inside, transformers takes tensors with known values for real ones, and skips masks as it does when it runs.

    Attention after a skipped mask is marked: torch.compile, before PyTorch 2.14, never skips one.
    """
    utilities, masking = (sys.modules.get(f"transformers.{name}") for name in ("utils.import_utils", "masking_utils"))
    plain = getattr(utilities, "is_fake_tensor", None)
    _skipped_masks.clear()
    _on_the_host.clear()
    with contextlib.ExitStack() as stack:
        if plain is not None:
            stack.enter_context(
                mock.patch.object(utilities, "is_fake_tensor", lambda each: plain(each) and not has_values(each))
            )
        for kind in ("causal", "bidirectional"):
            name = f"_ignore_{kind}_mask_sdpa"
            if decide := getattr(masking, name, None):
                stack.enter_context(mock.patch.object(masking, name, functools.partial(_noting_skips, decide, kind)))
        stack.callback(_skipped_masks.clear)
        stack.callback(_on_the_host.clear)
        yield


def _noting_skips(decide: Callable, kind: str, padding_mask=None, *args, **kwargs):
    skips = decide(padding_mask, *args, **kwargs)
    if skips is True:
        # A bidirectional mask without padding is one value, expanded to all rows and columns. The kernels need
        # neighbours in a row of the mask to be neighbours in memory.
        one_value = padding_mask is None and kind == "bidirectional"
        _skipped_masks.append("matmuls" if one_value else "masked")
    return skips


def _of_cudas_autocast(plain: Callable, device_type: str = "cuda"):
    return plain("cpu" if device_type == "cuda" and _autocast_enabled("cpu") else device_type)


_plain_cuda_is_available = torch.cuda.is_available


def _cuda_is_available() -> bool:
    return is_users(sys._getframe(1).f_code.co_filename) or _plain_cuda_is_available()


def _foreach_by_default(params, differentiable, use_fused=False) -> tuple[bool, bool]:
    return False, not differentiable


STEPS = 1000.0  # of an optimizer that has been running for a while: results from it are scalars, not kernels


def _number(value):
    return STEPS if isinstance(value, torch.Tensor) else value


_plain_capability = torch.cuda.get_device_capability


OPTIMIZERS_WAYS = {
    "_default_to_fused_or_foreach": _foreach_by_default,
    "_get_value": _number,
    "_get_capturable_supported_devices": lambda supports_xla=True: ["cuda", "cpu"],
}
_plain_module_to = torch.nn.Module.to


def _module_to(self, *args, **kwargs):
    """Leave a module that moves to another device where it is."""
    _, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return self if dtype is None and memory_format is None else _plain_module_to(self, *args, **kwargs)


@contextlib.contextmanager
def as_on_a_gpu(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """Inside, PyTorch's functions take the ways of a GPU of this compute capability."""

    def get_device_capability(device=None) -> tuple[int, int]:
        return _plain_capability(device) if _is_pytorchs(sys._getframe(1)) else capability

    with contextlib.ExitStack() as stack:
        # The mode does not see what a function of PyTorch calls in turn; that finds the names replaced.
        for name in ("rms_norm", "dropout", "scaled_dot_product_attention"):
            stack.enter_context(mock.patch.object(functional, name, WAYS[getattr(functional, name)]))
        stack.enter_context(mock.patch.object(autocast_mode.autocast, "__init__", _autocast))
        # which PyTorch, CPU or not, is asked about
        for name, plain in (("is_autocast_enabled", _autocast_enabled), ("get_autocast_dtype", _autocast_dtype)):
            of_a_cpu = functools.partial(_of_cudas_autocast, plain)
            stack.enter_context(mock.patch.object(torch, name, of_a_cpu))
        stack.enter_context(mock.patch.object(torch.cuda, "is_available", _cuda_is_available))
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _module_to))
        stack.enter_context(mock.patch.object(torch.nn.Module, "cuda", lambda self, device=None: self))
        stack.enter_context(mock.patch.object(torch.cuda, "get_device_capability", get_device_capability))
        stack.enter_context(mock.patch.object(FakeTensor, "device", property(_device, _plain_device.fset)))
        stack.enter_context(mock.patch.object(torch.amp.GradScaler, "step", _scaler_step))
        stack.enter_context(mock.patch.object(torch.autograd.graph.save_on_cpu, "__init__", _offload))
        stack.enter_context(mock.patch.object(torch.overrides, "has_torch_function", _has_torch_function))
        stack.enter_context(mock.patch.object(torch.nn.modules.activation, "_is_make_fx_tracing", return_value=False))
        stack.enter_context(mock.patch.object(torch, "_transformer_encoder_layer_fwd", _encoder_layer))
        stack.enter_context(mock.patch.object(torch, "_native_multi_head_attention", _encoder_attention))
        stack.enter_context(mock.patch.object(flex, "flex_attention_hop", _flex_attention))
        stack.enter_context(mock.patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True))
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.optim"):
                for attribute, ours in OPTIMIZERS_WAYS.items():
                    if hasattr(module, attribute):
                        stack.enter_context(mock.patch.object(module, attribute, ours))
        types = [*_foreach_utils._foreach_supported_types, FakeTensor]
        stack.enter_context(mock.patch.object(_foreach_utils, "_foreach_supported_types", types))
        devices = [*_foreach_utils._get_foreach_kernels_supported_devices(), "cpu"]
        averaging = mock.patch.object(swa_utils, "_get_foreach_kernels_supported_devices", return_value=devices)
        stack.enter_context(averaging)
        stack.enter_context(torch._dynamo.config.patch(error_on_nested_fx_trace=False))  # what is compiled runs eagerly
        stack.enter_context(_GpusWays())
        yield
