"""Classify ATen operators: kind of work, iteration space, amount of arithmetic.

FLOPs are counted as in kernels/costs.py; matmuls, convolutions and attention by PyTorch's own
torch.utils.flop_counter.
"""

import re
from dataclasses import dataclass

import torch

from helpers.instruments.fusion.library_kernels import is_channels_first
from helpers.instruments.fusion.operation_account import TensorAccess, TracedStep
from helpers.instruments.fusion.plan import plain_name
from helpers.instruments.operations import EXP_RESULTS, TANH_RESULTS
from helpers.instruments.prediction import FLOP_FORMULAS, KINDS, product_flops, unknown_arithmetic
from helpers.instruments.traffic.eager_meter import tensors_of
from kernels import costs

COPIES = frozenset("_to_copy copy_ clone cat stack fill_ zero_ full full_like zeros zeros_like ones ones_like".split())
# Elementwise, although PyTorch doesn't tag them as such.
ELEMENTWISE = COPIES | frozenset(
    "arange tril triu tril_ triu_ masked_fill_ constant_pad_nd flip roll repeat native_dropout "
    "native_dropout_backward bernoulli_ bernoulli "
    "rand rand_like randn randn_like uniform_ normal_ glu log_sigmoid_forward log_sigmoid_backward prelu hardswish "
    "slice_backward select_backward scalar_tensor new_zeros new_ones new_full linspace eye dropout _prelu_kernel "
    "slice_scatter select_scatter where _conj_physical glu_backward diagonal_copy as_strided_copy "
    "nll_loss_backward nll_loss2d_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "binary_cross_entropy_backward soft_margin_loss_backward _thnn_fused_lstm_cell _thnn_fused_gru_cell "
    "_thnn_fused_lstm_cell_backward_impl floor_divide _thnn_fused_gru_cell_backward _transform_bias_rescale_qkv".split()
)
FOREACH = "_foreach_"  # the same for each tensor of a list
FUSED_OPTIMIZERS = ("_fused_adam", "_fused_adagrad", "_fused_sgd")
RANDOM = {torch.Tag.nondeterministic_seeded}
# Also tagged as reductions: sum mean amax amin prod var var_mean std argmax argmin any all logsumexp norm.
REDUCTIONS = frozenset("sum mean amax amin max min prod var std var_mean argmax argmin any all norm logsumexp".split())
REDUCTIONS |= {"linalg_vector_norm", "std_mean", "count_nonzero"}
# Rows in, rows out: one operator reduces and uses the result.
SOFTMAX = frozenset(
    "_softmax _log_softmax _safe_softmax _masked_softmax _softmax_backward_data _log_softmax_backward_data".split()
)
LOSSES = frozenset("mse_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits".split())
SCANS = frozenset("cumsum cumprod logcumsumexp cummax cummin".split())
LAYER_NORMS = frozenset("native_layer_norm _fused_rms_norm native_layer_norm_backward".split())
LAYER_NORMS |= {"_fused_rms_norm_backward"}
BATCH_NORMS = frozenset(
    "native_batch_norm _native_batch_norm_legit cudnn_batch_norm native_batch_norm_backward".split()
)
BATCH_NORMS |= {"cudnn_batch_norm_backward", "batch_norm_backward", "_batch_norm_with_update"}
GROUP_NORMS = frozenset(["native_group_norm", "native_group_norm_backward"])
MATMULS = frozenset("mm addmm bmm baddbmm _scaled_mm _int_mm _addmm_activation addmv mv dot".split())
VECTOR_PRODUCTS = frozenset("mv addmv dot".split())
CONVOLUTIONS = frozenset("convolution convolution_backward cudnn_convolution".split())
GATHERS = frozenset(
    "embedding index index_select gather take nll_loss_forward nll_loss2d_forward max_pool2d_with_indices avg_pool2d "
    "upsample_nearest2d upsample_bilinear2d _adaptive_avg_pool2d upsample_nearest1d max_pool3d_with_indices".split()
)
WINDOWS = frozenset("max_pool2d_with_indices avg_pool2d".split())  # these read a value several times
SCATTERS = frozenset(
    "scatter scatter_ scatter_add scatter_add_ scatter_reduce index_put index_put_ _index_put_impl_ index_add "
    "index_add_ index_copy index_copy_ index_fill_ embedding_dense_backward "
    "max_pool2d_with_indices_backward avg_pool2d_backward upsample_nearest2d_backward _adaptive_avg_pool2d_backward "
    "upsample_bilinear2d_backward".split()
)

