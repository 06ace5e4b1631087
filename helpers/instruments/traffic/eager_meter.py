"""Traffic of eager PyTorch: every ATen operator that does work is one launch."""

import sys
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernels.interpreter.runtime
from helpers.instruments.traffic.footprint import Footprint, from_starts
from helpers.instruments.traffic.ledger import ByteCount, Ledger, footprint_of

# In place, without reading the old values. bernoulli_ reads its probabilities, but not its destination.
OVERWRITES = frozenset(
    "fill_ zero_ copy_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ "
    "_foreach_copy_ _foreach_zero_".split()
)

# Bookkeeping: renames, resizes or wraps memory without running a kernel.
FREE = frozenset("set_ resize_ resize_as_ lift lift_fresh scalar_tensor record_stream".split())

# Turn a Python scalar into a tensor for operators that require one.
WRAPS_A_SCALAR = frozenset(["lift_fresh", "scalar_tensor"])

# Uninitialised allocations; empty_like and others reduce to the first two.
ALLOCATES = frozenset(["empty", "empty_strided", "new_empty_strided"])

# PyTorch decomposes these differently from machine to machine, or works out an order of axes on the host (repeat); a
# GPU runs each as one kernel.
ONE_KERNEL = frozenset("copy_ convolution convolution_backward _grouped_mm repeat".split())

# These read a tensor without returning one. Others that return none only ask for a shape or a flag.
READS_WITHOUT_RESULT = frozenset(["equal", "_local_scalar_dense"])

# .item() copies one element to the host: bytes, but no kernel.
NOT_A_LAUNCH = frozenset(["_local_scalar_dense"])

# Arguments used only for their shape.
SHAPE_ONLY = {"nll_loss_backward": {"self"}, "nll_loss2d_backward": {"self"}}

# beta * self + a matmul: with beta = 0, self is not read, whatever it holds.
SCALES_SELF = frozenset("addmv addmm addbmm baddbmm addr _addmm_activation".split())

# Which elements of `self` an indexing operator reads: a function of the elements' ids and the other arguments.
READS_AT = {
    "gather": lambda ids, given: ids.gather(given["dim"], given["index"]),
    "index": lambda ids, given: torch.ops.aten.index(ids, given["indices"]),
    "index_select": lambda ids, given: ids.index_select(given["dim"], given["index"]),
    "nll_loss_forward": lambda ids, given: _picked_by_target(ids, given["target"], given["ignore_index"]),
    "take": lambda ids, given: ids.take(given["index"]),
}
# Which elements of `self` an operator writes in place.
WRITES_AT = {
    "_index_put_impl_": lambda ids, given: torch.ops.aten.index(ids, given["indices"]),
    "index_add_": lambda ids, given: ids.index_select(given["dim"], given["index"]),
    "index_copy_": lambda ids, given: ids.index_select(given["dim"], given["index"]),
    "index_fill_": lambda ids, given: ids.index_select(given["dim"], given["index"]),
    "scatter_": lambda ids, given: ids.gather(given["dim"], given["index"]),
    "scatter_add_": lambda ids, given: ids.gather(given["dim"], given["index"]),
    "scatter_reduce_": lambda ids, given: ids.gather(given["dim"], given["index"]),
    "index_reduce_": lambda ids, given: ids.index_select(given["dim"], given["index"]),
    "put_": lambda ids, given: ids.take(given["index"]),
}
ACCUMULATES = frozenset("index_add_ scatter_add_ scatter_reduce_ index_reduce_".split())
# Those whose functional form copies `self` first, with a kernel of its own. Source: TensorAdvancedIndexing.cpp.
COPIES_FIRST = frozenset("scatter scatter_add scatter_reduce index_add index_copy index_reduce".split())
# Read rows of a table that isn't called `self`.
READS_ROWS = frozenset(["_embedding_bag", "_embedding_bag_forward_only"])

_KEYS = torch._C.DispatchKey
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_LIBRARIES = tuple(str(Path(path).parent) + "/" for path in (torch.__file__, sys.modules["triton"].__file__, __file__))
_RUNTIME = kernels.interpreter.runtime.__file__


