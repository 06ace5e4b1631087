"""Peak memory against what PyTorch's own profiler saw the allocator give and take back."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch.profiler import ProfilerActivity, profile

from helpers.instruments import peak_memory


def by_the_profiler(fn, *args) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        fn(*args)
    now = most = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def chain(x):
    y = x + 1
    y = y * 2
    return y.sum()


def views(x):
    y = (x + 1).view(-1)[1:]
    return y.exp_()


def freed_and_made_again(x):
    total = x.new_zeros(())
    for _ in range(5):
        total = total + (x * 2).sum()
    return total


def with_gradients(x):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((torch.tanh(leaf) * leaf).sum(), leaf)


@pytest.mark.parametrize("fn", [chain, views, freed_and_made_again, with_gradients])
def test_it_is_what_the_allocator_saw(fn):
    x = torch.randn(300, 100)
    fn(x)
    found = peak_memory(fn, x)
    # What an operator takes and gives back inside itself, here some numbers on the way to a sum, is not seen.
    assert 0 <= by_the_profiler(fn, x) - found.bytes <= 64
    assert found.largest_bytes == x.nbytes


def test_arguments_and_what_was_there_do_not_count():
    x, outside = torch.randn(2, 1000)
    found = peak_memory(lambda x: x.add_(outside), x)
    assert (found.bytes, found.largest) == (0, "none")
    assert peak_memory(lambda x: x[3:], x).bytes == 0


@triton.jit
def twice_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


def test_the_interpreters_copies_do_not_count():
    def twice(x):
        y = torch.empty_like(x)
        twice_kernel[(1,)](x, y, BLOCK=256)
        return y

    x = torch.randn(256)
    found = peak_memory(twice, x)
    assert found.bytes == x.nbytes
    assert torch.equal(found.result, 2 * x)


def test_it_says_what_it_found():
    found = peak_memory(lambda x: (x + 1).half(), torch.randn(10, 100))
    assert repr(found) == "at most 6 kB at once; the largest tensor: float32 of (10, 100), 4 kB"


def test_tensors_from_numbers_and_tensors_that_grow_count():
    x = torch.ones(1000)
    for fn, nbytes in (
        (lambda: torch.tensor([1.0] * 1000), 4000),
        (lambda: torch.from_numpy(np.ones(1000)), 0),  # NumPy's memory
        (lambda: torch.empty(0).resize_(1000), 4000),
        (lambda: torch.add(x, x, out=torch.empty(0)), 4000),
        (lambda: x.clone().resize_(2000), 8000),
        (lambda: torch.ones(1000).resize_(10), 4000),
    ):
        assert peak_memory(fn).bytes == nbytes
    found = peak_memory(lambda given: given.resize_(3000), torch.ones(1000))
    assert (found.bytes, found.largest_bytes) == (8000, 12000)  # what was there does not count


def test_a_sparse_tensors_memory_is_its_indices_and_values():
    dense = torch.eye(100)
    found = peak_memory(lambda x: x.to_sparse(), dense)
    assert found.bytes >= 100 * (2 * 8 + 4)
    assert peak_memory(lambda x: x.to_sparse_csr(), dense).bytes >= 100 * (8 + 4) + 101 * 8
    with pytest.raises(TypeError, match=r"cannot see the memory of a tensor in layout torch\._mkldnn"):
        peak_memory(lambda x: x.to_mkldnn(), dense)


def test_something_to_call_is_needed():
    with pytest.raises(TypeError, match="peak_memory takes a function and its arguments, got Tensor"):
        peak_memory(torch.ones(3))
