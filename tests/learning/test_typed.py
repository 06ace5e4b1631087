"""What people type is read as they mean it; what could be two numbers is asked about; nothing else comes of it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.learning.parse_guess import number_in


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("", "MB", None),
        ("  ", "MB", None),
        ("20", "MB", 20),
        ("312/2.039", "FLOP/byte", 312 / 2.039),
        ("3.9M", "", 3_900_000),
        ("3.9 M", "numbers", 3_900_000),
        ("20 MB", "MB", 20),
        ("20MB", "MB", 20),
        ("20 mb", "MB", 20),
        ("0.02 GB", "MB", 20),
        ("20 kB", "B", 20_000),
        ("20 B", "MB", 20e-6),
        ("20 000", "MB", 20_000),
        ("20\u202f000", "", 20_000),
        ("1,234,567.5", "", 1_234_567.5),
        ("20,000", "MB", 20_000),
        ("8 us", "µs", 8),
        ("8 µs", "µs", 8),
        ("8 \u03bcs", "µs", 8),
        ("50 %", "%", 50),
        ("50%", "%", 50),
        ("2x", "times", 2),
        ("2 times", "times", 2),
        ("1 block", "blocks", 1),
        ("153 FLOP/byte", "FLOP/byte", 153),
        ("2^20", "", 2**20),
        ("2**20 / 1024", "", 1024),
        ("3 * 4", "B", 12),
        ("3 × 4 B", "B", 12),
        ("(1 + 2) * 4 MB", "MB", 12),
        ("1e6", "", 1e6),
        ("1.5e-3", "", 1.5e-3),
        ("-3", "", -3),
        ("−3", "", -3),
        ("~20", "", 20),
        (".5", "", 0.5),
        ("007", "", 7),
        ("1M/4k", "", 250),
    ],
)
def test_what_people_type(text, unit, value):
    assert number_in(text, unit) == (value if value is None else pytest.approx(value, rel=1e-12))


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        ("20,5", "MB", "20,5: is it 20.5 or 205? Type it without the comma"),
        ("0,125", "", "is it 0.125 or 0125"),
        ("1234,567", "", "is it 1234.567 or 1234567"),
        ("20M", "MB", "20M: is it 20 MB? Then type 20"),
        ("lots", "MB", "lots is not a number of MB: type one such as"),
        ("20 seconds", "MB", "20 seconds is not a number of MB"),
        ("20 000 5", "", "is not a number"),
        ("1/0", "", "1/0 has no value"),
        ("9**9**9", "", "has no value"),
        ("1e999", "", "has no value"),
        ("(-8)^0.5", "", "has no value"),
        ("__import__('os')", "", "is not a number"),
        ("(" * 500, "", "is not a number"),
        ("True", "", "is not a number"),
    ],
)
def test_what_is_asked_about(text, unit, said):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        number_in(text, unit)
    assert said in str(error.value)


@given(st.text(alphabet="0123456789 .,kMGTB%x+-*/^()e~_#\t'\0é", max_size=25), st.sampled_from(["", "MB", "times"]))
def test_nothing_typed_is_a_traceback(text, unit):
    with contextlib.suppress(ValueError):
        value = number_in(text, unit)
        assert value is None or isinstance(value, float)


@given(st.floats(0, 1e12, allow_nan=False))
def test_what_python_writes_is_read_as_it_is(value):
    assert number_in(repr(value)) == value
    assert number_in(f"{value:,.1f}") == float(f"{value:.1f}")
