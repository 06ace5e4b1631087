"""Each exercise's hints answer the failure just seen; its title, checks and text count the same points."""

import functools
import re
from pathlib import Path

import pytest

from helpers.learning import Hints, outcome
from helpers.learning.outcome import FAIL, Outcome

ROOT = Path(__file__).resolve().parents[2]
EXERCISES = sorted((ROOT / "source/exercises").glob("*.py"))

# Two failures of one check or more, in exercises with a kernel and without: which of its hints answers.
FAILURES = [
    ("01_roofline", "gpus", "A10 should not be there; got", "Do it by hand for the GPU that"),
    ("01_roofline", "gpus", "return a list of names", "Call it for each of them"),
    ("03_fused_add_gelu", "values", "out-of-bounds read of a", "Which index gets that large"),
    ("03_fused_add_gelu", "values", "Look at the formula.", "Is every value wrong"),
    ("03_fused_add_gelu", "large", "one program does all the work", "How many programs"),
    ("03_fused_add_gelu", "large", "an integer of 32 bits passes 2^31", "int32 unless"),
    (
        "04_bias_dropout_residual",
        "drop-rate",
        "Look at what a kept element is multiplied by",
        "so that the mean",
    ),
    ("04_bias_dropout_residual", "drop-rate", "Look at which side of p is dropped", "Which elements are dropped"),
    ("05_layer_norm", "values", "Look at the lanes past the row's end: what", "past the row's end"),
    ("05_layer_norm", "values", "Look at the grid: nothing was written from element 64 on", "no program stored"),
    ("05_layer_norm", "values", "Look at eps: it is added, inside the square root", "What do you add it to"),
    ("05_layer_norm", "traffic", "k spills 24 bytes of registers", "255 registers"),
    ("05_layer_norm", "traffic", "in bfloat16: 2 launches (k, _to_copy), 1 needed", "Only bfloat16 fails"),
    ("05b_residual_rms_norm", "values", "argument 2 was changed", "Where do you store to it"),
    ("05b_residual_rms_norm", "values", "Look at the formula.", "Which of the two results"),
    ("06_softmax_topk", "values", "right: result 1, result 2\n  Look at ties: of equal", "How do you remove it"),
    ("06_softmax_topk", "values", "also wrong: result 2\n  Look at ties: of equal", "Get p right first"),
    ("06_softmax_topk", "values", "Look at the exponential: subtract", "Get p right first"),
    ("07_register_budget", "tile", "", "A square tile"),
    ("07_register_budget", "rows", "", "elements per thread"),
    ("08_linear_act", "rounding", "Look at the formula of gelu", "only gelu differs"),
    ("08_linear_act", "rounding", "Look at what is rounded", "Which values in your kernel have 16 bits"),
    ("08_linear_act", "values", "Look at your line 5, `x`: the strides: a matrix", "This case is a view"),
    ("09_conv_bn_relu", "convolution", "Look at the index map: the row", "each tap see"),
    ("01_roofline", "bound", "its intensity is exactly the ridge, 2 FLOP/byte", "with equal numbers"),
    ("09_conv_bn_relu", "convolution", "got 0, expected nan\n  Look at ReLU: tl.where", "turns NaN into a number"),
    ("09_conv_bn_relu", "convolution", "got nan, expected 1\n  Look at ReLU: tl.where", "0 * NaN is NaN"),
    (
        "14_cuda_softmax",
        "code",
        "softmax does not compile:\n softmax.cu(3): error\n  Look at the line that the compiler names",
        "the line and the column",
    ),
    (
        "14_cuda_softmax",
        "traffic",
        "softmax does not compile: its message is at the check 'values'",
        "the line and the column",
    ),
    ("14_cuda_softmax", "code", "Look at where the NaN comes from: an exponential", "below -200"),
    ("14_cuda_softmax", "traffic", "1001 columns: out-of-bounds read of x", "past the row's end"),
    ("09_conv_bn_relu", "convolution", "x: which of these elements exist? Mask the others", "There are four"),
    ("10_attention_scores", "values", "several heads, shape (2, 9, 64, 16)", "tl.program_id(1)?"),
    ("10_attention_scores", "values", "rows and columns are exchanged in memory", "In which order does memory"),
    ("10_attention_scores", "values", "Look at the rescaling: when", "carry from one tile"),
    ("10b_flash_attention", "values", "Look at the accumulator: fp16 cannot hold", "Only some of them may"),
    ("10b_flash_attention", "values", "Look at the edges: which", "Which keys of the last tile"),
    ("11_fused_backward", "gradients", "Look at the loop over rows, and", "more rows than programs"),
    ("11_fused_backward", "traffic", "x is read 2 times, once needed", "two lines load"),
    ("12_layer_norm_int8", "codes", "Look at the rounding: to", "0.5 becomes 0"),
    ("12_layer_norm_int8", "codes", "Look at the smallest scale: max", "row of zeros"),
    ("13_decide", "legal", "Look at rule 2: the rows", "two operations at a time"),
    ("13_decide", "legal", "Look at rule 6: what", "after one of its members"),
    ("14_cuda_softmax", "sound", "1024 columns: race at line 3", "Which two threads"),
    ("14_cuda_softmax", "sound", "misaligned read at line 3", "multiple of 4004"),
    ("15_capstone", "cut", "2 launches (add, k), at most 1", "isn't your kernel"),
    ("15_capstone", "gradients", "Look at the loop over rows, and", "more rows than programs"),
]


