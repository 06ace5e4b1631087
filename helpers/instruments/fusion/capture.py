"""The graph of a model as eager PyTorch runs it on a GPU: one node an ATen operator, below autograd.

Nothing is decomposed further and nothing made functional, so that each node is what eager PyTorch launches, views and
writes in place included. The backward pass is autograd's own, traced likewise: AOTAutograd's joint graph has the same
operators, but is functional, so that what a model writes in place would be copies there. Where PyTorch takes another
way on a GPU than on a CPU (RMSNorm, dropout, attention), the GPU's is taken.
"""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

aten = torch.ops.aten

# On a CPU, PyTorch takes these two apart before any tracer sees them; the graph gets the GPU's operators for them.
_library = torch.library.Library("as_on_a_gpu", "DEF")
_library.define("_fused_rms_norm(Tensor x, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_library.define(
    "_fused_rms_norm_backward(Tensor grad, Tensor x, int[] normalized_shape, Tensor rstd, Tensor? weight, "
    "bool[2] output_mask) -> (Tensor, Tensor)"
)
_stand_ins = torch.ops.as_on_a_gpu
GPU_OPERATORS = {
    _stand_ins._fused_rms_norm.default: aten._fused_rms_norm.default,
    _stand_ins._fused_rms_norm_backward.default: aten._fused_rms_norm_backward.default,
}


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


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """FlashAttention for 16-bit values without a mask, the memory-efficient kernel for the rest, as PyTorch chooses."""
    given = query, key, value
    if query.dim() != 4 or enable_gqa or query.shape[-1] != value.shape[-1]:
        return _as_everywhere(*given, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
        return aten._scaled_dot_product_flash_attention(*given, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            nothing = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = nothing.masked_fill_(attn_mask.logical_not(), float("-inf"))
        attn_mask = attn_mask.expand(*query.shape[:2], query.shape[2], key.shape[2])
    keep = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    return aten._scaled_dot_product_efficient_attention(*given, attn_mask, keep, dropout_p, is_causal, scale=scale)[0]


_as_everywhere = functional.scaled_dot_product_attention
WAYS = {
    functional.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    functional.dropout: _dropout,
    torch.dropout: _dropout,
    functional.scaled_dot_product_attention: _attention,
}


class _GpusWays(TorchFunctionMode):
    """RMSNorm, dropout and attention as a GPU runs them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return WAYS.get(func, func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    # The mode does not see what a function of PyTorch calls in turn; that finds the names replaced.
    names = ("rms_norm", "dropout", "scaled_dot_product_attention")
    with _GpusWays(), contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(functional, name, WAYS[getattr(functional, name)]))
        yield


def capture(model: Callable, *inputs, backward: bool = False) -> tuple[GraphModule, list]:
    """Trace `model(*inputs)` without running it.

    Args:
        model: an nn.Module, whose parameters and buffers become inputs of the graph, any function, or a
            torch.export.ExportedProgram, of which sizes that are left open stay symbols in the graph's shapes.
        inputs: its arguments, nested or not; tensors on any device, "meta" among them.
        backward: also the gradients of all that requires one, parameters and inputs: of the result, if it is one
            number, else of its product with gradients that become inputs of the graph.

    Returns:
        the graph, and what it takes: the tensors of parameters, buffers and inputs in turn.

    Raises:
        TypeError: model cannot be called.
        ValueError: it cannot be traced, for example because what it does depends on values.
    """
    exported = model if isinstance(model, torch.export.ExportedProgram) else None
    if exported:
        model = exported.module()
    if not callable(model):
        raise TypeError(f"a module or a function is expected, got {type(model).__name__}: wrap it in a lambda")
    state = dict(model.named_parameters()) | dict(model.named_buffers()) if isinstance(model, torch.nn.Module) else {}
    leaves, tree = tree_flatten((state, inputs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors):
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        state, given = tree_unflatten(filled, tree)
        with _as_on_a_gpu():
            return _tensors(torch.func.functional_call(model, state, given) if state else model(*given))

    def call_and_differentiate(*tensors):
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        results = [each for each in call(*tensors) if each.requires_grad]
        if not wanted or not results:
            raise ValueError("nothing requires a gradient: set requires_grad of an input, or leave out backward")
        alone = len(results) == 1 and results[0].numel() == 1
        incoming = None if alone else [torch.ones_like(each) for each in results]
        return torch.autograd.grad(results, wanted, incoming, allow_unused=True)

    real = [leaves[place] for place in places]
    open_sizes = _open_sizes(exported) if exported else []
    fake = open_sizes[0].fake_mode if open_sizes else FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake:
            stand_ins = [_stand_in(tensor) for tensor in real]
            if open_sizes:
                stand_ins[len(stand_ins) - len(open_sizes) :] = open_sizes
            way = {"tracing_mode": "symbolic" if open_sizes else "real", "_allow_non_fake_inputs": True}
            traced = make_fx(call_and_differentiate if backward else call, **way)(*stand_ins)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"{_name(model)} cannot be traced: {type(error).__name__}: {reason}") from error
    for node in traced.graph.nodes:
        if node.op == "call_function":
            node.target = GPU_OPERATORS.get(node.target, node.target)
    traced.recompile()
    return traced, real


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return shape.requires_grad_(tensor.requires_grad)


def _open_sizes(exported: torch.export.ExportedProgram) -> list[torch.Tensor]:
    """The program's own inputs with symbols for sizes; none where all sizes are numbers."""
    given = set(exported.graph_signature.user_inputs)
    found = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in given]
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    return tensors if any(isinstance(size, torch.SymInt) for each in tensors for size in each.shape) else []


def _tensors(result) -> list[torch.Tensor]:
    """Every tensor in a result, also in objects that PyTorch's trees do not know, such as a model's cache."""
    found, waiting, seen = [], [result], set()
    while waiting:
        for leaf in tree_leaves(waiting.pop(0)):
            if isinstance(leaf, torch.Tensor):
                found.append(leaf)
            elif hasattr(leaf, "__dict__") and not callable(leaf) and id(leaf) not in seen:
                seen.add(id(leaf))
                waiting.append(list(vars(leaf).values()))
    return found


def _name(model) -> str:
    return getattr(model, "__name__", type(model).__name__)
