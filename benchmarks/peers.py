"""The same operations in Liger-Kernel, where that is installed: a provider that benchmarks time beside ours.

It is no dependency of the course: `pip install liger-kernel` adds the column.
"""

from collections.abc import Callable
from importlib.util import find_spec


def liger(name: str, inputs: tuple) -> Callable | None:
    """Liger's version of a catalogue operation, taking the same arguments.

    None where it is not installed, has no such operation, or refuses these inputs (rows of over 65536, for one).
    """
    if find_spec("liger_kernel") is None:
        return None
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    functions = {
        "cross_entropy": lambda x, labels: LigerCrossEntropyFunction.apply(
            x, labels, None, -100, 0.0, 0.0, "none", None, False
        )[0],
        "geglu": LigerGELUMulFunction.apply,
        "layer_norm": lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, 1e-5),
        "residual_rms_norm": lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(x, residual, weight, 1e-6),
        # Not in place: a backward pass that is timed again and again would eat its own gradient.
        "rms_norm": lambda x, weight: LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False),
        "softmax": LigerSoftmaxFunction.apply,
        "swiglu": LigerSiLUMulFunction.apply,
    }
    if name not in functions:
        return None
    try:
        functions[name](*inputs)
    except RuntimeError:
        return None
    return functions[name]
