"""A launch on the local GPU, through cuda-core, on PyTorch's current stream; tensors are not copied."""

import functools

import torch
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode
from cuda.core import launch as start

from helpers.instruments.cuda.kernel import tensors_of
from helpers.instruments.devices import this_device

_WITHOUT_ASKING = 48 * 1024  # bytes of dynamic shared memory that any kernel may have


class _Stream:
    """PyTorch's stream as cuda-core takes any stream: by its protocol."""

    def __init__(self, stream: torch.cuda.Stream):
        self._handle = stream.cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@functools.lru_cache(maxsize=256)
def _loaded(cubin: bytes, entry: str, index: int):
    Device(index).set_current()
    return ObjectCode.from_cubin(cubin).get_kernel(entry)


def launch(launch, arguments: tuple) -> None:
    """Start a CudaLaunch with checked arguments.

    Raises:
        ValueError: the tensors are not all on one GPU.
        RuntimeError: the driver refuses.
    """
    devices = {tensor.device for tensor in tensors_of(arguments)}
    if len(devices) > 1:
        raise ValueError(
            f"{launch.kernel.name}: tensors on {', '.join(sorted(map(str, devices)))}: move them to one GPU"
        )
    (device,) = devices
    with torch.cuda.device(device):
        compiled = launch.kernel.compiled_for(this_device())
        kernel = _loaded(compiled.cubin, compiled.entry, device.index)
        if launch.dynamic_shared_memory > _WITHOUT_ASKING:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (failed,) = driver.cuKernelSetAttribute(
                most, launch.dynamic_shared_memory, driver.CUkernel(int(kernel.handle)), driver.CUdevice(device.index)
            )
            if failed:
                raise RuntimeError(f"{launch.kernel.name}: the driver refuses its shared memory: {failed.name}")
        declared = zip(arguments, launch.kernel.declared.values(), launch.kernel.parameters, strict=True)
        arrays = []  # of addresses; freed in the stream's order, after the kernel

        def passed(argument, parameter):
            if isinstance(argument, list | tuple):
                arrays.append(torch.tensor([each.data_ptr() for each in argument], dtype=torch.int64, device=device))
                return arrays[-1].data_ptr()
            return argument.data_ptr() if isinstance(argument, torch.Tensor) else launch.number(argument, *parameter)

        values = [passed(argument, parameter) for argument, *parameter in declared]
        together = {"is_cooperative": True} if launch.cooperative else {}
        config = LaunchConfig(grid=launch.grid, block=launch.block, shmem_size=launch.dynamic_shared_memory, **together)
        start(_Stream(torch.cuda.current_stream()), config, kernel, *values)
