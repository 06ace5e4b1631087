"""English that reads like a translation doesn't grow: docs/writing.md has the rules, tests/english.py counts."""

from collections import Counter

import pytest

from tests.english import ALL, KINDS, faults_in, hits

# Fault: its ceilings in lessons, exercises, docs, code. Lower one when you have lowered its count.
CEILINGS = {
    "F1": (10, 0, 0, 5),
    "F2": (12, 0, 0, 1),
    "F3": (3, 1, 1, 14),
    "F4": (3, 0, 0, 3),
    "F5": (3, 2, 0, 3),
    "F6": (20, 1, 2, 28),
    "F7": (8, 2, 0, 29),
    "F8": (1, 0, 0, 1),
    "F9": (11, 3, 0, 13),
    "F10a": (11, 2, 2, 0),
    "F10b": (0, 0, 0, 2),
    "F10c": (0, 0, 0, 16),
}


def test_no_fault_is_more_frequent_than_its_ceiling():
    counts = Counter((each.fault, each.kind) for each in hits())
    over = [
        f"{fault} in {kind}: {counts[fault, kind]}, at most {ceiling}"
        for fault, ceilings in CEILINGS.items()
        for kind, ceiling in zip(KINDS, ceilings, strict=True)
        if counts[fault, kind] > ceiling
    ]
    assert over == [], "`python tests/english.py --list FAULT KIND` shows each place; docs/writing.md has the rules"


def test_every_fault_has_its_ceilings():
    assert tuple(CEILINGS) == ALL


@pytest.mark.parametrize(
    ("what", "text", "fault"),
    [
        ("markdown", "It needs 32 registers a thread.", "F1"),
        ("markdown", "It takes three times as long.", "F2"),
        ("markdown", "The store stands inside the loop.", "F3"),
        ("markdown", "The meter says how many bytes move.", "F4"),
        ("markdown", "The width is no multiple of the block.", "F5"),
        ("markdown", "It halves the traffic. What is left is the input.", "F6"),
        ("markdown", "A thread has registers, of which few are free.", "F7"),
        ("markdown", "Both are to be loaded first.", "F8"),
        ("markdown", "It is summed in place of the first.", "F9"),
        ("markdown", "## Dice that anyone can throw again", "F10a"),
        ("docstring", "Whether the tensors overlap.", "F10b"),
        ("message", "block size: a power of two is expected", "F10c"),
    ],
)
def test_each_fault_is_found(what, text, fault):
    assert fault in [found for found, _, _ in faults_in(what, text)]


@pytest.mark.parametrize(
    "text",
    [
        "It needs 32 registers per thread and is 3x slower.",
        "The meter counts the bytes; `what it says` is code. <!-- what stands here is not shown. -->",
        "The width is not a multiple of the block size.",
        "## Philox: random numbers without state",
    ],
)
def test_plain_english_has_no_fault(text):
    assert list(faults_in("markdown", text)) == []
