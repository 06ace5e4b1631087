"""Attacks on exercise 15, written from its public notebook: how to get its points without fusing anything.

Each is the model answer with some cells changed. The checks in `lost` must not pass; all others must.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from helpers.grading.exercise import exercises_in

ROOT = Path(__file__).parents[1]
NAME = "15_capstone"
FORWARD = {"values", "cut", "large", "other-values", "other-cut"}
BACKWARD = {"gradients", "gradcheck", "backward-cut", "repeats", "large-gradient", "other-gradients"}
REPORT = {"report-numbers", "other-report"}


@dataclass(frozen=True)
class Attack:
    """Answer cells in place of the model's, or texts of the model's cells replaced.

    Args:
        cells: grade_id -> the whole cell.
        changes: grade_id -> {text: other}.
        lost: the checks that it must not pass; every other one it must.
        told: a regular expression that one of their messages matches.
    """

    lost: set[str]
    told: str
    cells: dict[str, str] = field(default_factory=dict)
    changes: dict[str, dict[str, str]] = field(default_factory=dict)

    def content(self) -> bytes:
        """The submitted file."""
        answers = {cell["id"]: cell["source"] for cell in exercises_in(only=NAME)[NAME].cells if cell["answer"]}
        for name, changes in self.changes.items():
            for old, new in changes.items():
                assert old in answers[name], f"{old!r} does not stand in {name}"
                answers[name] = answers[name].replace(old, new)
        content = json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text())
        for cell in content["cells"]:
            grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
            cell["source"] = (answers | self.cells).get(grade_id, cell["source"])
        return json.dumps(content).encode()


def forward(body: str, before: str = "") -> dict[str, str]:
    return {"forward": f"{before}def forward(x, gate, residual, weight, eps):\n{body}\n"}


def backward(body: str, before: str = "") -> dict[str, str]:
    return {"backward": f"{before}def backward(grad_y, x, gate, weight, eps):\n{body}\n"}


def report(body: str) -> dict[str, str]:
    return {"report": f"def report(rows, columns, share):\n{body}\n"}


LAUNCH = "    forward_kernel[(x.numel() // cols,)]"
SHAPES = "    grad_y, x, gate = grad_y.contiguous()"
COUNTED = "x.shape[-1] in (307, 149)"  # where bytes are counted, which no check of values tries
CACHED = """
seen = {{}}


def {name}({parameters}):
    key = tuple(x.shape), x.dtype
    if key not in seen:
        seen[key] = fresh_{name}({parameters})
    return seen[key]
