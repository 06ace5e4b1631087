"""Give hints one at a time, on request, for the most recent failure."""

import html
import re
from dataclasses import dataclass

from helpers.learning.outcome import ERROR, FAIL, PASS, hinted, latest
from helpers.style import PURPLE

# A regular expression for a failed check's report -> hints, from vague to plain; the first match counts.
ON_FAILURES: dict[str, tuple[str, ...]] = {
    "refused: ": (
        "The check reads your code before it runs it. The message quotes the first line it refuses, with the reason.",
        "The line in bold above the answers lists what they may use. Rewrite that line with those.",
    ),
    r"^error: (.*\n)*.*(InterpreterError|\btl\.|triton)": (
        "This is an exception, so there was no result to check yet. The message quotes the last of your lines that "
        "ran. Are the names, the number of arguments and the shapes on it right?",
        "In a kernel, tl.arange takes constants (tl.constexpr), and its size is a power of two. Two blocks that meet "
        "in an operation need shapes that match: x[:, None] and y[None, :] give a tile.",
    ),
    "^error: ": (
        "This is an exception, so there was no result to check yet. The message quotes the last of your lines that "
        "ran. Are the names, the number and the types of the arguments on it right?",
    ),
    "does not compile": (
        "Triton's compiler takes less Python than the interpreter: no lists or dictionaries, and a variable keeps its "
        "dtype and shape from one pass of a loop to the next. What does the quoted line do that it doesn't take?",
        "Keep blocks in variables of their own, and start a sum in the dtype that the loop adds to it: "
        "tl.zeros((BLOCK,), dtype=...).",
    ),
    r"Look at your line [^\n]*: the strides|Look at (where the NaN comes from: [^\n]*; and )?the strides": (
        "This case is a view: its rows aren't next to each other in memory, or its elements aren't. How does your "
        "kernel get from an index to an address?",
        "If your launcher passes strides, multiply each index by the stride of its own axis. If it doesn't, your "
        "offsets are only right for a contiguous tensor, so call .contiguous() before the launch.",
    ),
    r"out-of-bounds (read|store|atomic)": (
        "The message names the line, the tensor and the first element outside it. Which index gets that large, or "
        "falls below 0?",
        "Every index has a size that it must stay below. Join those comparisons with &, and pass them as mask= to the "
        "load or store. If it has a mask already, one comparison is missing, or uses the wrong size.",
    ),
    "rows and columns are exchanged|last two axes: every value": (
        "Your numbers are right, and in the wrong places. In which order does memory hold the elements of a matrix?",
        "Element (i, j) of a contiguous matrix is at i * columns + j, where columns is the result's last size.",
    ),
    r": race |unsynchronised (?:read|store)|come out different": (
        "The programs of a launch run in any order, and at the same time. Which two of them touch this element?",
        "Give each element one program that stores it. A program must not read what another one of the same launch "
        "stores.",
    ),
    "uninitialised read": (
        "torch.empty holds whatever was in memory before. Which of its elements do you read before you store them?",
    ),
    "these are the values of": (
        "On this case, and on all before it, your results are exactly those of the formula that the message names. "
        "Which of your lines makes them so?",
        "Go through the formula at the top of the exercise, and find each of its terms in your code.",
    ),
    "nothing was written from element|no element was written|were never written": (
        "Results start as NaN, so NaN means that no program stored that element. How many programs does your grid "
        "have, and which elements does each one store?",
        "The grid must cover everything: rounded up, triton.cdiv(elements, BLOCK), or one program for each row of "
        "x.numel() // cols. Then check the store's offsets and its mask.",
    ),
    r"argument \d was changed": (
        "After the call, a tensor you were given has other values. Where do you store to it?",
        "Allocate the result with torch.empty_like, pass that to the kernel, and use no in-place operation (x += y, "
        "x.mul_(2)) on an argument.",
    ),
    "changed the result of an earlier one": (
        "Two calls returned the same memory. Where does your launcher keep a tensor between calls?",
        "Call torch.empty_like inside the function, each time it is called.",
    ),
    r"the result's strides": (
        "torch.empty_like copies the memory layout as well as the shape. Which tensor do you give it?",
        "Call .contiguous() first, then torch.empty_like on its result.",
    ),
    r"result( \d of \d)?'s (shape|dtype|device) is|expected a (tensor|tuple)": (
        "Compare your result with the expected one. Do you return every result, in the order asked for?",
        "torch.empty_like(x) has x's shape and dtype; dtype= overrides the dtype.",
    ),
    "all the work": (
        "A GPU has over a hundred SMs, and a program runs on one of them. How many programs do you launch?",
        "Let the grid grow with the tensor: one program per block of elements, or per row, not one that loops over "
        "all of them.",
    ),
    r"spills \d+ bytes": (
        "A thread has at most 255 registers, and the rest goes to memory. How many elements does a thread of "
        "yours hold?",
        "That is the number of elements in a block / (32 num_warps). Let num_warps grow with the block, so that it "
        "stays at about 32.",
    ),
    r"(?<!bfloat16: )\b\d+ launch(es)? \(": (
        "The brackets name every launch. Which of them isn't your kernel?",
        "torch.empty and torch.empty_like launch nothing. torch.zeros_like, .contiguous() of a view, .to(dtype) and "
        "any arithmetic do: leave them out, or do their work in the kernel.",
    ),
    r"in bfloat16: \d+ launch": (
        "Only bfloat16 fails, so the extra launch is a conversion: .float() and .to(x.dtype) cost nothing in float32.",
        "Convert in the kernel: .to(tl.float32) after each load. Allocate the result in its final dtype, and tl.store "
        "converts what you store to it.",
    ),
    "load, convert to float32|nothing is rounded to 16 bits|convert to float32 before": (
        "The same formula is right in float32. So which value has 16 bits in your kernel before the result is stored?",
        "Write .to(tl.float32) after each load, and convert nothing back: tl.store rounds the result once.",
    ),
    "where the NaN comes from": (
        "Every element was stored, so the NaN was computed. Which of your operations can be inf - inf, inf / inf or "
        "0 / 0, and which of your loads can return NaN?",
        "exp(x) is inf for x above 88, so subtract the maximum first. A masked load without other= may return "
        "anything, even NaN, and 0 * NaN is NaN.",
    ),
    "what happens to NaN|Look at NaN: |NaN in one row, inf in another": (
        "NaN in an input must be NaN in the result, but only where it belongs. Which of your operations drops it?",
        "tl.maximum, tl.minimum and tl.clamp drop NaN. Comparisons with NaN are false, so tl.where(x < a, a, x) keeps "
        "it.",
    ),
    "Look at the lanes past the row's end": (
        "Rows that fill their block are right, so the positions past the row's end count somewhere. What do they hold "
        "after the load, and after each operation?",
        "other= decides what they hold after the load: 0 adds nothing to a sum, -inf is never the maximum. x - mean "
        "changes that 0, so use tl.where(exists, ..., 0.0) before the next sum. Divide by cols, not by BLOCK.",
    ),
    r"Look at eps: [^\n]*inside the (square )?root": (
        "This case has an eps that matters. What do you add it to, and is it the function's argument?",
        "Add the argument to the variance, or to the mean of the squares, under the root: tl.rsqrt(variance + eps).",
    ),
    "Look at the block: it must hold the whole row": (
        "The failing row is wider than those before it. How large is your block?",
        "Use triton.next_power_of_2(cols) as the block size, not a constant.",
    ),
    "Look at the number of rows": (
        "With more than two dimensions, x.shape[0] isn't the number of rows.",
        "There are x.numel() // x.shape[-1] rows: that many programs, if each handles one.",
    ),
}