# FLOPs per element, and special-function results; any other elementwise operator takes one FLOP and no special
# function.
ARITHMETIC = {
    "gelu": (costs.GELU_TANH, TANH_RESULTS),
    "gelu_backward": (2 * costs.GELU_TANH, TANH_RESULTS),
    "sigmoid": (4, 2),
    "silu": (5, 2),
    "silu_backward": (9, 2),
    "sigmoid_backward": (3, 0),
    "tanh": (1, TANH_RESULTS),
    "tanh_backward": (3, 0),
    "exp": (1, EXP_RESULTS),
    "log": (1, 1),
    "erf": (1, 1),
    "softplus": (3, 2),
    "mish": (6, 3),
    "rsqrt": (1, 1),
    "sqrt": (1, 1),
    "reciprocal": (1, 1),
    "sin": (1, 1),
    "cos": (1, 1),
    "elu": (3, 1),
    "addcmul": (3, 0),
    "addcdiv": (3, 1),
    "div": (1, 1),
    "native_dropout": (12, 0),  # Philox: ten integer rounds, two FLOPs
    "bernoulli_": (10, 0),
    "_softmax": (costs.SOFTMAX, EXP_RESULTS),
    "_log_softmax": (costs.SOFTMAX, EXP_RESULTS),
    "_safe_softmax": (costs.SOFTMAX, EXP_RESULTS),
    "_masked_softmax": (costs.SOFTMAX, EXP_RESULTS),
    "_softmax_backward_data": (4, 0),
    "_log_softmax_backward_data": (4, EXP_RESULTS),
    "native_layer_norm": (costs.LAYER_NORM, 0),
    "native_layer_norm_backward": (14, 0),
    "_fused_rms_norm": (4, 0),
    "_fused_rms_norm_backward": (10, 0),
    "native_group_norm": (costs.LAYER_NORM, 0),
    "native_batch_norm": (costs.BATCH_NORM, 0),
    "var": (3, 0),
    "var_mean": (3, 0),
    "std": (3, 0),
    "linalg_vector_norm": (2, 0),
    "logsumexp": (3, EXP_RESULTS),
    "hardswish": (4, 0),
    "mse_loss": (3, 0),
    "lerp": (3, 0),
    "_thnn_fused_lstm_cell": (5, 4),  # per gate, a quarter of the elements
    "_thnn_fused_gru_cell": (5, 3),
    "binary_cross_entropy_with_logits": (8, 2),
}
COMPLEX = {"mul": 6, "div": 11}  # FLOPs per complex element; other operators take twice those of a real one
Space = tuple[tuple[int, bool], ...]  # (size, whether it is reduced) of each run of dimensions, outermost first


@dataclass(frozen=True)
class Arithmetic:
    """An operation's arithmetic: matmul FLOPs, CUDA-core FLOPs, and results of special function units."""

    product: float
    fp32: float
    special: float


def base_name(step: TracedStep) -> str:
    """Return the operator's name, without the mark of an in-place one: "add" for "add_"."""
    return plain_name(step.node.target.overloadpacket.__name__)


def is_foreach(step: TracedStep) -> bool:
    return step.node.target.overloadpacket.__name__.startswith(FOREACH)


