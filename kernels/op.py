"""Declare a kernel file's operation, and register it with PyTorch.

`FusedOp` declares what tests, benchmarks, lessons and instruments need from a kernel file. `register` turns a forward
and a backward function into a PyTorch operation.

`register` creates an autograd function and operators that torch.compile keeps whole, and calls the right one. At each
call it also chooses between the plain launcher passed here and the tuned ones (kernels/variants.py).

    softmax_op = register(
        "softmax",
        _forward,                                     # (x) -> y
        like,                                         # the same on tensors without data
        keep=lambda arguments, y: (y,),               # what the backward takes after the gradient: tensors first
        backward=_backward,                           # (grad_y, y) -> grad_x
        backward_fake=lambda grad_y, y: like(y),
    )

The public function checks its arguments and returns softmax_op(x); it is @planned (kernels/launch_cache.py). If the
backward pass needs more than the forward's arguments and result, `training` is a second forward that returns (y,
*more). Tests and meters can use the operators: softmax_op.forward_op, .training_op (the forward's if there is no
`training`) and .backward_op.
"""

import inspect
import numbers
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._library.autograd import make_autograd_impl
from torch.autograd import forward_ad
from triton.runtime.jit import JITFunction

from kernels.arguments import check_option
from kernels.launch_cache import planned, watching
from kernels.variants import by_variant

TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)  # subclasses add behaviour that only operators see


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new, uninitialised contiguous tensor of `tensor`'s shape, dtype and device."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


class _Once(torch.autograd.Function):
    """Records the backward pass in autograd (create_graph=True), so that differentiating it raises an error."""

    @staticmethod
    def forward(name, gradients, *arguments):
        return gradients(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            f"{ctx.name} is differentiable once, got a second derivative: use {_reference(ctx.name)} if you need one"
        )


def _options(forward: Callable) -> list[tuple[int, str, type, bool]]:
    """Return position, name, type and whether None is allowed, for each non-tensor argument of `forward`."""
    found = []
    for i, (name, parameter) in enumerate(inspect.signature(forward, eval_str=True).parameters.items()):
        kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
        found += [(i, name, kind, type(None) in kinds) for kind in kinds if kind in (bool, int, float, str)]
    return found


def _reference(name: str) -> str:
    return f"kernels.{name}.reference"


def refuse_transforms(name: str, tensors: list[torch.Tensor]) -> None:
    """Refuse transforms that a kernel cannot see: tangents, which PyTorch would drop, and batches.

    Raises:
        RuntimeError: under forward-mode differentiation or vmap.
    """
    transforms = torch._C._functorch.get_interpreter_stack()
    legacy_vmap = any(torch._C._functorch.is_legacy_batchedtensor(x) for x in tensors)
    if not transforms and forward_ad._current_level < 0 and not legacy_vmap:
        return
    kinds = {transform.key().name.lower() for transform in transforms or ()}
    if "jvp" in kinds or _has_tangent(tensors):
        raise RuntimeError(f"{name} has no forward-mode derivative: use {_reference(name)} where you need one")
    if "vmap" in kinds or legacy_vmap:
        raise RuntimeError(
            f"{name} has no rule for vmap or batched gradients: pass the batch as dimensions, or use {_reference(name)}"
        )


def _has_tangent(arguments) -> bool:
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    return forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _needs_gradient(arguments) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments)


def _signed(x):
    """Return x; copy a lazily negated view, because kernels read memory."""
    return x.resolve_neg() if isinstance(x, torch.Tensor) else x


def _operator(name: str, function: Callable, fake: Callable):
    operator = torch.library.custom_op(f"kernel_fusion::{name}", function, mutates_args=())
    operator.register_fake(fake)
    return operator


