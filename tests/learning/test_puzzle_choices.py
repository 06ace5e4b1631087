"""The lines that a puzzle offers on the web pages: exactly one is right, by the puzzle's own check."""

import pytest

from source.record_puzzles import ROOT, outcome, outcomes, puzzles_of

PUZZLES = [
    pytest.param(kernel, *found, id=f"{path.stem.partition('_')[0]}-{kernel}")
    for path in sorted((ROOT / "source/lessons").glob("*.py"))
    for kernel, found in puzzles_of(path).items()
]


@pytest.mark.parametrize(("kernel", "cell", "choices"), PUZZLES)
def test_every_puzzle_offers_lines_to_try(kernel, cell, choices):
    assert len(choices) >= 5, "the text to replace, and four lines or more"
    assert cell.count(choices[0]) == 1
    assert len(set(choices)) == len(choices)


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "cell", "choices"), [each for each in PUZZLES if each.values[2]])
def test_one_line_is_right_and_the_others_say_why_not(kernel, cell, choices):
    shown = [repr(found) for _, found in outcomes(kernel, cell, choices)]
    assert all(text.startswith(("Solved", "Not yet: ")) for text in shown)
    assert repr(outcome(cell)).startswith("Not yet: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:4], "has 3 choices: give it 4 or more"),
        (lambda lines: ["no such line", *lines[1:]], "stands 0 times in its cell, not once"),
        (lambda lines: [*lines[:3], "element = 0", "element = 1"], "0 of its choices are right, not one"),
    ],
)  # fmt: skip
def test_poor_choices_are_refused(change, message):
    kernel, cell, choices = next(each.values for each in PUZZLES if each.values[0] == "double_kernel")
    with pytest.raises(ValueError, match=message):
        outcomes(kernel, cell, change(choices))
