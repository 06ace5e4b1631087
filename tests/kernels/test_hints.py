"""What a kernel promises the compiler is held against its values."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.interpreter import runtime

pytestmark = pytest.mark.skipif(runtime.has_gpu(), reason="kernels are compiled here")


@triton.jit
def promised(x_ptr, start, HINT: tl.constexpr, VALUE: tl.constexpr):
    at = start + tl.arange(0, 16)
    if HINT == "multiple_of":
        at = tl.multiple_of(at, VALUE)
    elif HINT == "max_contiguous":
        at = tl.max_contiguous(at * 2 // 2, VALUE)
    elif HINT == "strided":
        at = tl.max_contiguous(at // 2 * 2, VALUE)
    elif HINT == "max_constancy":
        at = tl.max_constancy(at // 4, VALUE)
    elif HINT == "scalar":
        at += tl.multiple_of(start, VALUE)
    elif HINT == "pointer":
        tl.store(tl.multiple_of(x_ptr + at, VALUE), 1.0)
    elif HINT == "two axes":
        both = tl.multiple_of(at[:, None] * 16 + tl.arange(0, 16)[None, :], (1, VALUE))
        at = tl.max(both, axis=1)
    elif HINT == "assume":
        tl.assume(start > VALUE)
    tl.store(x_ptr + at, 1.0)


@pytest.mark.parametrize(
    ("hint", "start", "value", "kept"),
    [
        ("multiple_of", 16, 16, True),
        ("multiple_of", 24, 8, True),
        ("multiple_of", 24, 16, False),
        ("multiple_of", 1, 2, False),
        ("max_contiguous", 5, 16, True),
        ("strided", 0, 16, False),
        ("strided", 0, 1, True),
        ("max_constancy", 0, 4, True),
        ("max_constancy", 0, 8, False),
        ("max_constancy", 2, 4, False),
        ("scalar", 32, 16, True),
        ("scalar", 33, 16, False),
        ("pointer", 4, 16, True),
        ("pointer", 1, 16, False),
        ("two axes", 0, 16, True),
        ("two axes", 0, 32, False),
        ("assume", 5, 4, True),
        ("assume", 4, 4, False),
    ],
)
def test_a_promise_is_kept_or_refused(hint, start, value, kept):
    x = torch.zeros(1024)
    if kept:
        promised[(1,)](x, start, HINT=hint, VALUE=value)
        assert x.any()
    else:
        with pytest.raises(Exception, match=r"is not true|Assume"):
            promised[(1,)](x, start, HINT=hint, VALUE=value)
