"""Check an answer on which operations one kernel may do, which fusions pay off, and the best partition of a graph."""

import contextlib
import copy
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from helpers.instruments.fusion.small_graph import RULES, illegal_reason, in_order, kernel_cost, operations_between
from helpers.learning.checks import cases
from helpers.learning.checks.numbers import unlisted
from helpers.learning.checks.partition_search import best_partition, legal_groups, named, overwrites, time_of, touching
from helpers.learning.checks.small_graphs import (
    at_the_limit,
    long_chain,
    nearly_even,
    of_several_tensors,
    overwritten_and_turned,
)
from helpers.learning.outcome import AnswerError, as_check

LIMIT = 20.0  # seconds for one check's calls of an answer
SAME = 1 + 1e-9  # times: sums of seconds in another order
CLEAR = 0.01  # of the time of two kernels: the saving or cost of fusing required for a question
ASKED = 8  # groups of each graph, legal or not

# Rule, numbered as in the exercise -> where to look.
LOOK_AT = {
    "opaque": "rule 1: an opaque operation is a kernel of its own",
    "size": "rule 2: the rows and columns that operations go over",
    "tiles": "rule 3: matmuls and whole rows",
    "elsewhere": "rule 4: what one of them writes and another reads elsewhere",
    "overwritten": "rule 4: what one of them reads elsewhere and another overwrites",
    "together": "rule 5: the tensors that connect them",
    "between": "rule 6: what has to run between them, and what an operation waits for",
    "registers": "rule 7: kernel_cost(graph, group)['registers']",
}


