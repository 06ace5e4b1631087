"""Sets of bytes against Python sets."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.instruments.traffic.footprint import ByteSet, from_starts, from_strided

shapes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), min_size=0, max_size=3)


def bytes_of(offset, dims, itemsize):
    starts = {offset}
    for size, stride in dims:
        starts = {start + i * stride * itemsize for start in starts for i in range(size)}
    return {start + byte for start in starts for byte in range(itemsize)}


@settings(max_examples=300)
@given(st.integers(0, 70), shapes, st.sampled_from([1, 2, 4, 8]))
def test_any_strided_tensor(offset, dims, itemsize):
    footprint = from_strided(offset * itemsize, [d[0] for d in dims], [d[1] for d in dims], itemsize)
    expected = bytes_of(offset * itemsize, dims, itemsize)
    if not expected:
        assert footprint is None
        return
    assert footprint.nbytes == len(expected)
    assert footprint.sectors(0) == len({byte // 32 for byte in expected})
    assert (footprint.low, footprint.high) == (min(expected), max(expected) + 1)
    found = ByteSet(4000)
    found.add(footprint)
    assert set(found.map().nonzero()[0]) == expected


@settings(max_examples=200)
@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(2, 2000), st.integers(1, 70)), min_size=1, max_size=2),
    st.integers(0, 40),
)
def test_sectors_of_many_runs(run, dims, offset):
    """Long dimensions take the short ways: whole blocks multiplied."""
    dims = [(min(size, 60), stride) for size, stride in dims[:-1]] + dims[-1:]
    expected = bytes_of(offset, dims, 1)
    expected = {byte + i for byte in expected for i in range(run)}
    starts = torch.tensor(sorted(bytes_of(offset, dims, 1))).numpy()
    strided = from_strided(offset, [run, *(d[0] for d in dims)], [1, *(d[1] for d in dims)], 1)
    for footprint in (from_starts(starts, run), strided):
        assert footprint.nbytes == len(expected)
        assert footprint.sectors(0) == len({byte // 32 for byte in expected})


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 60), shapes, st.sampled_from([1, 4])), max_size=6))
def test_any_union(parts):
    found, expected = ByteSet(4000), set()
    for offset, dims, itemsize in parts:
        footprint = from_strided(offset, [d[0] for d in dims], [d[1] for d in dims], itemsize)
        if footprint is None:
            continue
        new = bytes_of(offset, dims, itemsize)
        assert found.covers(footprint) == (new <= expected)
        assert found.meets(footprint) == bool(new & expected)
        found.add(footprint)
        expected |= new
    assert len(found) == len(expected)
    assert set(found.map().nonzero()[0]) == expected


def test_large_strided_tensors_are_counted_without_listing_their_runs():
    rows = 2**28
    assert from_strided(0, (rows, 100), (128, 1), 4).sectors(0) == rows * 13
    assert from_strided(0, (rows,), (2,), 4).sectors(0) == rows // 4
    # Wrong: bytes divided by 32, as if runs were packed.
    assert from_strided(0, (rows, 100), (128, 1), 4).sectors(0) != rows * 400 // 32
