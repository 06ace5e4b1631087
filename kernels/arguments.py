"""What every launcher asks of its tensors before it allocates anything."""

import torch

from kernels import runtime

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_alike(operation: str, dtypes: tuple[torch.dtype, ...] = FLOATS, **tensors: torch.Tensor) -> None:
    """Check that the tensors share one shape, one of `dtypes` and one device that kernels run on.

    Args:
        operation: the public function's name, for the message.
        dtypes: the dtypes it takes.
        tensors: the arguments by the names their user knows.

    Raises:
        TypeError: not a tensor, a dtype not taken, or two dtypes.
        ValueError: two shapes, two devices, or a CPU tensor where kernels run on a GPU.
    """
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{operation} takes tensors, got {name} of type {type(tensor).__name__}: use torch.tensor")
        if tensor.dtype not in dtypes:
            taken = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{operation} takes {taken}, got {name} of {tensor.dtype}: convert it with .to(dtype)")
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{operation} takes one dtype, got {first_name} of {first.dtype} and {name} of {tensor.dtype}: "
                f"convert one with .to(dtype)"
            )
        if tensor.shape != first.shape:
            raise ValueError(
                f"{operation} takes one shape, got {first_name} of {tuple(first.shape)} and {name} of "
                f"{tuple(tensor.shape)}: expand one to the other's shape"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{operation} takes tensors on one device, got {first_name} on {first.device} and {name} on "
                f"{tensor.device}: move one with .to(device)"
            )
    if not (first.is_cuda or (first.is_cpu and runtime.interprets())):
        raise ValueError(f"{operation} runs on the GPU here, got tensors on {first.device}: move them with .cuda()")