@pytest.fixture(scope="module")
def hints_of():
    """The hints of an exercise, from its source alone."""

    @functools.cache
    def made(exercise: str) -> Hints:
        text = (ROOT / f"source/exercises/{exercise}.py").read_text()
        [cell] = [cell for cell in re.split(r"^# %%.*$", text, flags=re.MULTILINE) if "\nhint = Hints(" in cell]
        namespace = {"Hints": Hints}
        exec(cell.partition("\n\n\n")[0], namespace)  # what follows belongs to the checks
        return namespace["hint"]

    return made


@pytest.mark.parametrize(("exercise", "check", "reported", "hinted"), FAILURES)
def test_a_hint_answers_the_failure_just_seen(exercise, check, reported, hinted, hints_of, monkeypatch):
    said, _, look_at = reported.partition("Look at ")
    monkeypatch.setitem(
        outcome.latest, check, Outcome(check, FAIL, f"{said}\n1 of 2 cases pass; wrong: NaN in one row", look_at)
    )
    hint = hints_of(exercise)
    first = str(hint(1, check))
    assert hinted in first
    assert f"hint 1 of {len(hint._on(check))}: " in first


def test_every_pattern_of_a_hint_is_an_expression_and_every_check_has_hints(hints_of):
    for path in EXERCISES:
        hints = hints_of(path.stem).hints
        unless_hidden = r'^# %% grade_id="(\S+)" points=\d+\n(?!# .*\n# BEGIN HIDDEN TESTS)'
        shown = set(re.findall(unless_hidden, path.read_text(), re.MULTILINE))
        assert shown <= hints.keys(), f"{path.name}: {shown - hints.keys()} have no hints"
        for own in hints.values():
            assert own[""]
            for pattern, texts in own.items():
                re.compile(pattern)
                assert isinstance(texts, tuple), f"{path.name}: {texts}"


def test_title_points_and_those_of_hidden_checks_add_up():
    for path in EXERCISES:
        text = path.read_text()
        points = {check: int(n) for check, n in re.findall(r'^# %% grade_id="(\S+)" points=(\d+)', text, re.MULTILINE)}
        hidden = re.findall(r'grade_id="(\S+)" points=\d+\n# .*\n# BEGIN HIDDEN TESTS', text)
        total, kept = sum(points.values()), sum(points[check] for check in hidden)
        flat = re.sub(r"\n# ", " ", text)
        assert f"[{total} points]" in text, path.name
        assert f"They're worth {total - kept} of the {total} points; the other {kept} " in flat, path.name


@pytest.mark.parametrize("source", EXERCISES, ids=lambda path: path.stem)
def test_an_exercise_says_what_answers_may_use_and_what_is_refused(source):
    text = " ".join(source.read_text().replace("\n# ", "\n").split())
    found = re.findall(r"\*\*What .{,40}may use:\*\*.{,420}", text)
    assert found
    assert all("classes" in each for each in found)
    launches = re.search(r'grade_id="[\w-]+" @triton\.jit', text)
    assert not launches or any("decorator, classes and block pointers" in each for each in found)
