"""The fused kernels of the course.

Each operation's file defines its public function, such as `kernels.add_gelu`, its module, such as `kernels.LayerNorm`,
and its plain kernel, the one that its lesson builds. `CATALOGUE` maps each operation's name to its FusedOp.
kernels/tuned/ has faster kernels for some calls; `variant` chooses between the two.

`kernels.adamw` is public but not in CATALOGUE: it takes lists of tensors and returns None, while users of the catalogue
(tests, sweeps, PyTorch's operators, recorded times) pass tensors and compare results. Its OP is in its file.
"""

import sys

from kernels.elementwise.adamw import adamw
from kernels.elementwise.add_gelu import add_gelu
from kernels.elementwise.bias_dropout_residual import bias_dropout_residual
from kernels.elementwise.geglu import geglu
from kernels.elementwise.residual_act import residual_act
from kernels.elementwise.rope_cache import rope_cache
from kernels.elementwise.swiglu import swiglu
from kernels.rowwise.cross_entropy import cross_entropy
from kernels.rowwise.l2_norm import l2_norm
from kernels.rowwise.layer_norm import LayerNorm, layer_norm
from kernels.rowwise.layer_norm_act import LayerNormAct, layer_norm_act
from kernels.rowwise.layer_norm_int8 import layer_norm_int8
from kernels.rowwise.residual_layer_norm import residual_layer_norm
from kernels.rowwise.residual_rms_norm import residual_rms_norm
from kernels.rowwise.rms_norm import RMSNorm, rms_norm
from kernels.rowwise.sample import sample
from kernels.rowwise.softmax import softmax
from kernels.rowwise.softmax_dropout import softmax_dropout
from kernels.rowwise.softmax_topk import softmax_topk
from kernels.tiled.attention_scores import attention_scores
from kernels.tiled.conv_bn_act import conv_bn_act
from kernels.tiled.decoder_layer import decoder_layer
from kernels.tiled.ffn import FeedForward, ffn
from kernels.tiled.flash_attention import FlashAttention, flash_attention
from kernels.tiled.linear_act import LinearAct, linear_act
from kernels.tiled.moe_int8 import moe_int8
from kernels.tiled.paged_attention import paged_attention
from kernels.variants import variant

CATALOGUE = {
    fused.__name__: sys.modules[fused.__module__].OP
    for fused in (
        add_gelu,
        attention_scores,
        bias_dropout_residual,
        conv_bn_act,
        cross_entropy,
        decoder_layer,
        ffn,
        flash_attention,
        geglu,
        l2_norm,
        layer_norm,
        layer_norm_act,
        layer_norm_int8,
        linear_act,
        moe_int8,
        paged_attention,
        residual_act,
        residual_layer_norm,
        residual_rms_norm,
        rms_norm,
        rope_cache,
        sample,
        softmax,
        softmax_dropout,
        softmax_topk,
        swiglu,
    )
}

__all__ = [
    "CATALOGUE",
    "FeedForward",
    "FlashAttention",
    "LayerNorm",
    "LayerNormAct",
    "LinearAct",
    "RMSNorm",
    "adamw",
    "add_gelu",
    "attention_scores",
    "bias_dropout_residual",
    "conv_bn_act",
    "cross_entropy",
    "decoder_layer",
    "ffn",
    "flash_attention",
    "geglu",
    "l2_norm",
    "layer_norm",
    "layer_norm_act",
    "layer_norm_int8",
    "linear_act",
    "moe_int8",
    "paged_attention",
    "residual_act",
    "residual_layer_norm",
    "residual_rms_norm",
    "rms_norm",
    "rope_cache",
    "sample",
    "softmax",
    "softmax_dropout",
    "softmax_topk",
    "swiglu",
    "variant",
]


def __dir__():
    return __all__