def refuse_transforms_of_operator(called: Callable, operator) -> None:
    """Make the operator refuse forward mode and vmap when PyTorch's dispatcher calls it directly, as in a compiled
    graph.

    A custom operator has no forward-mode derivative, and PyTorch silently drops its arguments' tangents.
    """
    plain = make_autograd_impl(operator._opoverload, operator)

    def with_autograd(keyset, *arguments, **named):
        name = called(arguments)
        if _has_tangent(arguments):
            raise RuntimeError(f"{name} has no forward-mode derivative: use {_reference(name)} where you need one")
        if torch._C._functorch.get_interpreter_stack() and _needs_gradient(arguments):
            raise RuntimeError(
                f"{name} has no torch.func gradient under torch.compile: take it with torch.autograd.grad, or use "
                f"{_reference(name)}"
            )
        return plain(keyset, *arguments, **named)

    def refuse_batches(info, in_dims, *arguments):
        name = called(arguments)
        raise RuntimeError(f"{name} has no rule for vmap: pass the batch as dimensions, or use {_reference(name)}")

    operator.register_vmap(refuse_batches)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once|Overriding a previously registered kernel")
        operator._lib.impl(operator._name, with_autograd, "Autograd", with_keyset=True, allow_override=True)


def _all_of_backward(backward: Callable, needed: tuple[bool, ...], grad_y: torch.Tensor, *kept) -> tuple:
    gradients = backward(grad_y, *kept)
    return gradients if isinstance(gradients, tuple) else (gradients,)


