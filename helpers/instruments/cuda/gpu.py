"""Launch on the local GPU, on PyTorch's current stream, without copying tensors."""

import ctypes
import functools

import torch
from cuda.bindings import driver
from cuda.core import Device, ObjectCode

from helpers.instruments.cuda.kernel import tensors_of
from helpers.instruments.devices import this_device

_WITHOUT_ASKING = 48 * 1024  # bytes of dynamic shared memory that any kernel may use


@functools.lru_cache(maxsize=256)
def _loaded(cubin: bytes, entry: str, index: int):
    Device(index).set_current()
    return ObjectCode.from_cubin(cubin).get_kernel(entry)


def launch(launch, arguments: tuple) -> None:
    """Start a CudaLaunch with checked arguments.

    Raises:
        ValueError: the tensors are not all on one GPU.
        RuntimeError: the driver rejects the launch.
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
                raise RuntimeError(f"{launch.kernel.name}: the driver rejects its shared memory: {failed.name}")
        arrays = []  # of addresses; freed in stream order, after the kernel

        def passed(argument):
            if isinstance(argument, list | tuple):
                arrays.append(torch.tensor([each.data_ptr() for each in argument], dtype=torch.int64, device=device))
                return arrays[-1].data_ptr()
            return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument

        block = launch.parameter_bytes([passed(argument) for argument in arguments])
        held = ctypes.create_string_buffer(block, len(block))
        offsets = [parameter.offset for parameter in launch.kernel.declared.values()]
        places = (ctypes.c_void_p * len(offsets))(*(ctypes.addressof(held) + offset for offset in offsets))
        (failed,) = driver.cuLaunchKernelEx(
            _configuration(launch), driver.CUfunction(int(kernel.handle)), ctypes.addressof(places), 0
        )
        if failed:
            raise RuntimeError(f"{launch.kernel.name}: the driver rejects the launch: {failed.name}")


def _configuration(launch) -> driver.CUlaunchConfig:
    """Return the launch's configuration: its sizes, on PyTorch's current stream."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.dynamic_shared_memory
    config.hStream = torch.cuda.current_stream().cuda_stream
    if launch.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config
