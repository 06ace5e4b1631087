"""The same operations in Liger-Kernel, if installed.

The course does not depend on it: `pip install liger-kernel` adds the column.
"""

from collections.abc import Callable
from importlib.util import find_spec


def peers(name: str, inputs: tuple) -> dict[str, Callable]:
    """Return Liger's version, which rejects rows of more than 65536 columns.

    Its cross entropy waits for the GPU to count labels, and its backward pass only scales the forward's result.
    """
    if find_spec("liger_kernel") is None:
        return {}
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    functions = {
        "cross_entropy": lambda x, labels, *_: LigerCrossEntropyFunction.apply(
            x, labels, None, -100, 0.0, 0.0, "none", None, False
        )[0],
        "geglu": LigerGELUMulFunction.apply,
        "layer_norm": lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, 1e-5),
        "residual_rms_norm": lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(x, residual, weight, 1e-6),
        # Not in place: a backward pass timed repeatedly would overwrite its own gradient.
        "rms_norm": lambda x, weight: LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False),
        "softmax": LigerSoftmaxFunction.apply,
        "swiglu": LigerSiLUMulFunction.apply,
    }
    return {"Liger": functions[name]} if name in functions else {}
