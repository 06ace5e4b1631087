"""Inductor, torch.compile's code generator, for a GPU that this machine does not have.

Inductor decides what to fuse and writes Triton from shapes, dtypes and a few properties of the GPU. Given those and
tensors without data, it writes the same source as on the GPU. Only the choices that it makes by timing are missing: a
kernel's configuration and a matmul's template.
"""

import importlib.util
import re
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch.fx import GraphModule
from torch.nn import functional

from helpers.instruments.devices import DEVICES, Device
from helpers.instruments.fusion.gpu_ways import WAYS
from helpers.instruments.occupancy_calculator import REGISTERS, WARP, limits

HEAD = """import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import math as tl_math
from triton.language.extra.cuda import libdevice
"""
ATTENTION = WAYS[functional.scaled_dot_product_attention]
KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''.*?(@triton\.jit\n.*?)\n'''", re.DOTALL)


@dataclass(frozen=True)
class InductorCode:
    """One function as Inductor compiles it for one GPU.

    Attributes:
        graph: Inductor's input: ATen operators, as eager PyTorch would run them.
        lowered: the graph after Inductor's decompositions and passes.
        buffers: the scheduler's nodes before fusion, one per buffer or extern call.
        groups: for each kernel after fusion, the names of the buffers that it computes.
        traffic: for each group, the bytes that its kernel reads and writes, as Inductor counts them.
        kernels: name -> source of each Triton kernel, with its `@triton.jit`.
        wrapper: the Python that allocates and launches.
        device: the GPU it was written for.
    """

    graph: GraphModule
    lowered: GraphModule
    buffers: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    traffic: tuple[int, ...]
    kernels: Mapping[str, str]
    wrapper: str
    device: Device

    @property
    def calls(self) -> list[str]:
        """The wrapper's launches in order: kernels by name, and library calls such as `extern_kernels.mm`."""
        body = self.wrapper.partition("def call(")[2]
        return re.findall(
            r"^ +(?:\w+ = )?((?:triton_\w+|extern_kernels\.\w+|torch\.ops\.[\w.]+))(?:\.run)?\(", body, re.M
        )

    def kernel(self, name: str | None = None):
        """Return the `@triton.jit` kernel of that name (default: the only one) to launch, meter or compile.

        Raises:
            ValueError: there are several and none is named, or none has this name.
        """
        if name is None and len(self.kernels) == 1:
            (name,) = self.kernels
        if name not in self.kernels:
            raise ValueError(f"no kernel {name!r}: this function has {', '.join(self.kernels) or 'none'}; name one")
        # Triton reads a kernel's source from its file, which must outlive the kernel.
        folder = Path(tempfile.mkdtemp(prefix="inductor-"))
        path = folder / f"{name}.py"
        path.write_text(f"{HEAD}\n\n{self.kernels[name]}\n")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)


def inductor_code(
    function: Callable, *inputs: torch.Tensor, device: str | Device = "H100", source: bool = True, **options
) -> InductorCode:
    """Compile a function with Inductor for a GPU that this machine may lack, down to Triton source.

    Args:
        function: a function of tensors; only its forward pass is compiled.
        inputs: tensors; shape, strides and dtype matter, data and device don't.
        device: a name in DEVICES with a compute capability of 7.0 or more, or a Device.
        source: False to stop once kernels are fused, in half the time: `kernels` and `wrapper` are then empty.
        options: of torch._inductor.config, by name: `combo_kernels=True`.

    Raises:
        ValueError: an unknown device.
    """
    from torch._dynamo.device_interface import CudaInterface  # noqa: F401  registers CUDA's
    from torch._inductor import config
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    device = device if isinstance(device, Device) else DEVICES[device]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    seen = {"before": (), "after": (), "bytes": ()}

    def before(nodes):
        seen["before"] = tuple(node.get_name() for node in nodes)
        return nodes

    def after(nodes):
        seen["after"] = tuple(tuple(part.get_name() for part in node.get_nodes()) for node in nodes)
        seen["bytes"] = tuple(int(node.get_read_write_buffers_sizes()) for node in nodes)
        return nodes

    settings = {"_pre_fusion_custom_pass": before, "_post_fusion_custom_pass": after} | options
    with ExitStack() as entered:
        for change in absent_gpu(device):
            entered.enter_context(change)
        entered.enter_context(config.patch(settings))
        entered.enter_context(torch.no_grad())
        entered.enter_context(mode)
        tensors = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cuda") for each in inputs]
        graph = make_fx(function)(*tensors)
        lowered = make_fx(function, decomposition_table=select_decomp_table())(*tensors)
        entered.enter_context(V.set_fake_mode(mode))
        # Unused casts keep its patterns from matching. Other unused operations may write to a tensor.
        cast = torch.ops.prims.convert_element_type.default
        lowered.graph.eliminate_dead_code(is_impure_node=lambda node: node.target is not cast)
        joint_graph_passes(lowered)
        post_grad_passes(lowered, is_inference=True)
        lowering = GraphLowering(lowered, example_inputs=tensors, shape_env=mode.shape_env, is_inference=True)
        entered.enter_context(V.set_graph_handler(lowering))
        entered.enter_context(V.set_debug_handler(DebugContext()))
        lowering.run(*tensors)
        if source:
            wrapper = lowering.codegen()[0].value
        else:
            lowering.init_wrapper_code()
            lowering._update_scheduler()
            wrapper = ""
    return InductorCode(
        graph, lowered, seen["before"], seen["after"], seen["bytes"], dict(KERNEL.findall(wrapper)), wrapper, device
    )


def flex_code(
    score_mod: Callable, *, batch: int, heads: int, tokens: int, head_dim: int, device: str | Device = "H100", **options
) -> InductorCode:
    """Compile FlexAttention with a `score_mod`, in bf16 and without a mask, as `inductor_code` does.

    Args:
        score_mod: score, batch, head, query index, key index -> score.
        options: of torch._inductor.config, by name.
    """
    from torch._higher_order_ops.flex_attention import flex_attention
    from torch.nn.attention.flex_attention import noop_mask

    whole = 1 << 30  # FlexAttention's own block size without a mask: one block covers everything
    kernel_options = {"BACKEND": "TRITON", "PRESCALE_QK": False, "ROWS_GUARANTEED_SAFE": False, "WRITE_DQ": True}
    kernel_options |= {"BLOCKS_ARE_CONTIGUOUS": False, "OUTPUT_LOGSUMEXP": False, "OUTPUT_MAX": False}

    def attention(q, k, v, counts, blocks):
        lists = (counts, blocks, None, None)
        mask = (tokens, tokens, *lists, *lists, None, None, None, None, whole, whole, noop_mask)
        return flex_attention(q, k, v, score_mod, mask, head_dim**-0.5, kernel_options, (), ())[0]

    q = torch.empty(batch, heads, tokens, head_dim, dtype=torch.bfloat16, device="meta")
    counts, blocks = (torch.empty(size, dtype=torch.int32, device="meta") for size in ((1, 1, 1), (1, 1, 1, 1)))
    return inductor_code(attention, q, q, q, counts, blocks, device=device, **options)


def absent_gpu(device: Device) -> list:
    """Return context managers that make Inductor see this GPU."""
    from torch._inductor.runtime.hints import DeviceProperties

    major, minor = device.compute_capability
    threads = limits(device.compute_capability).warps * WARP
    shared = {"regs_per_multiprocessor": REGISTERS, "max_threads_per_multi_processor": threads, "warp_size": WARP}
    known = DeviceProperties(
        type="cuda", index=0, multi_processor_count=device.sms, cc=10 * major + minor, major=major,
        max_threads_per_block=1024, **shared,
    )  # fmt: skip
    asked = types.SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        multi_processor_count=device.sms,
        total_memory=device.memory,
        gcnArchName="",
        **shared,
    )
    patched = [
        ("torch.cuda.get_device_properties", lambda *_: asked),
        ("torch.cuda.get_device_capability", lambda *_: (major, minor)),
        ("torch.cuda.current_device", lambda: 0),
        ("torch.utils._triton.triton_hash_with_backend", lambda: "absent"),
        ("torch._inductor.scheduler.has_triton", lambda *_: True),
        ("torch._higher_order_ops.flex_attention._permute_strides", permuted),
        ("torch.nn.functional.scaled_dot_product_attention", ATTENTION),
        ("torch._inductor.fx_passes.fuse_attention._scaled_dot_product_attention", ATTENTION),
    ]
    changes = [mock.patch(name, replacement) for name, replacement in patched]
    return [*changes, mock.patch.object(DeviceProperties, "create", staticmethod(lambda _: known))]


def permuted(out: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a tensor like `out` with its dimensions in the order of these strides. PyTorch's own also copies data."""
    order = sorted(range(out.dim()), key=lambda dim: strides[dim])
    made, step = [0] * out.dim(), 1
    for dim in order:
        made[dim], step = step, step * out.shape[dim]
    return out.new_empty_strided(out.shape, made)