def is_pointwise_foreach(step: TracedStep) -> bool:
    name = step.node.target.overloadpacket.__name__.removeprefix(FOREACH)
    return is_foreach(step) and name not in ("norm", "max", "powsum")


def is_random(step: TracedStep) -> bool:
    name = base_name(step)
    return bool(RANDOM & set(step.node.target.tags)) and not name.startswith("_scaled_dot_product")


def kind_of(step: TracedStep) -> str:
    """Return TracedOperation.kind (never "view")."""
    target = step.node.target
    name, own = base_name(step), target.overloadpacket.__name__
    if target.namespace not in ("aten", "as_on_a_gpu") or not step.writes or not step.launches:
        return "opaque"
    if is_pointwise_foreach(step):
        return "elementwise"
    if name.startswith("_scaled_dot_product"):
        return "attention"
    if name in MATMULS:
        return "matmul"
    if name in CONVOLUTIONS:
        return "convolution"
    if {name, own} & GATHERS:
        return "gather"
    if {name, own} & SCATTERS:
        return "scatter"
    if name in SOFTMAX or name in LAYER_NORMS or name in GROUP_NORMS or name in SCANS:
        return "normalisation"
    if name in BATCH_NORMS:
        return "normalisation" if step.given.get("training", step.given.get("train", True)) else "broadcast"
    if name in REDUCTIONS or torch.Tag.reduction in target.tags:
        return "reduction" if _takes_one_tensor(step) else "elementwise"
    if name in LOSSES:
        return "reduction" if _is_summed(step) else "elementwise"
    if torch.Tag.pointwise in target.tags or {name, own} & ELEMENTWISE:
        shapes = {each.shape for each in step.reads if each.points > 1}
        return "broadcast" if len(shapes | {step.writes[0].shape}) > 1 and name != "cat" else "elementwise"
    return "opaque"


def _is_summed(step: TracedStep) -> bool:
    """Return whether a loss is summed or averaged."""
    return bool(step.given.get("reduction", 1))


def _takes_one_tensor(step: TracedStep) -> bool:
    """Return whether it reduces; max(a, b) of two tensors does not."""
    return not isinstance(step.given.get("other"), torch.Tensor)