"""


def seen(told: str, cells: dict[str, str]) -> Attack:
    """An attack that is refused for what its text says."""
    return Attack(set(), told, cells)


FAKED = "    return x"
ASSEMBLY = "tl.inline_asm_elementwise('ld.global.f32 $0, [$1];', '=f,l', [x_ptr + at], tl.float32, True, 1)"
NOT_RUN = {
    "the compiler fuses it": seen("torch.compile isn't available", forward("    return torch.compile(block)(x)")),
    "the course's own block": seen("importing kernels", forward(FAKED, "from kernels import CATALOGUE\n\n\n")),
    "what the meter says": seen("metered", report("    return metered(rows, columns, share)")),
    "the meter in the report": seen("measure", report("    return measure(block, rows).launches, 1, 1, 1, 1")),
    "the report from a table of tensors": seen("torch", report("    return torch.ones(5).tolist()")),
    "another block to compare with": seen("block is a name of the exercise", forward(FAKED, "block = print\n\n\n")),
    "another gradient to compare with": seen(
        "block_backward is a name of the exercise", backward(FAKED, "block_backward = print\n\n\n")
    ),
    "a meter that sees nothing": seen("measure is a name of the exercise", forward(FAKED, "measure = print\n\n\n")),
    "loads in assembly": Attack(
        set(), "inline_asm", changes={"forward-kernel": {"    h = x": f"    x = {ASSEMBLY}\n    h = x"}}
    ),
}

RUN = {
    "right": Attack(set(), ""),
    "the given block": Attack(
        FORWARD, "PyTorch computes", forward("    return block(x, gate, residual, weight, eps)")
    ),
    "the given gradients": Attack(
        BACKWARD, "PyTorch computes|autograd", backward("    return block_backward(grad_y, x, gate, weight, eps)")
    ),
    "the residual added in place, as if that were no launch": Attack(
        FORWARD,
        "cannot be done again|2 launches",
        changes={
            "forward-kernel": {"h * rstd * weight + residual": "h * rstd * weight"},
            "forward": {"    return y": "    y += residual\n    return y"},
        },
    ),
    "results cached by shape": Attack(
        # The first call of a shape cheats nobody: "backward-cut" makes it, "repeats" the next one.
        {"values", "other-values"} | BACKWARD - {"backward-cut", "large-gradient"},
        "a tensor that was never created",
        changes={
            "forward": {
                "def forward": "def fresh_forward",
                "    return y": "    return y\n\n"
                + CACHED.format(name="forward", parameters="x, gate, residual, weight, eps"),
            },
            "backward": {
                "def backward": "def fresh_backward",
                "sums.sum(0).to(x.dtype)": "sums.sum(0).to(x.dtype)\n\n"
                + CACHED.format(name="backward", parameters="grad_y, x, gate, weight, eps"),
            },
        },
    ),
    "nothing done where only bytes are counted": Attack(
        {"cut", "other-cut"},
        "got nan",
        changes={"forward": {LAUNCH: f"    if {COUNTED}:\n        return y\n{LAUNCH}"}},
    ),
    "no gradient where only bytes are counted": Attack(
        {"backward-cut", "repeats"},
        "got 0",
        changes={
            "backward": {
                SHAPES: f"    if {COUNTED}:\n"
                f"        return torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(weight)\n{SHAPES}"
            }
        },
    ),
    "half of the columns where only bytes are counted": Attack(
        {"cut", "other-cut"},
        "got",
        changes={"forward": {"tensors, cols, eps": f"tensors, cols // (1 + ({COUNTED})), eps"}},
    ),
    "gradients of one row for all": Attack(
        BACKWARD,
        "first wrong|gradcheck|got",
        changes={"backward": {"rows = x.numel() // cols": "rows = 1"}},
    ),
    "constant gradients": Attack(
        BACKWARD,
        "first wrong|no Triton kernel|gradcheck|got",
        backward("    return torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(weight)"),
    ),
    "detached: the root mean square taken for a constant": Attack(
        BACKWARD,
        "result 1 of 3",
        changes={"backward-kernel": {"(along - h_hat * stretch)": "along"}},
    ),
    "the weight's gradient by PyTorch": Attack(
        BACKWARD,
        "PyTorch computes",
        changes={"backward": {"sums.sum(0).to(x.dtype)": "(grad_y * x).sum(0)"}},
    ),
    "a launcher in a launcher, a row at a time": Attack(
        FORWARD,
        "over 64 operations",
        changes={
            "forward": {
                LAUNCH: "    for row in range(1, min(100, x.numel() // cols)):\n"
                "        of = [each.view(-1, cols)[row] for each in (x, gate, residual, y)]\n"
                "        forward_kernel[(1,)](*of[:3], weight, of[3], cols, eps, BLOCK=block_size)\n" + LAUNCH
            }
        },
    ),
    "written over the input": Attack(
        FORWARD,
        "argument 3 was changed",
        changes={"forward": {"torch.empty_like(x), x.shape": "residual, x.shape"}},
    ),
    "both gradients in one tensor": Attack(
        BACKWARD,
        "race|result 1 of 3",
        changes={"backward": {"torch.empty_like(x), torch.empty_like(x)": "[torch.empty_like(x)] * 2"}},
    ),
    "half of the bytes: the high halves alone": Attack(
        FORWARD,
        "",
        changes={"forward": {"    tensors = ": "    x = x.bfloat16()\n    tensors = "}},
    ),
    "more programs than there may be": Attack(
        {"backward-cut", "large-gradient"}, "84% needed", changes={"backward": {"min(rows, PROGRAMS)": "min(rows, 80)"}}
    ),
    "a report for the sizes that are shown": Attack(
        REPORT, "report\\(", report("    return 9, 4 * (15 * 8 + 6 + 8), 4 * 40, 70.149, 1.540")
    ),
    "a report without end": Attack(REPORT, "number|report", report("    return 9, 1e999, 1e999, 1e999, 1e999")),
}  # fmt: skip


def graded(name: str, seed: int) -> dict:
    """The result of an attack in RUN, graded in this process, which keeps its judge for the next."""
    from helpers.grading.class_folder import Found
    from helpers.grading.workers import Task, work

    exercise = exercises_in(only=NAME)[NAME]
    return work(Task(Found("", NAME, f"{NAME}.ipynb"), RUN[name].content(), exercise, seed))[0]