@dataclass(frozen=True)
class Hint:
    """A hint, as Jupyter displays it."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<div style="border-left: 4px solid {PURPLE}; padding: 0.2em 0.8em">{html.escape(self.text)}</div>'


class Hints:
    """An exercise's hints: `hint(1)`, then `hint(2)`, for the first check that fails.

    Args:
        hints: for each check, in their order, its hints from the vaguest to the plainest; or a dictionary, a
            regular expression that the check's report matches -> hints, with "" for all other reports. Failures that
            are alike in every exercise have theirs in `ON_FAILURES`.
    """

    def __init__(self, **hints: tuple[str, ...] | dict[str, tuple[str, ...]]):
        self.hints = {check: given if isinstance(given, dict) else {"": given} for check, given in hints.items()}
        hinted.update(self.hints)

    def __repr__(self) -> str:
        return "Stuck? Run hint(1) in a cell of your own, then hint(2)."

    def __call__(self, number: int | str = 1, check: str | None = None) -> Hint:
        """Return hint `number` (from 1) for `check`, by default the first check that fails, or else the first one not
        passed yet. `hint("traffic")` returns that check's first hint, `hint(2, "traffic")` its second."""
        if isinstance(number, str):
            number, check = 1, number
        if check is None:
            failing = [name for name in self.hints if name in latest and latest[name].state in (FAIL, ERROR)]
            left = [name for name in self.hints if name not in latest or latest[name].state != PASS]
            check = next(iter([*failing, *left]), None)
        if check is None:
            return Hint("Every check here has passed.")
        if check not in self.hints:
            raise ValueError(f"there is no check {check!r}; there are: {', '.join(self.hints)}")
        hints = self._on(check)
        if not isinstance(number, int) or not 1 <= number <= len(hints):
            return Hint(f"{check}: its hints are hint(1) to hint({len(hints)}).")
        return Hint(f"{check}, hint {number} of {len(hints)}: {hints[number - 1]}")

    def _on(self, check: str) -> tuple[str, ...]:
        """Return the hints for the latest report of `check`."""
        outcome = latest.get(check)
        reported = str(outcome) if outcome and outcome.state in (FAIL, ERROR) else ""
        # Leave out the names of the cases that pass and fail.
        reported = re.sub(
            r"^ *(\d+ of \d+ cases pass; wrong|the only right ones): .*\n?", "", reported, flags=re.MULTILINE
        )
        own = self.hints[check]
        known = [*((pattern, hints) for pattern, hints in own.items() if pattern), *ON_FAILURES.items()]
        return next((hints for pattern, hints in known if re.search(pattern, reported)), own[""])