def space_of(step: TracedStep, kind: str) -> Space:
    """Return the iteration space of a reduction or a normalisation; () for other kinds."""
    if kind not in ("reduction", "normalisation") or not step.reads:
        return ()
    name, main = base_name(step), step.reads[0]
    rank, given = len(main.shape), step.given
    if name in LAYER_NORMS:
        length = len(given["normalized_shape"])
        reduced = set(range(rank - length, rank))
    elif name in BATCH_NORMS:
        reduced = set(range(rank)) - {1}
    elif name in GROUP_NORMS:
        groups = given["group"]
        batch = given["N"]
        return (batch * groups, False), (main.points // (batch * groups), True)
    else:
        dims = given.get("dim")
        if dims is None or dims == []:
            reduced = set(range(rank))
        else:
            reduced = {dim % max(1, rank) for dim in (dims if isinstance(dims, list | tuple) else [dims])}
    runs: list[list] = []
    for dim, size in enumerate(main.shape):
        if size == 1:
            continue
        if runs and runs[-1][1] == (dim in reduced):
            runs[-1][0] *= size
        else:
            runs.append([size, dim in reduced])
    return tuple((size, flag) for size, flag in runs)


def points_of(step: TracedStep, kind: str) -> int:
    """Return how many elements the operation visits: those of its result, or of the input it reduces or scatters."""
    if is_foreach(step):
        return max(sum(each.points for each in step.writes), 1)
    read = [each.points for each in step.reads]
    if kind == "gather" and base_name(step) != "nll_loss_forward":
        read = []
    if kind == "scatter":
        read = [each.points for each in step.reads if each.name != "self"] or read
        return max(read, default=1)
    return max([*read[:1], *(each.points for each in step.writes), 1])


def extents_of(step: TracedStep, kind: str) -> dict[int, str]:
    """Return elements that the operation makes or reduces -> their number in terms of the model's open sizes."""
    value = step.node.meta.get("val")
    pairs = [(step.writes[0].points, value[0] if isinstance(value, list | tuple) and value else value)]
    if kind in ("reduction", "normalisation") and step.reads:
        pairs.append((step.reads[0].points, step.node.args[0].meta.get("val")))
    found = {points: tensor.numel() for points, tensor in pairs if isinstance(tensor, torch.Tensor)}
    return {
        points: str(count.node.expr if isinstance(count, torch.SymInt) else count)
        for points, count in found.items()
        if isinstance(count, torch.SymInt) or count == points
    }


def arithmetic_of(step: TracedStep, kind: str) -> Arithmetic:
    if not step.launches:
        return Arithmetic(0, 0, 0)
    packet = step.node.target.overloadpacket
    if packet in FLOP_FORMULAS:
        product = product_flops(step.node.target, step.given, step.launches[-1].results)
        epilogue = step.writes[0].points if base_name(step) in ("addmm", "baddbmm") else 0
        return Arithmetic(product, epilogue, 0)
    name = base_name(step)
    if name in VECTOR_PRODUCTS:
        return Arithmetic(0, 2 * max((each.points for each in step.reads), default=0), 0)
    if name in COPIES or kind in ("gather", "scatter"):
        return Arithmetic(0, 0, 0)
    flops, special = ARITHMETIC.get(plain_name(name.removeprefix(FOREACH)), (1, 0))
    if step.writes and step.writes[0].dtype.is_complex:
        flops = COMPLEX.get(name, 2 * flops)
    points = max((each.points for each in step.writes), default=0)
    if kind in ("reduction", "normalisation") or is_foreach(step):
        points = points_of(step, kind)
    return Arithmetic(0, flops * points, special * points)


def keeps_order(theirs: TensorAccess, mine: TensorAccess) -> bool:
    """Return whether a tensor is read through views in the order in which it was written, expanded or not."""
    return _order(theirs) == _order(mine)


def _order(access: TensorAccess) -> tuple:
    """Return sizes and strides with contiguous neighbours merged; expanded and size-1 dimensions are left out."""
    runs: list[list[int]] = []
    for size, stride in zip(access.shape, access.strides, strict=True):
        if size == 1 or stride == 0:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    return tuple(map(tuple, runs)), access.offset


# Operators that PyTorch implements only on the CPU.
_OF_A_CPU = re.compile(r"_for_cpu|^_?mkldnn_|^onednn|^_sparse_|^_mkl_")


def unsure_of(step: TracedStep) -> str:
    """Return what is unknown about an operation; empty if its launches, bytes and arithmetic are known."""
    target, name = step.node.target, step.node.target.overloadpacket.__name__
    if _OF_A_CPU.search(name) or target.namespace in ("mkldnn", "mkl", "onednn"):
        return (
            f"{target.namespace}.{name}: PyTorch implements it for CPUs only; the GPU's work is unknown and not counted"
        )
    if reason := step.node.meta.get("unsure"):
        return reason
    if not step.launches:
        return f"{target.namespace}.{name}: its GPU kernels are unknown and not counted"
    if target.namespace not in ("aten", "as_on_a_gpu"):
        return f"{target.namespace}.{name}: a custom operator, counted as one kernel that moves each tensor once"
    if kind_of(step) == "opaque" and not is_known(name) and not name.startswith((FOREACH, *FUSED_OPTIMIZERS)):
        return f"aten.{name}: its kernels are unknown; counted as one kernel that moves each tensor once"
    if name in SORTED and any(
        each.dtype in (torch.bool, torch.uint8) for each in tensors_of(step.given.get("indices"))
    ):
        return f"aten.{name}: PyTorch first looks for the places that the mask selects; that is not counted"
    if name in SORTED and step.given.get("accumulate", True):
        return f"aten.{name}: PyTorch may sort the positions to add duplicates; the sort is not counted"
    inputs = [each for each in (node.meta.get("val") for node in step.node.all_input_nodes) if _is_tensor(each)]
    if reason := unknown_arithmetic(name, inputs):
        return f"aten.{reason}"
    if name in ORDERS:
        return f"aten.{name}: one throughput for all row lengths; it may take 0.5x to 4x the predicted time"
    if name.rstrip("_") in UNMEASURED:
        return f"aten.{name}: counted as one kernel that moves each tensor once; scans and its atomics take longer"
    if name in CONVOLUTIONS:
        given = [node.meta.get("val") for node in step.node.all_input_nodes]
        image = step.given["input" if "input" in step.given else "self"]
        if 1 < step.given.get("groups", 1) < image.shape[1]:
            return (
                "convolutions in groups: timed as one without groups; with them, RegNetY took 1.2 times its predicted "
                "time on an H100, compiled 2.6 times"
            )
        if step.given.get("transposed"):
            return "transposed convolutions: timed as one kernel at the rate of a convolution; not measured"
        if is_channels_first(max(given, key=torch.Tensor.numel)):
            return (
                "convolutions of NCHW tensors: cuDNN may convert them to NHWC and back, which adds kernels; "
                "channels_last avoids it"
            )
    return ""


ORDERS = frozenset(["sort", "topk"])
UNMEASURED = frozenset("cumsum cumprod logcumsumexp scatter_reduce index_reduce".split())
SORTED = frozenset("index_put index_put_ _index_put_impl_ embedding_dense_backward".split())


def _is_tensor(value) -> bool:
    return isinstance(value, torch.Tensor)


def is_left_out(step: TracedStep) -> bool:
    """Return whether it is left out for lack of a known GPU kernel."""
    return not step.launches or bool(_OF_A_CPU.search(step.node.target.overloadpacket.__name__))


def is_known(name: str) -> bool:
    """Return whether the throughput of PyTorch's kernel for it was measured, or follows from its FLOPs."""
    return name in MEASURED or getattr(torch.ops.aten, name, None) in FLOP_FORMULAS


MEASURED = frozenset(name for names in KINDS.values() for name in names.split())

# Maximum tensors and blocks per launch over tensor lists, by the number of lists, and elements per block.
# Source: aten/src/ATen/native/cuda/MultiTensorApply.cuh.
TENSORS_OF_A_LAUNCH = (110, 64, 48, 36, 30)
BLOCKS_OF_A_LAUNCH = 320
CHUNK = 65536
_SCALAR_TENSOR = torch.ops.aten.scalar_tensor.default


def launches_of(step: TracedStep) -> int:
    """Return how many kernels a GPU launches for it: several for a foreach operator with long lists, plus a fill for
    each number that torch.where turns into a tensor (where, aten/src/ATen/native/TensorCompare.cpp)."""
    name = step.node.target.overloadpacket.__name__
    if not step.launches or not name.startswith((FOREACH, *FUSED_OPTIMIZERS)):
        numbers = [each for each in step.node.args if getattr(each, "target", None) is _SCALAR_TENSOR]
        return len(step.launches) + len(numbers) + (name == "_safe_softmax")  # calls where itself
    lists = [value for value in step.given.values() if isinstance(value, list | tuple) and tensors_of(value)]
    depth = len(lists) + (name[-1] != "_")  # an out-of-place operator creates another list
    most = TENSORS_OF_A_LAUNCH[min(depth, len(TENSORS_OF_A_LAUNCH)) - 1]
    launches = tensors = blocks = 0
    for tensor in tensors_of(lists[0]):
        tensors += 1
        for left in reversed(range(-(-tensor.numel() // CHUNK))):
            blocks += 1
            if blocks == BLOCKS_OF_A_LAUNCH or (tensors == most and not left):
                launches, blocks, tensors = launches + 1, 0, min(left, 1)
    return max(1, launches + (blocks > 0))
