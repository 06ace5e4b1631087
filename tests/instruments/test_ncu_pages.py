"""ncu's CSV read: both pages, any unit; what is no page is refused in one line."""

import pytest

from helpers.instruments import read_ncu
from helpers.instruments.ncu_pages import SPEED

HEAD = '"ID","Process ID","Kernel Name","Block Size","Grid Size","CC",'
HEAD += '"Section Name","Metric Name","Metric Unit","Metric Value"'
DETAILS = f"""==PROF== Connected to process 7
{HEAD}
"0","7","add","(128, 1, 1)","(1,024, 1, 1)","9.0","{SPEED}","Duration","us","12.5"
"0","7","add","(128, 1, 1)","(1,024, 1, 1)","9.0","{SPEED}","DRAM Throughput","%","91.25"
"0","7","add","(128, 1, 1)","(1,024, 1, 1)","9.0","Launch Statistics","Registers Per Thread","register/thread","32"
"0","7","add","(128, 1, 1)","(1,024, 1, 1)","9.0","Memory Workload Analysis","Memory Throughput","Tbyte/second","4.1"
"1","7","mul","(64, 2, 1)","(3, 1, 1)","9.0","Occupancy","Dynamic Shared Memory Per Block","Kbyte/block","1,024.5"
"""
RAW = """"ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","gpu__time_duration.sum"
"","","","","Mbyte","nsecond"
"0","add","(128, 1, 1)","(4, 1, 1)","134.2","31,000"
"""


def test_both_pages_in_base_units():
    add, mul = read_ncu(DETAILS)
    assert (add.name, add.block, mul.block) == ("add", (128, 1, 1), (64, 2, 1))
    assert add.counter("Duration") == pytest.approx(12.5e-6)
    assert add.counter("Memory Throughput") == pytest.approx(4.1e12)
    assert add.sections["Memory Workload Analysis"]["Memory Throughput"].unit == "byte/second"
    assert mul.counter("Dynamic Shared Memory Per Block") == pytest.approx(1024.5e3)
    (raw,) = read_ncu(RAW)
    assert raw.counter("dram__bytes_read.sum") == pytest.approx(134.2e6)
    assert raw.counter("gpu__time_duration.sum") == pytest.approx(31e-6)


def test_a_file(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(DETAILS)
    assert [each.name for each in read_ncu(file)] == ["add", "mul"]
    assert "Registers Per Thread" in read_ncu(file)[0].page("Launch Statistics")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"a","b"\n"1","2"\n', "no column Kernel Name"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "only administrators"),
        ("\n", "no column"),
    ],
)
def test_what_is_no_page(text, why):
    with pytest.raises(ValueError, match=why):
        read_ncu(text)


def test_a_counter_that_was_not_taken():
    with pytest.raises(ValueError, match="no counter 'Achieved Occupancy'"):
        read_ncu(DETAILS)[0].counter("Achieved Occupancy")
