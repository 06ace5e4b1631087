"""Values that tracing knows: the caller's integers, and integers computed from them alone.

A branch on them is traced as eager PyTorch takes it: a model that tests whether its mask is all ones, or whether its
positions ascend, takes the same branch as in a real run.
"""

from collections import Counter
from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MOST = 2**20  # elements of a tensor
# Copies of a number to the host; inference mode doesn't decompose the last two. torch.equal runs kernels: an error.
_SCALARS = tuple(getattr(torch.ops.aten, name).default for name in ("_local_scalar_dense", "item", "is_nonzero"))


class KnownValues:
    """The known values behind tensors without values."""

    def __init__(self):
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of a tensor -> itself, its value

    def start(self, given: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begin a run with pairs of (caller's tensor, stand-in)."""
        self._of.clear()
        given = list(given)
        shared = Counter(each.untyped_storage()._cdata for each, _ in given)  # written through one, another changes
        for tensor, stand_in in given:
            if shared[tensor.untyped_storage()._cdata] > 1:
                continue
            plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
            if plain and tensor.layout is torch.strided and _is_small(tensor) and not tensor.is_meta:
                with _disable_current_modes():
                    self._of[id(stand_in)] = stand_in, tensor.detach().cpu().clone()

    def has(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._of

    def scalar(self, func, args):
        """Return the number or bool that `func` extracts from known tensors, or None."""
        if func not in _SCALARS or not all(map(self.has, args)):
            return None
        with _disable_current_modes():
            return func(*(self._of[id(each)][1] for each in args))

    def follow(self, func, args, kwargs, result) -> None:
        """Apply an operator to known values. A write to one of them makes all unknown."""
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if func._schema.is_mutable:
            if {_storage(each) for each in given} & {_storage(each) for each, _ in self._of.values()}:
                self._of.clear()
            return
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        random = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.overloadpacket.__name__
        if random or not made or not all(map(_is_small, made)) or not all(map(self.has, given)):
            return
        if any(isinstance(each, torch.SymInt) for each in tree_leaves((args, kwargs))):
            return
        with _disable_current_modes():
            args, kwargs = tree_map_only(torch.Tensor, lambda each: self._of[id(each)][1], (args, kwargs))
            values = func(*args, **kwargs)
        values = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
        for mine, value in zip(made, values, strict=True):
            if isinstance(mine, FakeTensor) and not value.is_meta:
                self._of[id(mine)] = mine, value


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.dtype in INTEGERS and not isinstance(tensor.numel(), torch.SymInt) and tensor.numel() <= MOST


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