def register(
    name: str,
    forward: Callable,
    fake: Callable,
    *,
    training: Callable | None = None,
    training_fake: Callable | None = None,
    keep: Callable | None = None,
    backward: Callable | None = None,
    backward_fake: Callable | None = None,
    gradients: Callable = _all_of_backward,
    results: int = 1,
    called: Callable | None = None,
) -> Callable:
    """Return the operation as one function. It calls `forward` directly if no gradient is needed, an autograd function
    if one is (cheaper in Python than an operator), and an operator under torch.compile.

    Args:
        name: the public function's name; the operators are kernel_fusion::name, name_training and name_backward.
        forward: (*arguments) -> y or a tuple, annotated as torch.library.custom_op requires. It allocates and launches.
        fake: the same without data: returns the tensors that `forward` would allocate.
        training: (*arguments) -> (y, *more), if the backward pass needs more than forward's arguments and result.
        training_fake: the same without data.
        keep: (arguments, result) -> the arguments of `backward` after the gradient: a tuple, its tensors first.
            `result` is y, or everything `training` returns.
        backward: (grad_y, *kept) -> gradients. Without it, a backward pass raises RuntimeError.
        backward_fake: the same without data.
        gradients: (backward, needed, grad_y, *kept) -> a tuple with a gradient for each of the first arguments, or
            None. By default, the result of `backward`. `needed` has one bool per argument: whether its gradient is
            required.
        results: the number of tensors in y. If there are several, `backward` and `gradients` take that many gradients
            before the saved values; all except the first may be None.
        called: (arguments) -> the public function's name for messages, if several functions share the operation.

    Returns:
        A function that takes forward's arguments by position and returns y. It checks non-tensor arguments
        (arguments.check_option). A second derivative through it raises RuntimeError.
    """
    called = called or (lambda arguments: name)
    options = _options(forward)
    forward = by_variant(name, "forward", forward)
    forward_op = training_op = _operator(name, forward, fake)
    backward_op, planned_forward = None, planned(forward)
    apply = apply_in_transforms = apply_recorded = forward_op
    if backward is None:

        def refuse(ctx, *_):
            raise RuntimeError(f"{name} has no backward pass: use {_reference(name)} where you need one")

        forward_op.register_autograd(refuse)
    if backward is not None:
        backward = by_variant(name, "backward", backward)
        backward_op = _operator(f"{name}_backward", backward, backward_fake)
        if training is not None:
            training = by_variant(name, "training", training)
            training_op = _operator(f"{name}_training", training, training_fake)
        arity = len(forward_op._opoverload._schema.arguments)

        def setup_context(ctx, inputs, output):
            kept = keep(inputs, output)
            tensors = [x for x in kept if isinstance(x, torch.Tensor)]
            ctx.set_materialize_grads(False)  # no zeros for training's other results: never differentiated
            ctx.save_for_backward(*tensors)
            ctx.settings = kept[len(tensors) :]
            ctx.called = called(inputs)

        def by(backward):
            def differentiate(ctx, *incoming):
                grad_y, *more = incoming[:results]
                come = [each for each in (grad_y, *more) if each is not None]
                if not come:
                    return (None,) * arity
                refuse_transforms(ctx.called, come)
                incoming = torch.zeros_like(come[0]) if grad_y is None else grad_y, *more
                arguments = backward, ctx.needs_input_grad, *map(_signed, incoming), *ctx.saved_tensors, *ctx.settings
                twice = torch.is_grad_enabled()
                found = _Once.apply(ctx.called, gradients, *arguments) if twice else gradients(*arguments)
                return *found, *(None,) * (arity - len(found))

            return differentiate

        run = planned_forward if training is None else planned(training)

        def run_and_keep(ctx, *arguments):
            output = run(*arguments)
            setup_context(ctx, arguments, output)
            return output

        # Two classes: a separate setup_context makes PyTorch bind arguments to a signature at every call, but PyTorch's
        # transforms require one. Not `run` itself: *arguments binds fastest.
        methods = {"forward": staticmethod(run_and_keep), "backward": staticmethod(by(planned(backward)))}
        apply = type(name, (torch.autograd.Function,), methods).apply

        def refuse_forward_mode(*_):
            raise RuntimeError(f"{name} has no forward-mode derivative: use {_reference(name)} where you need one")

        methods |= {
            "forward": staticmethod(lambda *arguments: run(*arguments)),
            "setup_context": staticmethod(setup_context),
            "jvp": staticmethod(refuse_forward_mode),
        }
        apply_in_transforms = type(name, (torch.autograd.Function,), methods).apply
        # The same with operators, for modes that record them.
        methods |= {
            "forward": staticmethod(lambda *arguments: training_op(*arguments)),
            "backward": staticmethod(by(backward_op)),
        }
        apply_recorded = type(name, (torch.autograd.Function,), methods).apply
        training_op.register_autograd(by(backward_op), setup_context=setup_context)

    for operator in {each._qualname: each for each in (forward_op, training_op, backward_op) if each}.values():
        refuse_transforms_of_operator((lambda _: name) if operator is backward_op else called, operator)

    def operation(*arguments):
        tracked = negative = False
        for i, option, kind, optional in options:
            check_option(name, option, arguments[i], kind, optional=optional)
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        if torch.is_grad_enabled():
            for x in tensors:  # a loop: every call pays for it, and a generator costs twice as much
                tracked = tracked or x.requires_grad
        recorded = torch.compiler.is_compiling()
        if not recorded:
            recorded = torch._C._len_torch_dispatch_stack() > watching() or torch._C._get_tracing_state() is not None
            for x in tensors:
                recorded = recorded or x.is_meta or type(x) not in TENSOR_TYPES
                negative = negative or x.is_neg()
        if not torch.compiler.is_compiling():  # there, the operators refuse
            refuse_transforms(called(arguments), tensors)
        if negative and not recorded:
            arguments = [_signed(x) for x in arguments]
        if not tracked:
            return forward_op(*arguments) if recorded else planned_forward(*arguments)
        transformed = not torch.compiler.is_compiling() and torch._C._functorch.get_interpreter_stack()
        if transformed and backward is None:
            raise RuntimeError(f"{name} has no backward pass: use {_reference(name)} where you need one")
        if recorded:
            result = (apply_recorded if transformed else training_op)(*arguments)
        else:
            result = (apply_in_transforms if transformed else apply)(*arguments)
        if tracked and training is not None:
            return result[0] if results == 1 else result[:results]
        return result

    operation.forward_op, operation.training_op, operation.backward_op = forward_op, training_op, backward_op
    return operation