def groups_asked(graphs: Iterable[dict], seed: int) -> list[tuple[dict, list[str]]]:
    """Return (graph, names) to ask about: for each graph, groups that one kernel may do and groups that break exactly
    one rule; then operations that write several tensors, and kernels with 255 and with 256 registers."""
    draw = random.Random(seed + (cases.draw << 16))
    found = []
    for graph in graphs:
        names = [each["name"] for each in graph["operations"]]
        legal = [group for _, group in legal_groups(graph) if len(group) > 1]
        wrong = []
        for rule in RULES:
            alone = [group for _, group in legal_groups(graph, rule) if len(group) > 1 and illegal_reason(graph, group)]
            # Pairs rarely reveal other rules that a group may break.
            wrong += draw.sample(alone, min(2, len(alone)))
        some = draw.sample(legal, min(ASKED // 2, len(legal))) + draw.sample(wrong, min(ASKED, len(wrong)))
        some += [group for group in legal if group not in some and overwrites(graph, group)][:2]
        found += [(graph, group) for group in sorted([named(names, 1), *some], key=len)]
    found += [long_chain(), *overwritten_and_turned(), *of_several_tensors()]
    return found + [(graph, [each["name"] for each in graph["operations"]]) for graph in at_the_limit()]


def edges_asked(graphs: Iterable[dict]) -> list[tuple[dict, str, str]]:
    """Return (graph, name, name) for all pairs that share a tensor, unless fusing them makes no difference; then pairs
    where fusing changes the time by a few percent."""
    return [
        (graph, one, two)
        for graph in (*graphs, *nearly_even())
        for one, two in touching(graph)
        if illegal_reason(graph, [one, two]) or abs(saved(graph, one, two)) > CLEAR * time_of(graph, [[one], [two]])
    ]


def saved(graph: dict, one: str, two: str) -> float:
    """Return the seconds that one kernel saves compared with two."""
    return time_of(graph, [[one], [two]]) - kernel_cost(graph, [one, two])["time"]


@as_check
def check_legal(answer: Callable, questions: Iterable[tuple[dict, list[str]]]) -> str:
    """Ask `answer(graph, group)` whether one kernel may do a group: True or False, as in `illegal_reason`."""
    questions = list(questions)
    with in_time(answer):
        for graph, group in questions:
            got = answer(copy.deepcopy(graph), list(group))
            asked = f"{answer.__name__}(graph, {group})"
            require_bool(got, asked)
            why = illegal_reason(graph, group)
            if got and why:
                rule = next(rule for rule in RULES if rule_of(graph, group, rule))
                told(f"{asked} gives True, but {why}", LOOK_AT[rule], graph, group)
            if not got and not why:
                told(f"{asked} gives False, but one kernel may do it", "which of your rules refuses it", graph, group)
    return f"right on {len(questions)} groups."


def rule_of(graph: dict, group: list[str], rule: str) -> bool:
    """Return whether a group breaks this rule and no earlier one."""
    return illegal_reason(graph, group) != illegal_reason(graph, group, rule)


@as_check
def check_edges(answer: Callable, questions: Iterable[tuple[dict, str, str]]) -> str:
    """Ask `answer(graph, one, two)` whether to fuse two operations: True if that's legal and saves time."""
    questions = list(questions)
    with in_time(answer):
        for graph, one, two in questions:
            got = answer(copy.deepcopy(graph), one, two)
            asked, pair = f"{answer.__name__}(graph, {one!r}, {two!r})", [one, two]
            require_bool(got, asked)
            why = illegal_reason(graph, pair)
            if got and why:
                told(
                    f"{asked} gives True, but {why}",
                    "whether it's legal, before you ask whether it's worth it",
                    graph,
                    pair,
                )
            gain = saved(graph, one, two)
            if got != (not why and gain > 0):
                times = [1e6 * time_of(graph, groups) for groups in ([pair], [[one], [two]])]
                what = f"{asked} gives {got}, but one kernel takes {times[0]:.2f} us, two {times[1]:.2f} us"
                told(what, "what the two cost separately and together", graph, pair)
    return f"right on {len(questions)} pairs."


@as_check
def check_partitions(answer: Callable, graphs: Iterable[dict]) -> str:
    """Ask `answer(graph)` for a partition, and compare its time with the minimum.

    Args:
        answer: the learner's function: a list of kernels, each a list of names.
        graphs: the simplest first.
        name: the check's name.
    """
    graphs = list(graphs)
    with in_time(answer):
        for graph in graphs:
            got = groups_of(answer(copy.deepcopy(graph)))
            require_partition(got, graph, answer.__name__)
            best = best_partition(graph)
            time, least = time_of(graph, got), time_of(graph, best)
            if time > least * SAME:
                returned = [sorted(group) for group in got]
                # A single operation is always legal and tried, so the largest kernel shows most.
                missed = max((group for group in best if sorted(group) not in returned), key=len)
                how = f"with the kernel {missed}" if len(missed) > 1 else f"with {missed[0]} in a kernel of its own"
                told(
                    f"{answer.__name__}(graph) returns {got}, which takes {1e6 * time:.2f} us; {1e6 * least:.2f} us is "
                    f"possible {how}",
                    "whether it tries that kernel, and whether your rules accept it",
                    graph,
                )
    return f"the minimum time on {len(graphs)} graphs."


def require_bool(got: object, asked: str) -> None:
    if not isinstance(got, bool):
        raise AnswerError(f"{asked} gives {got!r:.80}: return True or False", "what your function returns")


def groups_of(got: object) -> object:
    """Return a partition as a list of lists, whatever collections an answer takes; anything else as it is."""
    groups = unlisted(got)
    return [unlisted(group) for group in groups] if isinstance(groups, list) else got


def require_partition(got: object, graph: dict, function: str) -> None:
    """Raise AnswerError unless this is a partition of the graph into kernels that can run."""
    asked = f"{function}(graph)"
    listed = isinstance(got, list) and all(isinstance(group, list) for group in got)
    if not listed or not all(isinstance(name, str) for group in got for name in group):
        raise AnswerError(f"{asked} gives {got!r:.80}: return a list of lists of names", "what your function returns")
    known = [each["name"] for each in graph["operations"]]
    counted = Counter(name for group in got for name in group)
    if strange := sorted(counted.keys() - set(known)):
        told(f"{asked} has {strange[0]!r:.80}, no operation of the graph", "where its names come from", graph)
    if not all(got):
        told(f"{asked} has a kernel without operations", "where your groups begin", graph)
    if missing := [name for name in known if name not in counted]:
        told(f"{asked} leaves out {', '.join(missing)}: {got}", "the operations that stay alone", graph)
    if twice := [name for name in known if counted[name] > 1]:
        told(f"{asked} has {', '.join(twice)} in {counted[twice[0]]} kernels: {got}", "groups that overlap", graph)
    for group in got:
        if why := illegal_reason(graph, group):
            rule = next(rule for rule in RULES if rule_of(graph, group, rule))
            told(f"{asked} has the kernel {group}, but {why}", LOOK_AT[rule], graph, group)
    if len(run := in_order(graph, got)) < len(got):
        waiting = [group for group in got if group not in run]
        told(
            f"{asked}: kernels wait for each other: {waiting}",
            "whether all kernels together can run in some order",
            graph,
        )


def told(what: str, look_at: str, graph: dict, group: Iterable[str] = ()) -> None:
    """Raise AnswerError with the operations involved: those of the group if one is named, and the operations that must
    run between them; else all in the graph."""
    group = list(group)
    between = operations_between(graph, group) if "has to run between them" in what else []
    lines = [
        f"{line_of(each)} (outside)" if each["name"] in between else line_of(each)
        for each in graph["operations"]
        if not group or each["name"] in [*group, *between]
    ]
    if any("*" in line for line in lines):
        lines.append("x* is a tensor x that is read elsewhere.")
    raise AnswerError("\n".join([what, *lines]), look_at)


def line_of(operation: dict) -> str:
    """Describe an operation in one line: "mul: elementwise, 64 x 512, s u -> m"; inputs read at other elements are
    marked."""
    reads = " ".join(f"{each}*" if each in operation["elsewhere"] else each for each in operation["reads"])
    size = f"{operation['rows']} x {operation['columns']}"
    return f"{operation['name']}: {operation['kind']}, {size}, {reads} -> {' '.join(operation['writes'])}"


@contextlib.contextmanager
def in_time(answer: Callable) -> Iterator[None]:
    """Raise AnswerError if the code inside takes longer than LIMIT seconds; only in a main thread, which can receive
    signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number, _frame):
        raise AnswerError(
            f"{answer.__name__} took over {LIMIT:g} s",
            "loops that do not end, and partitions that no kernel could do: drop those early",
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