class EagerMeter(TorchDispatchMode):
    """Records every operator that PyTorch runs in a ledger.

    Operators arrive below autograd, so a backward pass is seen as it runs. A composite operator (`linear`, `zeros`, a
    custom operator that launches Triton kernels) is not a launch; the operators inside it are.
    """

    def __init__(self, ledger: Ledger):
        super().__init__()
        self._ledger = ledger
        self._name = None  # of the ATen operator that the learner's code called
        self._seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        place = _users_line()
        if place is None:
            return func(*args, **kwargs)
        self._seen += 1
        args = [self._wrapped(value, each) for value, each in zip(args, func._schema.arguments, strict=False)]
        given = arguments_of(func, args, kwargs)
        body = self._body(func, given)
        outer = self._name
        if func.namespace != "aten":
            self._name = None
        elif body is not _KEYS.CompositeImplicitAutograd:  # PyTorch decomposes these itself, except in inference mode
            self._name = outer or func.overloadpacket.__name__
        try:
            return self._run(func, args, kwargs, given, body, place)
        finally:
            self._name = outer

    def _run(self, func, args, kwargs, given, body, place):
        name = func.overloadpacket.__name__
        if name in COPIES_FIRST and not any(argument.is_out for argument in func._schema.arguments):
            in_place = getattr(getattr(torch.ops.aten, f"{name}_"), func._overloadname)
            with self:
                return in_place(args[0].clone(), *args[1:], **kwargs)
        if body is not None:
            before = self._seen, len(self._ledger.launches)
            with self:
                result = func._op_dk(body, *args, **kwargs)
            if (self._seen, len(self._ledger.launches)) != before:
                return result
            self._enter(func, given, *read_and_changed(func, given), result, place)
        elif _is_free(func):
            result = func(*args, **kwargs)
            if name in WRAPS_A_SCALAR and result.dim() == 0:
                self._ledger.storage(result).free = True
        else:
            if name == "where":
                numbers = tensors_of([given.get("self"), given.get("other")])
                self._ledger.uncounted_fills += sum(self._ledger.storage(each).free for each in numbers)
            read, changed = read_and_changed(func, given)  # before it runs, because it may change its own index
            result = self._compute(func, args, kwargs)
            self._enter(func, given, read, changed, result, place)
        return result

    def _wrapped(self, value, argument):
        """Wrap a number if the operator takes a tensor: PyTorch unwrapped it on the way here."""
        if str(argument.type) != "Tensor" or not isinstance(value, bool | int | float | complex):
            return value
        tensor = torch.tensor(value)
        self._ledger.storage(tensor).free = True
        return tensor

    def _body(self, func, given):
        return _body(func, given)

    def _compute(self, func, args, kwargs):
        return func(*args, **kwargs)

    def _enter(self, func, given, read, changed, result, place):
        ledger, name = self._ledger, func.overloadpacket.__name__
        made = tensors_of([given[argument.name] for argument in func._schema.arguments if argument.is_out])
        known = {tensor.untyped_storage()._cdata for tensor in (*made, *(tensor for tensor, *_ in (*read, *changed)))}
        made += [tensor for tensor in tensors_of(result) if tensor.untyped_storage()._cdata not in known]
        if name in ALLOCATES:
            for tensor in made:
                ledger.storage(tensor).fresh = True
            return
        if not made and not changed and name not in READS_WITHOUT_RESULT:
            return  # a view, or a query about shapes

        written = [*changed, *((tensor, self._name or name, footprint_of(tensor)) for tensor in made)]
        moved = ByteCount(self._move(read, "read"), self._move(written, "written"))
        if moved.total:
            ledger.add(moved, place)
            if name not in NOT_A_LAUNCH:
                ledger.launches.append((self._name or name, moved))

    def _move(self, touched, way) -> int:
        """Record each distinct footprint once; return the bytes."""
        distinct = self._distinct(touched, way)
        for (_, footprint), (storage, name) in distinct.items():
            self._ledger.move(way, storage, storage.region(footprint, name), footprint)
        return sum(footprint.nbytes for _, footprint in distinct)

    def _distinct(self, touched, way) -> dict:
        """Return (storage, footprint) -> storage and name for each footprint that costs memory traffic."""
        distinct = {}
        for tensor, name, footprint in touched:
            storage = self._ledger.storage(tensor)
            self._ledger.elements = max(self._ledger.elements, tensor.numel())
            if footprint is not None and not (storage.free and way == "read"):
                # A tensor that an operator allocates and fills (zeros, clone) is named after the operator.
                filled = way == "written" and storage.fresh and self._name
                distinct[id(storage), footprint] = storage, self._name if filled else name
        return distinct


