"""Tuned kernels: faster than an operation's plain kernel on some calls.

Each module implements one idea. It states which calls its kernels take and how much faster they are than the plain
kernel, and registers them with kernels.variants.tuned. Plain files do not import this package.
"""

from kernels.tuned import (  # noqa: F401  (importing a module registers its kernels)
    bias_dropout_residual,
    conv_descriptors,
    cross_entropy,
    decode_attention,
    ffn_gated,
    hopper_attention,
    hopper_attention_backward,
    layer_norm_pairs,
    linear_descriptors,
    linear_few_rows,
    moe_int8,
    rms_norm_few_rows,
    rms_norm_reread,
    split_softmax,
    top_k,
    wide_softmax,
    wide_softmax_dropout,
)
