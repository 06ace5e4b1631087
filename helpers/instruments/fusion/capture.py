"""The graph of a model as eager PyTorch runs it on a GPU: one node per ATen operator, below autograd.

Nothing is decomposed further or made functional, so each node is what eager PyTorch launches, including views and
in-place writes. The backward pass is autograd's own, traced the same way: AOTAutograd's joint graph has the same
operators, but is functional, so in-place writes would become copies. Where PyTorch's code path differs between GPU and
CPU (gpu_ways.py: RMSNorm, dropout, attention, recurrent layers, autocast, optimizers), the trace follows the GPU's.

The model itself is never run. During tracing, every tensor that it can reach is replaced by one without values and put
back afterwards (hollow.py), so a training step leaves weights, gradients and the optimizer's state unchanged.

Each node records its origin: meta["module"], the path of the nn.Module; meta["line"], the innermost line of source
outside PyTorch; meta["unsure"], if present, the unknown part. An input with meta["host"] true stays on the CPU,
such as an optimizer's step count.
"""

import contextlib
import linecache
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.instruments.fusion.gpu_ways import (
    GPU_OPERATORS,
    as_masked_fill,
    as_on_a_gpu,
    believed_real,
    follow_on_the_host,
    host_marks,
    marks,
)
from helpers.instruments.fusion.hollow import Hollow, is_subclass, is_users
from helpers.instruments.fusion.known_values import KnownValues
from helpers.instruments.fusion.plan import source_name

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[3] / "helpers"))
_STANDARD = str(Path(contextlib.__file__).parent)


def capture(
    model: Callable,
    *inputs,
    keywords: dict | None = None,
    backward: bool = False,
    capability: tuple[int, int] = (9, 0),
) -> tuple[GraphModule, list[torch.Tensor]]:
    """Trace `model(*inputs, **keywords)` without running it.

    Args:
        model: an nn.Module, any function, or a torch.export.ExportedProgram, whose dynamic sizes stay symbols in the
            graph's shapes. torch.compile's wrapper is removed. A function may be a whole training step: modules and
            optimizers that it reaches become inputs of the graph, and are left unchanged. An optimizer step without
            state is traced as a later step.
        inputs: its arguments, nested or not; tensors on any device, including "meta".
        keywords: its keyword arguments.
        backward: also compute the gradients of all parameters and inputs that require one: of the result if it is a
            scalar, else of its product with gradients that become inputs of the graph.
        capability: the GPU's compute capability, for models that ask for it.

    Returns:
        the graph and its inputs: the tensors of parameters, buffers and inputs, then others that it reaches.

    Raises:
        TypeError: model cannot be called.
        ValueError: it cannot be traced, for example because it branches on values; the message has the line at fault.
    """
    exported = model if isinstance(model, torch.export.ExportedProgram) else None
    model = exported.module() if exported else unwrapped(model)
    if not callable(model):
        raise TypeError(f"pass a module or a function, not {type(model).__name__}: wrap it in a lambda")
    keywords = dict(keywords or {})
    open_sizes = _open_sizes(exported) if exported else []
    fake = open_sizes[0].fake_mode if open_sizes else FakeTensorMode(allow_non_fake_inputs=True)
    hollow = Hollow(fake)
    roots = [model, list(inputs), keywords]
    with hollow, _randomness_kept(), torch.device("cpu"):
        first = [*_state(model), *(each for each in tree_leaves((inputs, keywords)) if isinstance(each, torch.Tensor))]
        _refuse_without_values(first)
        try:
            for place, tensor in enumerate(first):
                known = len(first) - len(open_sizes) <= place
                hollow.stand_in(tensor, open_sizes[place - len(first)] if known else None)
            hollow.exchange(roots)
            with fake:
                traced = _trace(model, roots, hollow, backward, bool(open_sizes), capability)
        except Exception as error:
            raise ValueError(_refusal(error, model)) from error
        _refuse_untraced(traced, model)
        wanted = len({id(tensor) for tensor in first})
        for node, tensor in zip(traced.graph.find_nodes(op="placeholder"), hollow.tensors, strict=True):
            node.meta["host"] = id(tensor) in hollow.on_the_host()
        real = _without_unused(traced, hollow.tensors, wanted)
    for node in reversed(traced.graph.nodes):
        if node.op == "call_function":
            node.target = GPU_OPERATORS.get(node.target, node.target)
            if getattr(node.target, "namespace", "") == "profiler" and not node.users:
                traced.graph.erase_node(node)
    traced.recompile()
    return traced, real


@contextlib.contextmanager
def _randomness_kept() -> Iterator[None]:
    """Restore the random state of PyTorch, Python and NumPy, which a model may use."""
    of_python, numpy = random.getstate(), sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)