def _users_line() -> tuple[str, int] | None:
    """Return the innermost line outside the libraries; None inside the runtime, which moves launch arguments itself."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _RUNTIME:
            return None
        if not file.startswith(_LIBRARIES):
            return file, frame.f_lineno
        frame = frame.f_back
    return "<autograd>", 0  # on a GPU, backward passes run in a PyTorch thread


def arguments_of(func, args, kwargs) -> dict:
    """Return every argument of the schema by name."""
    given = {}
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in kwargs:
            given[argument.name] = kwargs[argument.name]
        elif position < len(args):
            given[argument.name] = args[position]
        else:
            given[argument.name] = argument.default_value if argument.has_default_value() else None
    return given


def tensors_of(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def _is_free(func) -> bool:
    return func.is_view or torch.Tag.inplace_view in func.tags or func.overloadpacket.__name__ in FREE


def _body(func, given):
    """Return the dispatch key that runs `func` as other operators; None if it is one kernel on its device."""
    name = func.name()
    device = "CUDA" if any(tensor.is_cuda for tensor in tensors_of(list(given.values()))) else "CPU"
    # silu_backward and a few others have both a composite form and a kernel, which PyTorch prefers.
    if _has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, device):
        return _KEYS.CompositeImplicitAutograd
    plain_name = func.overloadpacket.__name__
    if _is_free(func) or plain_name in ONE_KERNEL or plain_name.startswith("_foreach_"):
        return None
    if _has_kernel(name, device):
        return None if func.namespace == "aten" else getattr(_KEYS, device)
    explicit = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
    return next((getattr(_KEYS, key) for key in explicit if _has_kernel(name, key)), None)


def read_and_changed(func, given, whole: bool = False) -> tuple[list, list]:
    """Return (tensor, name, footprint) of each argument that the operator reads, and of each that it changes in place.

    `whole`: count an indexed tensor in full, whatever the index selects.
    """
    name = func.overloadpacket.__name__
    select = READS_AT.get(name) or WRITES_AT.get(name)
    read, changed = [], []
    for argument in func._schema.arguments:
        if argument.is_out or argument.name in SHAPE_ONLY.get(name, ()):
            continue
        mutable = argument.alias_info is not None and argument.alias_info.is_write
        # Older schemas do not declare that training updates the running statistics.
        mutable |= argument.name in ("running_mean", "running_var") and bool(given.get("training"))
        # Fused optimizers change gradients only to scale them back.
        mutable &= not (name.startswith("_fused_") and argument.name == "grads" and given.get("grad_scale") is None)
        rows = name in READS_ROWS and argument.name == "weight"
        indexed = rows or (select is not None and argument.name == "self")
        accumulates = name in ACCUMULATES or given.get("accumulate", False)
        unread = name.rstrip("_") in SCALES_SELF and argument.name == "self" and given["beta"] == 0
        blind = name in OVERWRITES or (indexed and not accumulates)
        for tensor in tensors_of(given[argument.name]):
            touched = (
                tensor,
                argument.name,
                _indexed(tensor, name, select, given) if indexed and not whole else footprint_of(tensor),
            )
            if name == "masked_scatter_" and argument.name == "source" and not whole:
                touched = tensor, argument.name, _first(tensor, int(given["mask"].expand_as(given["self"]).sum()))
            if mutable:
                changed.append(touched)
            if not (unread or (mutable and blind)):
                read.append(touched)
    return read, changed


def _indexed(tensor: torch.Tensor, name: str, select, given) -> Footprint | None:
    """Return the elements of a tensor that an index selects, each byte once, no matter how many times it is indexed."""
    if not tensor.numel():
        return None
    dim, positions = _slices(name, given)
    if positions is not None and tensor.dim():
        one = footprint_of(tensor.select(dim, 0))
        if not positions.numel():
            return None
        if not one.dims:  # whole slices, each one run of bytes
            starts = positions.flatten().cpu().numpy() % tensor.shape[dim] * tensor.stride(dim) * tensor.element_size()
            return from_starts(starts + one.low, one.run)
    if name in READS_ROWS:
        select = READS_AT["index_select"]
        given = {"dim": 0, "index": given["indices"].flatten()}
    # An element's offset is a sum over dimensions: select in each one separately, expanded, which costs no memory.
    elements = 0
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        along = (torch.arange(size, device=tensor.device) * stride).view(-1, *[1] * (tensor.dim() - dim - 1))
        elements = elements + select(along.expand(tensor.shape), given)
    elements = elements.flatten().cpu().numpy()
    itemsize = tensor.element_size()
    return from_starts((elements + tensor.storage_offset()) * itemsize, itemsize) if elements.size else None


def _first(tensor: torch.Tensor, count: int) -> Footprint | None:
    """Return the first elements of a tensor, as masked_scatter_ takes them."""
    return _indexed(tensor, "masked_scatter_", lambda ids, given: ids.flatten()[:count], {})


def _slices(name: str, given) -> tuple[int, torch.Tensor | None]:
    """Return (dimension, positions) if an operator takes whole slices along one dimension; no positions: it doesn't."""
    if name in ("index_select", "index_add_", "index_copy_", "index_fill_", "index_reduce_"):
        return given["dim"], given["index"]
    if name in READS_ROWS:
        return 0, given["indices"]
    if name in ("gather", "scatter_", "scatter_add_", "scatter_reduce_"):
        index, shape = given["index"], given["self"].shape
        dim = given["dim"] % max(1, index.dim())
        others = [each for each in range(index.dim()) if each != dim]
        # A position per slice, expanded to its elements, as graph networks add messages up.
        if index.dim() > 1 and all(index.stride(each) == 0 and index.shape[each] == shape[each] for each in others):
            return dim, index[tuple(slice(None) if each == dim else 0 for each in range(index.dim()))]
    if name in ("index", "_index_put_impl_"):
        given = [(dim, index) for dim, index in enumerate(given["indices"]) if index is not None]
        if len(given) == 1 and given[0][1].dtype in (torch.int32, torch.int64):
            return given[0]
    return 0, None


def _picked_by_target(ids, target, ignore_index):
    rows = ids.reshape(-1, ids.shape[-1])
    target = target.reshape(-1)
    kept = target != ignore_index
    return rows.gather(1, target.where(kept, 0)[:, None])[kept]