@dataclass(frozen=True)
class Work:
    """The minimum work of any implementation of an operation: arithmetic, and bytes to and from device memory.

    Args:
        flops: floating-point operations; a multiply-add counts as two.
        bytes_read: bytes of all inputs, each read once.
        bytes_written: bytes of all outputs, each written once.
    """

    flops: float
    bytes_read: float
    bytes_written: float

    def __post_init__(self):
        for name, value in vars(self).items():
            if not isinstance(value, numbers.Real) or not 0 <= value <= 1e300:  # sums must stay finite
                got = "more" if isinstance(value, int) and value > 0 else repr(value)
                raise ValueError(f"Work takes {name} from 0 to 1e300, got {got}")

    @property
    def bytes(self) -> float:
        """Return the bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity in FLOP/byte; infinite if no bytes move, even without FLOPs."""
        return self.flops / self.bytes if self.bytes else float("inf")

    def __add__(self, other: "Work") -> "Work":
        """Return the total work of both."""
        return Work(
            self.flops + other.flops, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written
        )


def work_per_element(
    flops: float, tensors: tuple[int, int], vectors: tuple[int, int] = (0, 0)
) -> Callable[[tuple[int, ...], torch.dtype], Work]:
    """Return the function `work(shape, dtype)` for an operation on tensors of (..., cols).

    Args:
        flops: floating-point operations per element, counted as in kernels.costs.
        tensors: number of tensors of that shape that it reads and writes, each once.
        vectors: the same for (cols,) vectors.
    """

    def work(shape: tuple[int, ...], dtype: torch.dtype) -> Work:
        """Return FLOPs and minimum traffic."""
        elements = torch.Size(shape).numel()
        moved = (tensors[i] * elements + vectors[i] * shape[-1] for i in (0, 1))
        return Work(flops * elements, *(each * dtype.itemsize for each in moved))

    return work


@dataclass(frozen=True)
class FusedOp:
    """One fused operation: how to run it, its expected result and its minimum cost.

    Args:
        name: its name in CATALOGUE, which is also the name of its file and public function.
        fused: the public function: checks, allocates, launches.
        reference: the same in unfused PyTorch, with the same arguments.
        work: `work(shape, dtype) -> Work`: FLOPs and minimum traffic.
        kernel: the forward's `@triton.jit` function, for the compiler.
        settings: `settings(...) -> dict` of constexprs and launch options for a size.
        inputs: `inputs(*shape, dtype=, device=) -> tuple`: fresh random arguments for `fused` and `reference`.
        compile_arguments: `compile_arguments(*shape, dtype=) -> (arguments, options)` that a launch would pass to
            `kernel`, to compile without launching.
        interpreter_shapes: shapes small enough for the interpreter, the awkward ones first.
        gpu_shapes: shapes that benchmarks measure.
        dtypes: dtypes that the operation takes.
        gpu_dtypes: dtypes that benchmarks measure.
        backward_work: `backward_work(shape, dtype) -> Work` of one backward pass, if the operation has a gradient.
        oracle: the exact expected result of `fused`, if `reference` does not determine it because it draws its own
            random numbers or leaves the order of ties open. By default `reference`.
        writes: positions of the arguments that `fused` changes in place.
        kernel_for: `kernel_for(*shape) -> kernel`: the kernel that takes `compile_arguments(*shape)`, if wide rows have
            their own. By default always `kernel`.
    """

    name: str
    fused: Callable
    reference: Callable
    work: Callable[..., Work]
    kernel: JITFunction
    settings: Callable[..., dict]
    inputs: Callable[..., tuple]
    compile_arguments: Callable[..., tuple[tuple, dict]]
    interpreter_shapes: tuple[tuple[int, ...], ...]
    gpu_shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
    gpu_dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)
    backward_work: Callable[..., Work] | None = None
    oracle: Callable | None = None
    writes: tuple[int, ...] = ()
    kernel_for: Callable[..., JITFunction] | None = None

    def __post_init__(self):
        self.fused.reference = self.reference
        if self.oracle is None:
            object.__setattr__(self, "oracle", self.reference)
        if self.kernel_for is None:
            object.__setattr__(self, "kernel_for", lambda *shape: self.kernel)

    @property
    def group(self) -> str:
        """Return the package of its file, named after how work is split: "elementwise", "rowwise" or "tiled"."""
        return self.fused.__module__.split(".")[1]