def unwrapped(model):
    """Return the original of a module or function compiled by torch.compile."""
    while (
        inner := getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None)
    ) is not None:
        model = inner
    return model


def _state(model) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []


def _refuse_without_values(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.is_nested:
            raise ValueError("a nested tensor's lengths are data: pass a padded tensor")
        _refuse_layout(tensor)
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise ValueError("a lazy module has no shapes yet: call it once before")
        if is_subclass(tensor):
            raise ValueError(
                f"{type(tensor).__name__} is a subclass of torch.Tensor with operators of its own: pass plain tensors"
            )


def _trace(model, roots, hollow: Hollow, backward: bool, symbolic: bool, capability) -> GraphModule:
    values = KnownValues()
    places = _Places(hollow.modules(model), values)

    def call():
        _, inputs, keywords = roots
        values.start([] if symbolic else zip(hollow.tensors, hollow.stand_ins, strict=True))
        with believed_real(values.has):
            return _tensors(model(*inputs, **keywords))

    cached = torch.is_autocast_cache_enabled()

    def results(*tensors):
        torch.set_autocast_cache_enabled(cached)  # make_fx turns it off, which would cast a weight at each use
        if symbolic:  # which creates its own tensors
            hollow.exchange(roots, instead=tensors)
        with as_on_a_gpu(capability), places.followed():
            found = _gradients(tensors, call()) if backward else call()
        hollow.refuse_more_backward()
        places.refuse_swallowed()
        return [*(each for each in found if each is not None), *hollow.made_since(roots)]

    if hollow.optimizers(fresh=True):
        with as_on_a_gpu(capability), places.followed():
            call()  # creates the optimizer's state
        hollow.exchange(roots, again=True)
    way = {"tracing_mode": "symbolic" if symbolic else "real", "_allow_non_fake_inputs": True}
    try:
        return make_fx(results, **way)(*hollow.stand_ins)
    finally:
        torch.clear_autocast_cache()  # of an enclosing autocast


def _gradients(tensors, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    results = [each for each in results if each.requires_grad]
    if not wanted or not results:
        raise ValueError("nothing requires a gradient: set requires_grad on an input, or drop backward")
    alone = len(results) == 1 and results[0].numel() == 1
    incoming = None if alone else [torch.ones_like(each) for each in results]
    return list(torch.autograd.grad(results, wanted, incoming, allow_unused=True))


def _refuse_untraced(traced: GraphModule, model) -> None:
    """Raise if the graph has a constant without values: a result of operators that the tracer didn't see."""
    for node in traced.graph.find_nodes(op="get_attr"):
        if isinstance(getattr(traced, node.target, None), FakeTensor):
            user = next((each for each in node.users if each.meta.get("line")), node)
            file, number = user.meta.get("line") or ("", 0)
            line = " ".join(linecache.getline(file, number).split())[:100]
            where = f"; {source_name(file)}:{number}: `{line}`" if file else ""
            raise ValueError(
                f"{_name(model)} cannot be traced: operators ran out of the tracer's sight, in another thread{where}"
            )


def _without_unused(traced: GraphModule, tensors: list[torch.Tensor], wanted: int) -> list[torch.Tensor]:
    """Drop unused inputs beyond the first `wanted`; return the tensors of the remaining ones."""
    left = []
    for place, (node, tensor) in enumerate(zip(traced.graph.find_nodes(op="placeholder"), tensors, strict=True)):
        if place < wanted or node.users:
            left.append(tensor)
        else:
            traced.graph.erase_node(node)
    return left


class _Places(TorchDispatchMode):
    """Records the module and source line of each node, and rejects writes to real tensors.

    Known values answer the model's queries about them.

    A node of the backward pass gets the place of the operator that it differentiates.
    """

    def __init__(self, names: dict[int, str], values: KnownValues):
        super().__init__()
        self._names, self._values, self._modules, self._forward = names, values, [], {}
        self._refused: Exception | None = None

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        def enter(module, inputs):
            self._modules.append(self._names.get(id(module), type(module).__name__))

        def leave(module, inputs, results):
            self._modules.pop()

        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            with self, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks")
                yield
        finally:
            self._modules.clear()
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        _refuse_writes(func, args, kwargs)
        if (known := self._values.scalar(func, args)) is not None:
            return known
        func, args = as_masked_fill(func, args)
        if func.namespace == "quantized" or func.overloadpacket.__name__.startswith("quantize_per_"):
            raise ValueError(QUANTISED)
        for each in tree_leaves(args):
            if isinstance(each, torch.Tensor):
                _refuse_layout(each)
        try:
            result = self._noted(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            self._refused = error
            raise
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                _refuse_layout(each)
        self._values.follow(func, args, kwargs, result)
        return result

    def refuse_swallowed(self) -> None:
        """Raise again what the model itself caught: with values, it would have gone on differently."""
        if self._refused is not None:
            raise self._refused

    def _noted(self, func, args, kwargs):
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **kwargs)
        nodes = mode.tracer.graph._root  # a doubly linked list: its last node is the root's predecessor
        last = nodes._prev
        place = self._place() | host_marks(func, args)
        result = func(*args, **kwargs)
        follow_on_the_host(place, result)
        node = nodes._prev
        while node is not last:
            node.meta.update(place)
            node = node._prev
        return result

    def _place(self) -> dict:
        current = torch._C._current_autograd_node()
        number = current._sequence_nr() if current is not None else torch.autograd._get_sequence_nr() - 1
        if current is not None and number in self._forward:
            return self._forward[number] | {"backward": True}
        place = {"module": self._modules[-1] if self._modules else "", "line": _line(sys._getframe(3))}
        place |= marks()
        if current is None:
            self._forward.setdefault(number, place)
        return place


QUANTISED = "a quantised tensor has kernels for CPUs alone: pass its int8 values and scales"
SPARSE = "a sparse tensor's size depends on values: pass a dense one, or its indices and values"


def _refuse_layout(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided and not tensor.is_nested:
        raise ValueError(SPARSE)
    if tensor.is_quantized:
        raise ValueError(QUANTISED)


def _refuse_writes(func, args, kwargs) -> None:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor):
                raise ValueError(
                    f"{func.overloadpacket.__name__} writes to a tensor of shape {tuple(tensor.shape)} that the "
                    "analyser cannot find: pass it, or the object that holds it, as an argument"
                )


def _is_library(file: str) -> bool:
    """Return whether a file is PyTorch's, Python's or this module, whose lines are of no use to a model's author."""
    standard = file.startswith(_STANDARD) and "site-packages" not in file
    return standard or file.startswith((*_LIBRARIES, "<frozen", "<string>", "<eval_with_key>"))


def _line(frame) -> tuple[str, int] | None:
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def _refusal(error: Exception, model) -> str:
    """Return one line: the operation that cannot be traced, why, and its source line."""
    reason = _reason(error)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _is_library(each.filename)]
    if not frames:
        return f"{_name(model)} cannot be traced: {reason}"
    where = [frames[-1]]
    if not is_users(where[0].filename):  # in a package: also the user's own line that calls it
        where += [each for each in frames if is_users(each.filename)][-1:]
    places = ", called in ".join(f"{source_name(each.filename)}:{each.lineno}, {each.name}" for each in where)
    line = " ".join((where[0].line or linecache.getline(where[0].filename, where[0].lineno or 0)).split())[:100]
    return f"{_name(model)} cannot be traced: {reason}; {places}: `{line}`"


WHY = {
    "aten._local_scalar_dense.default": "it takes a number out of a tensor (.item(), float(x), a branch on its value), "
    "and the values are not known",
    "aten.equal.default": "whether two tensors are equal depends on their values",
    "aten.nonzero.default": "the shape of a result depends on values (nonzero, x[mask], torch.where(mask))",
    "aten.masked_select.default": "the shape of a result depends on values (masked_select)",
    "aten.unique_consecutive.default": "the shape of a result depends on values (unique)",
    "aten._unique2.default": "the shape of a result depends on values (unique)",
    "aten.bincount.default": "the shape of a result depends on values (bincount without minlength)",
    "aten.repeat_interleave.Tensor": "the shape of a result depends on values (repeat_interleave without output_size)",
}


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return WHY.get(said, f"{said}: its result depends on values")
    if found := re.search(r"HigherOrderOperator (\w+)", said):
        return f"{found[1]} chooses between functions by values: pass the function that runs"
    if type(error) is ValueError and not said.startswith("Cannot"):
        return said[:200]
    return f"{type(error).__name__}: {said[:160]}"


def _open_sizes(exported: torch.export.ExportedProgram) -> list[torch.Tensor]:
    """Return the program's own inputs with symbolic sizes, or none if all sizes are numbers."""
    given = set(exported.graph_signature.user_inputs)
    found = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder" and node.name in given]
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    return tensors if any(isinstance(size, torch.SymInt) for each in tensors for size in each.shape) else []


def _tensors(result) -> list[torch.Tensor]:
    """Return every tensor in a result, including in objects that PyTorch's pytrees don't know, such as a cache."""
    found, waiting, seen = [], [result], set()
    while waiting:
        for leaf in tree_leaves(waiting.pop(0)):
            if isinstance(leaf, torch.Tensor):
                found.append(leaf)
            elif hasattr(leaf, "__dict__") and not callable(leaf) and id(leaf) not in seen:
                seen.add(id(leaf))
                waiting.append(list(vars(leaf).values()))
    return found


def _name(model) -> str:
    return getattr(model, "__name__", type(model).__name__)
