"""A line that an instrument names is told with its text."""

import linecache

import pytest

from helpers.instruments.source_lines import naming_lines, source_line, with_source
from helpers.instruments.traffic.hazards import Hazard


@pytest.fixture
def kernel(tmp_path) -> str:
    path = tmp_path / "kernel.cu"
    path.write_text("first\n  if (i < n) __syncthreads();\nlast\n")
    return str(path)


def test_text_stands_behind_each_line_that_has_none(kernel):
    assert source_line(kernel, 2) == "if (i < n) __syncthreads();"
    assert with_source("k, line 3: race", kernel) == "k, line 3, `last`: race"
    told = "k, line 3, `last`: threads wait at line 2"
    assert with_source(told, kernel) == f"{told}, `if (i < n) __syncthreads();`"
    assert with_source("line 9, line 20", kernel) == "line 9, line 20"
    assert with_source("line 3", "/no/such/file") == "line 3"


def test_a_hazard_names_the_other_line_with_its_text_too(kernel):
    hazard = Hazard("race", "k", kernel, 3, "others wait at line 2", (0, 0, 0), 1, (1, 0, 0))
    assert str(hazard) == (
        "race: others wait at line 2, `if (i < n) __syncthreads();`: k, line 3, `last`, thread (1, 0, 0) of "
        "block (0, 0, 0)"
    )


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_a_refusal_says_the_text_and_keeps_its_kind(kernel, kind):
    with pytest.raises(kind, match=r"^k, line 3, `last`: a trap$"), naming_lines(kernel):
        raise kind("k, line 3: a trap")


def test_an_error_of_another_kind_is_left_alone(kernel):
    with pytest.raises(RecursionError, match=r"^line 3$"), naming_lines(kernel):
        raise RecursionError("line 3")


def test_a_cell_is_found_whichever_process_compiled_it(monkeypatch):
    mine = "/tmp/ipykernel_7/494643858.py"
    monkeypatch.setitem(linecache.cache, mine, (1, None, ["  x = 1\n"], mine))
    assert source_line("/tmp/ipykernel_3/494643858.py", 1) == "x = 1"
    assert source_line("/tmp/ipykernel_3/1.py", 1) == ""
