"""Find existing kernels for a group: this course's, a PyTorch call, torch.compile.

The kernels are named, not imported: the instruments don't depend on them. Patterns leave out dtype casts.
"""

import itertools
from collections.abc import Iterable

RMS_NORM = "pow mean add rsqrt mul mul"
ACTIVATIONS = "relu gelu silu sigmoid tanh"

# Kernel in kernels/ -> its operators, in graph order; "act" is any of ACTIVATIONS.
KERNELS = {
    "add_gelu": ("add gelu",),
    "swiglu": ("silu mul",),
    "geglu": ("gelu mul",),
    "residual_act": ("add act", "act add"),
    "bias_dropout_residual": ("add native_dropout add",),
    "softmax": ("_softmax",),
    "softmax_dropout": ("_softmax native_dropout",),
    "cross_entropy": ("_log_softmax nll_loss_forward",),
    "layer_norm": ("native_layer_norm",),
    "layer_norm_act": ("native_layer_norm act",),
    "residual_layer_norm": ("add native_layer_norm",),
    "rms_norm": ("_fused_rms_norm", RMS_NORM),
    "residual_rms_norm": ("add _fused_rms_norm", f"add {RMS_NORM}"),
    "linear_act": ("addmm act", "mm add act", "mm act"),
    "conv_bn_act": ("convolution native_batch_norm act", "convolution cudnn_batch_norm act"),
}
COMPILE = {
    "pointwise": "torch.compile generates this kernel",
    "rows": "torch.compile generates this kernel",
    "matmul": 'torch.compile leaves the matmul to a library; mode="max-autotune" may generate this kernel',
    "convolution": 'torch.compile leaves the convolution to a library; mode="max-autotune" may generate this kernel',
    "attention": "torch.compile replaces its usual forms with PyTorch's own kernel",
}
CALLS = {
    "attention": "torch.nn.functional.scaled_dot_product_attention",
    "_fused_rms_norm": "torch.nn.functional.rms_norm",
    RMS_NORM: "torch.nn.functional.rms_norm",
}


NORMS = {"native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"}


def libraries_for(kind: str, names: Iterable[str]) -> list[str]:
    """Library kernels that fuse these operators already."""
    names, found = list(names), []
    after = dict(itertools.pairwise(names))
    if kind != "rows" and NORMS & set(names):  # evaluation only: in training it is a reduction
        found.append("torch.nn.utils.fuse_conv_bn_eval folds the norm into the weights")
    if "convolution" in names and {"add", "relu"} & set(names):
        found.append("cuDNN's fused convolution adds the bias and the residual, and applies ReLU")
    if after.get("addmm") in ("relu", "gelu"):
        found.append("cuBLASLt's epilogue: torch._addmm_activation for ReLU and GELU")
    if any(name.startswith("_foreach_") for name in names):
        found.append("the optimizer's fused=True: PyTorch's own kernel")
    return found


def kernel_for(kind: str, names: Iterable[str]) -> str | None:
    """Return the kernel in kernels/ that does these operators, or None."""
    if kind == "attention":
        return "flash_attention"
    plain = [name for name in names if name != "_to_copy"]
    forms = {" ".join(plain), " ".join("act" if name in ACTIVATIONS.split() else name for name in plain)}
    for kernel, patterns in KERNELS.items():
        if forms & set(patterns):
            return kernel
    return None


def call_for(kind: str, names: Iterable[str]) -> str | None:
    """Return the PyTorch call that does these operators in one kernel, or None."""
    return CALLS.get(kind) or CALLS.get(" ".join(name for name in names if name != "_to_copy"))
