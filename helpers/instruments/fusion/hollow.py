"""Replace every tensor that a function can reach by one without values, and put it back afterwards.

A function reaches its arguments, its closure and the globals that it names, and from there the attributes of objects
and the items of lists, dicts and tuples. All of these are restored, whatever the function did to them:
weights, gradients, the state of an optimizer, a module's caches, a list of losses.
"""

import collections
import contextlib
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensor

_STANDARD = str(Path(contextlib.__file__).parent)
_COURSE = tuple(str(Path(__file__).parents[3] / name) for name in ("helpers", "kernels"))
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType)
_ATOMS += (torch.dtype, torch.device, torch.Size, torch.Generator, torch.memory_format, torch.layout, range, slice)
_BOOKS = ("torch.fx", "torch.export", "torch._", "sympy", "numpy", "logging", "threading", "_thread", "re", "triton")
MOST = 1_000_000  # maximum objects visited


class Hollow:
    """`with Hollow(fake_mode) as hollow: hollow.exchange(roots)`; on leaving, everything is put back.

    tensors: those exchanged; stand_ins: the tensors without values in their places, in the same order.
    """

    def __init__(self, mode):
        self._mode = mode
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of a tensor -> itself, its stand-in
        self._known: set[int] = set()  # ids of stand-ins
        self._seen: dict[int, object] = {}
        self._undo: list[Callable[[], None]] = []
        self._modules: list[torch.nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._hooks: list[Callable] = []  # of tensors; their replacements have them too
        self._computed: list[torch.Tensor] = []  # replacements of tensors with a backward pass of their own
        self.tensors: list[torch.Tensor] = []
        self.stand_ins: list[torch.Tensor] = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def exchange(self, roots: list, again: bool = False, instead: tuple[torch.Tensor, ...] = ()) -> None:
        """Exchange everything reachable from `roots`, a list whose items are exchanged too.

        Args:
            again: also exchange tensors without values created since, which count as inputs.
            instead: the replacement of each stand-in.
        """
        self._again = again
        self._instead = {id(mine): other for mine, other in zip(self.stand_ins, instead, strict=False)}
        self._known |= {id(other) for other in instead}
        self._seen.clear()
        self._walk(roots)

    def stand_in(self, tensor: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
        """Return the stand-in for a tensor; `known`: an existing one."""
        if id(tensor) in self._of:
            return self._of[id(tensor)][1]
        if known is None:
            with self._mode:
                known = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
                known.requires_grad_(tensor.requires_grad)
                if isinstance(tensor, torch.nn.Parameter):
                    known._is_param = True
        self._enter(tensor, known)
        if not tensor.is_leaf:
            self._computed.append(known)
        elif tensor.grad is not None:
            known.grad = self.stand_in(tensor.grad)
        if known.requires_grad:
            self._take_hooks(tensor, known)
        return known

    def _take_hooks(self, tensor: torch.Tensor, known: torch.Tensor) -> None:
        """Copy a tensor's hooks to its replacement; they may hold more tensors, or an optimizer that steps in one."""
        for attribute, register in (
            ("_backward_hooks", known.register_hook),
            ("_post_accumulate_grad_hooks", known.register_post_accumulate_grad_hook),
        ):
            for hook in list((getattr(tensor, attribute, None) or {}).values()):
                register(hook)
                self._hooks.append(hook)

    def refuse_more_backward(self) -> None:
        """Raise if a backward pass has reached a tensor whose own, earlier computation it would go on into."""
        for each in self._computed:
            if each.grad is not None:
                raise ValueError(
                    f"backward() reaches a tensor of shape {tuple(each.shape)} that was computed before the call: "
                    "compute it inside, or pass x.detach().requires_grad_()"
                )

    def _enter(self, tensor, known) -> None:
        self._of[id(tensor)] = tensor, known
        self._known.add(id(known))
        self.tensors.append(tensor)
        self.stand_ins.append(known)

    def _own(self, made: torch.Tensor) -> None:
        """Keep a tensor without values that the function made in an earlier run, as an input of the next."""
        value = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
        self._enter(value, made)

    def optimizers(self, fresh: bool = False) -> list[torch.optim.Optimizer]:
        """Return the optimizers reached; `fresh`: only those without state."""
        return [each for each in self._optimizers if not (fresh and each.state)]

    def on_the_host(self) -> set[int]:
        """Return ids of the exchanged tensors that count optimizer steps, which stay on the CPU by default."""
        found = set()
        known = {id(stand_in): id(tensor) for tensor, stand_in in self._of.values()}
        for each in self._optimizers:
            on_gpu = any(group.get("capturable") or group.get("fused") for group in each.param_groups)
            steps = [] if on_gpu else [state.get("step") for state in each.state.values() if isinstance(state, dict)]
            found |= {known[id(step)] for step in steps if id(step) in known}
        return found

    def modules(self, model) -> dict[int, str]:
        """Return id -> path for each module reached, in the model or in the outermost module that contains it."""
        names: dict[int, str] = {}
        inside = {id(child) for each in self._modules for child in each.modules() if child is not each}
        tops = [model] if isinstance(model, torch.nn.Module) else []
        tops += [each for each in self._modules if id(each) not in inside and each is not model]
        for top in tops:
            for path, each in top.named_modules():
                prefix = "" if top is model else type(top).__name__
                names.setdefault(id(each), ".".join(part for part in (prefix, path) if part))
        return names

    def made_since(self, roots: list) -> list[torch.Tensor]:
        """Return reachable valueless tensors that are not stand-ins: they outlive the call."""
        found: dict[int, torch.Tensor] = {}
        waiting, seen = [roots, *self._optimizers, *self._modules], set()
        while waiting:
            each = waiting.pop()
            if _holds_nothing(each) or id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, torch.Tensor):
                if isinstance(each, FakeTensor):
                    if id(each) not in self._known:
                        found[id(each)] = each
                    if each.is_leaf and each.grad is not None:
                        waiting.append(each.grad)
            else:
                waiting += _parts(each)
        waiting = [each for each in self.stand_ins if each.is_leaf and each.grad is not None]
        found |= {id(each.grad): each.grad for each in waiting if id(each.grad) not in self._known}
        return list(found.values())

    def _value(self, value):
        """Return a value's stand-in: for a tuple with tensors in it, another tuple."""
        if isinstance(value, torch.Tensor):
            return self._exchanged(value)
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            parts = [self._value(each) for each in value]
            if all(mine is theirs for mine, theirs in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    def _exchanged(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            if id(tensor) in self._instead:
                return self._instead[id(tensor)]
            if id(tensor) not in self._known and self._again and tensor.is_leaf and tensor.fake_mode is self._mode:
                self._own(tensor)
            if self._again and tensor.is_leaf and tensor.grad is not None:
                self._exchanged(tensor.grad)
            return tensor
        if tensor.layout is not torch.strided or tensor.is_nested or is_subclass(tensor):
            return tensor
        return self.stand_in(tensor)

    def _walk(self, root) -> None:
        waiting, hooks = [root], 0
        while (waiting or hooks < len(self._hooks)) and len(self._seen) < MOST:
            if not waiting:
                waiting, hooks = self._hooks[hooks:], len(self._hooks)
            each = waiting.pop()
            if _holds_nothing(each) or isinstance(each, torch.Tensor) or id(each) in self._seen:
                continue
            self._seen[id(each)] = each  # kept alive so that its id is not reused
            waiting += self._enter_parts(each)

    def _enter_parts(self, each) -> list:
        """Exchange the tensors that an object holds; return the objects to visit next."""
        if isinstance(each, dict):
            return self._exchange_dict(each)
        if isinstance(each, list | collections.deque):
            return self._exchange_list(each)
        if isinstance(each, tuple | set | frozenset):
            return list(each)
        if isinstance(each, types.FunctionType):
            return self._exchange_function(each)
        if isinstance(each, types.MethodType):
            return [each.__self__, each.__func__]
        if isinstance(each, types.CellType):
            return self._exchange_cell(each)
        if isinstance(each, functools.partial):
            before = each.__reduce__()[2]
            self._undo.append(lambda: each.__setstate__(before))
            function, args, keywords, others = before
            each.__setstate__((function, self._value(args), self._value_dict(keywords), others))
            return [function, *each.args, each.keywords]
        if isinstance(each, torch.nn.Module):
            self._modules.append(each)
        if isinstance(each, torch.optim.Optimizer):
            self._optimizers.append(each)
        held = getattr(each, "__dict__", None)
        found = self._exchange_dict(held) if isinstance(held, dict) else []
        for name in _slots(each):
            found.append(self._exchange_slot(each, name))
        if not _is_library(type(each)):
            found += [method for kind in type(each).__mro__ if not _is_library(kind) for method in vars(kind).values()]
        return found

    def _value_dict(self, given: dict) -> dict:
        return {key: self._value(value) for key, value in given.items()}

    def _exchange_dict(self, held: dict) -> list:
        saved = dict(dict.items(held))  # not dict(held), which asks a subclass
        kind = collections.OrderedDict if isinstance(held, collections.OrderedDict) else dict

        def undo():
            now = dict.items(held)
            if len(now) != len(saved) or any(a is not b for a, b in zip(dict.keys(held), saved, strict=True)):
                kind.clear(held)
            for key, value in saved.items():
                if key not in held or dict.__getitem__(held, key) is not value:
                    kind.__setitem__(held, key, value)

        self._undo.append(undo)
        found = []
        renamed = any(isinstance(key, torch.Tensor) for key in saved)
        if renamed:
            kind.clear(held)
        for key, value in saved.items():
            mine = self._value(value)
            if renamed or mine is not value:
                kind.__setitem__(held, self._value(key), mine)
            found.append(mine)
        return found

    def _exchange_list(self, held) -> list:
        saved = list(held)

        def undo():
            if len(held) != len(saved) or any(a is not b for a, b in zip(held, saved, strict=True)):
                held.clear()
                held.extend(saved)

        self._undo.append(undo)
        for place, value in enumerate(saved):
            mine = self._value(value)
            if mine is not value:
                held[place] = mine
        return list(held)

    def _exchange_cell(self, cell) -> list:
        try:
            saved = cell.cell_contents
        except ValueError:  # still empty
            return []

        def undo():
            cell.cell_contents = saved

        self._undo.append(undo)
        cell.cell_contents = self._value(saved)
        return [cell.cell_contents]

    def _exchange_slot(self, held, name: str):
        saved = getattr(held, name)
        mine = self._value(saved)

        def undo():
            if getattr(held, name, None) is not saved:
                object.__setattr__(held, name, saved)

        self._undo.append(undo)
        if mine is not saved:
            object.__setattr__(held, name, mine)
        return mine

    def _exchange_function(self, function) -> list:
        found = list(function.__closure__ or ())
        if not is_users(function.__code__.co_filename):
            return found
        if function.__defaults__:
            saved = function.__defaults__
            mine = self._value(saved)
            if mine is not saved:
                self._undo.append(lambda: setattr(function, "__defaults__", saved))
                function.__defaults__ = mine
            found += mine
        found += [function.__kwdefaults__ or {}, vars(function)]
        space = function.__globals__
        for name in _names(function.__code__):
            if name not in space or isinstance(space[name], types.ModuleType):
                continue
            saved = space[name]
            self._undo.append(functools.partial(_restore, space, name, saved))
            mine = self._value(saved)
            if mine is not saved:
                space[name] = mine
            found.append(mine)
        return found


def is_subclass(tensor: torch.Tensor) -> bool:
    """Return whether operators on it are a subclass's own: quantised weights, for example."""
    kind = type(tensor)
    if isinstance(tensor, FakeTensor):
        return False
    plain = torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or function not in plain


def _restore(space: dict, name: str, saved) -> None:
    if space.get(name) is not saved:
        space[name] = saved


def _names(code) -> set[str]:
    """Return the globals that a function may read or set, and the functions inside it."""
    found = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= _names(each)
    return found


def is_users(file: str) -> bool:
    """Return whether a source file is the user's own, not a package's, Python's or the course's."""
    return not file.startswith((_STANDARD, "<frozen", *_COURSE)) and not _is_installed(str(Path(file).parent))


@functools.cache
def _is_installed(folder: str) -> bool:
    """Return whether a folder belongs to a package that pip installed."""
    top = Path(folder)
    while (top / "__init__.py").is_file():
        top = top.parent
    return next(top.glob("*.dist-info"), None) is not None


@functools.cache
def _is_library(kind: type) -> bool:
    if kind.__module__ == "builtins":
        return True
    return not is_users(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _holds_nothing(each) -> bool:
    """Return whether it is an atom, or bookkeeping of PyTorch and others."""
    kind = type(each)
    return isinstance(each, _ATOMS) or (
        kind.__module__.startswith(_BOOKS) and not isinstance(each, torch.nn.Module | torch.Tensor)
    )


def _slots(each) -> list[str]:
    found = []
    for kind in type(each).__mro__:
        names = vars(kind).get("__slots__", ()) if not _is_library(kind) else ()
        found += [name for name in ([names] if isinstance(names, str) else names) if hasattr(each, name)]
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _parts(each) -> list:
    if isinstance(each, dict):
        return list(dict.values(each))
    if isinstance(each, list | tuple | set | frozenset | collections.deque):
        return list(each)
    if isinstance(each, types.FunctionType):
        return list(each.__closure__ or ())
    if isinstance(each, types.CellType):
        try:
            return [each.cell_contents]
        except ValueError:
            return []
    if isinstance(each, types.MethodType):
        return [each.__self__]
    held = getattr(each, "__dict__", None)
    found = [held] if isinstance(held, dict) else []
    return [*found, *(getattr(each, name) for name in _slots(each))]
