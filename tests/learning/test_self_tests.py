"""An answer to a lesson's self-test is right, or gets its hint."""

import pytest

from helpers.learning import self_test


def test_self_test():
    assert "not answered yet" in self_test(..., 3, hint="count")
    assert self_test(3.001, 3, hint="count") == "right"
    assert self_test(3.1, 3, hint="count") == "not 3.1: count"
    with pytest.raises(TypeError, match="an answer is a number, got '3'"):
        self_test("3", 3, hint="count")
