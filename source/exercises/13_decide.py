# %% [markdown]
# # Exercise 13: decide what to fuse [15 points]
#
# You'll write three functions. The first decides whether a group of operations can be one kernel, the second whether
# fusing two of them is worth it, and the third finds the fastest way to split a whole graph into kernels. We compare
# the third with an exhaustive search. About 75 minutes. Lesson 13 has everything you need.
#
# **The formulas**, for a group of operations in one kernel on an H200:
#
# $$\text{bytes} = \text{inputs from outside, read once} + \text{outputs needed outside, written once}$$
#
# $$\text{time} = \text{start} + \max\Big(\frac{\text{bytes}}{\text{share} \times \text{bandwidth}},\
# \frac{\text{FLOP}}{\text{matrix rate}}\Big)$$
#
# $$\text{share} = \min\Big(1, \frac{\text{rows}}{\text{multiprocessors}}\Big) \text{ if it needs whole rows, else } 1$$
#
# **The picture** shows one graph in two partitions. Tensors between kernels are written to memory and read back:

# %% tags=["hide-input"]
from helpers.figures.exercise_pictures import picture

picture("13")

# %%
import math  # for your answers

from helpers.instruments import table
from helpers.learning import (
    Hints,
    check_edges,
    check_legal,
    check_partitions,
    drawn_graphs,
    edges_asked,
    groups_asked,
    transformer_layer,
)
from helpers.learning.allowed_calls import kernel_cost

# %% [markdown]
# ## A graph of plain values
#
# Operations are in program order. `reads` and `writes` name tensors; **writing an existing tensor overwrites it**, in
# place. `elsewhere` names those of `reads` where a result needs elements other than its own (or, in an operation over
# rows, than its own row): the operands of a matmul, shifted or transposed tensors. `results` are the final outputs.
#
# | kind | |
# |---|---|
# | `elementwise` | an element's result needs the same element of its inputs |
# | `rows` | it needs the whole row: a norm, a softmax |
# | `matmul` | it computes its result tile by tile |
# | `opaque` | a library's kernel, a black box |

# %%
ROWS, COLUMNS = 4096, 8192


def written_out(name, kind, reads, writes, elsewhere=()):
    size = {"rows": ROWS, "columns": COLUMNS}
    moved = {"reads": reads, "elsewhere": list(elsewhere), "writes": writes}
    return {"name": name, "kind": kind, **size, **moved, "flops": 0}


small = {
    "tensors": dict.fromkeys(["x", "y", "s", "t", "z"], 2 * ROWS * COLUMNS),
    "operations": [
        written_out("add", "elementwise", ["x", "y"], ["s"]),
        written_out("gelu", "elementwise", ["s"], ["t"]),
        written_out("softmax", "rows", ["t"], ["z"]),
    ],
    "results": ["z"],
}
small["operations"][0]

# %% [markdown]
# ## What a kernel costs is given
#
# `kernel_cost(graph, group)`, with a list of names, counts bytes, live values, registers per thread and seconds as the
# analyser of lesson 13 does. It doesn't check whether such a kernel is possible.

# %%
rows = []
for group in (["add"], ["gelu"], ["add", "gelu"], ["add", "gelu", "softmax"]):
    cost = kernel_cost(small, group)
    moved, time = f"{cost['bytes'] / 1e6:.1f} MB", f"{cost['time'] * 1e6:.2f} us"
    rows.append((", ".join(group), moved, cost["live"], cost["registers"], time))
table(("kernel", "bytes", "live", "registers per thread", "time"), rows)

# %% [markdown]
# ## Your answers
#
# **What answers may use:** the functions' arguments, plain Python without classes, `math` and `kernel_cost`, but
# nothing else from this notebook, so that they can be graded. Each answer may call the functions from earlier answers.
#
# Each answer's checks come right after it. Run them as often as you like. They're worth 12 of the 15 points; the other
# 3 are for two hidden checks with other inputs, which only run during grading. In a failure message, `x*` means a
# tensor that's read elsewhere. Stuck? Run `hint(1)` in a new cell, then `hint(2)`: they're about the first check that
# fails.

# %% tags=["hide-input"]
hint = Hints(
    legal={
        "Look at rule [1-4]": (
            "Rules 1 to 4 are about two operations at a time. Do you check every pair in the "
            "group, in both orders?",
            "Read that rule once more, word for word, for the two operations in the message.",
        ),
        "Look at rule 5": (
            "Which tensors connect the operations of the group? Two that read the same tensor are "
            "connected as well.",
            "Start with one operation's tensors, and keep adding the tensors of operations that "
            "share one, until nothing changes. All operations must be reached.",
        ),
        "Look at rule 6": (
            "Which operations outside the group must run after one of its members and before "
            "another? There may be several in a row.",
            "Treat the group and every other operation as kernels, and look for an order that "
            "respects all dependencies. If there isn't one, something has to run between.",
            "An operation waits on a read after a write, a write after a read, and a write after a "
            "write. The last two happen in place.",
        ),
        "Look at rule 7": (
            "The group passes every other rule, but it may need too many registers.",
            "kernel_cost(graph, group)['registers'] must be at most 255.",
        ),
        "your rules refuses": (
            "You refuse a legal group. Print which of your rules refuses it.",
            "A tensor that is overwritten, or read by several, isn't a reason by itself: only the "
            "rules' own conditions are.",
        ),
        "": (
            "Take the rules one by one. Rules 1 to 4 are about two operations at a time, so check "
            "every pair in the group.",
        ),
    },
    edges=(
        "Two questions: is it legal? Is the time of one kernel below the sum of the two?",
        "is_legal(graph, [one, two]), and three calls of kernel_cost.",
    ),
    partitions={
        "leaves out|in [0-9]+ kernels|no operation of": (
            "Every operation of the graph must be in one group, and in one only. Those that stay "
            "alone are groups of one.",
        ),
        "has the kernel": (
            "The message names a group that isn't legal. When do you call is_legal?",
            "A group that isn't legal yet can become legal when you add the operations that "
            "connect it or run in between. So call is_legal once all are placed.",
        ),
        "wait for each other": (
            "Each group is legal, and yet there is no order for all of them. Draw which group "
            "waits for which.",
            "Reuse your code for rule 6 with all groups.",
        ),
        "": (
            "Call is_legal on the kernel in the message. If it returns False, that's the bug. If "
            "not, place the operations one by one, trying every existing group and a new one.",
            "Joining the best pair, or every legal one, misses partitions. A group can also "
            "become legal when you add the operations that connect it, so call is_legal once all "
            "are placed.",
        ),
    },
    layer=(
        "Fifteen operations have over a billion partitions. Which pairs can never share a kernel, "
        "whatever else is in it?",
        "Rules 1 to 4 are about pairs, so before an operation joins a group, check whether it "
        "clashes with any member.",
    ),
)
hint

# %% [markdown]
# ## May it be one kernel?
#
# A single operation always can. For a group of several, these are the rules:
#
# 1. an **opaque** operation is always a separate kernel;
# 2. all operations have the same number of rows and columns (**size**);
# 3. at most one operation is a matmul, and a group with a matmul can't contain an operation that needs whole rows,
#    because a **tile** doesn't hold a whole row;
# 4. no operation reads another's output **elsewhere**, because another block may not have computed it yet, or may have
#    overwritten it. Reading the same element is fine, in place or not. (In lesson 13 a block may also recompute such a
#    value, as a prologue for example. Here nothing is computed twice);
# 5. the group is connected (**together**): you can get from any operation to any other through tensors that two
#    operations share, whether they read or write them;
# 6. nothing outside the group has to run **between** its operations. In other words, no outside operation waits for one
#    of them while another one waits for it. An operation waits for an earlier one if it reads or overwrites a tensor
#    that the earlier one writes, or overwrites one that it reads. It also waits for everything that the earlier one
#    waits for;
# 7. a thread has at most 255 **registers**.
# <!-- given 255 registers: CUDA C++ Programming Guide, technical specifications per compute capability -->


# %% grade_id="legal-answer"
def is_legal(graph, group):
    """True or False; `group` is a list of names, in program order."""
    # About 25 lines, with a function or two of your own.
    # BEGIN SOLUTION
    if len(group) == 1:
        return True
    members = [each for each in graph["operations"] if each["name"] in group]
    # Two operations are enough to break rules 1 to 4, whatever else is in the kernel, and a search
    # can use that.
    if any(clash(one, two) for place, two in enumerate(members) for one in members[:place]):
        return False
    reached = tensors_of(members[0])
    for _ in members:
        reached |= {
            tensor for each in members if tensors_of(each) & reached for tensor in tensors_of(each)
        }
    if not all(tensors_of(each) & reached for each in members):
        return False
    # If something has to run in between, there's no order, even if all other operations are
    # separate kernels.
    alone = [[each["name"]] for each in graph["operations"] if each["name"] not in group]
    return can_run(graph, [group, *alone]) and kernel_cost(graph, group)["registers"] <= 255


def clash(one, two):
    """Return whether two operations, in program order, can never be in one kernel."""
    kinds = {one["kind"], two["kind"]}
    if "opaque" in kinds or kinds == {"matmul"} or kinds == {"matmul", "rows"}:
        return True
    if (one["rows"], one["columns"]) != (two["rows"], two["columns"]):
        return True
    made = set(one["writes"]) & set(two["elsewhere"])
    # A factor that's overwritten before all tiles have read it is as wrong as one that hasn't been
    # computed yet.
    overwritten = set(two["writes"]) & set(one["elsewhere"])
    return bool(made or overwritten)


def tensors_of(operation):
    return {*operation["reads"], *operation["writes"]}


def waits_for(later, earlier):
    """Return whether an operation directly depends on an earlier one."""
    return bool(
        set(earlier["writes"]) & tensors_of(later) or set(later["writes"]) & set(earlier["reads"])
    )


def can_run(graph, groups):
    """Return whether kernels can run one after another."""
    operations = graph["operations"]
    place = {each["name"]: number for number, each in enumerate(operations)}
    # Keep running operations whose dependencies have run. If we get stuck before all have run, they
    # wait for each other.
    done, left = set(), groups
    while left:
        ready = []
        for group in left:
            needed = {
                earlier["name"]
                for name in group
                for earlier in operations[: place[name]]
                if waits_for(operations[place[name]], earlier)
            }
            if needed <= done | set(group):
                ready.append(group)
        if not ready:
            return False
        done |= {name for group in ready for name in group}
        left = [group for group in left if group not in ready]
    return True
    # END SOLUTION


# %% [markdown]
# **Legal or not?** We ask about groups that break each rule in turn.

# %% grade_id="legal" points=4
rules = ("opaque", "size", "tiles", "elsewhere", "overwritten", "together", "between", "registers")
check_legal(
    is_legal,
    groups_asked([small, *drawn_graphs(1, *rules, "in place", "far")], seed=1),
    name="legal",
)

# %% [markdown]
# ## Is it worth it?
#
# Given two operations, with `one` before `two` in the program, fuse them if a single kernel can do both and is faster
# than two kernels.


# %% grade_id="edge-answer"
def should_fuse(graph, one, two):
    """True or False; `one` and `two` are names."""
    # About 3 lines.
    # BEGIN SOLUTION
    apart = kernel_cost(graph, [one])["time"] + kernel_cost(graph, [two])["time"]
    # A kernel over rows has as many blocks as rows. With few rows, it slows down any operations
    # fused into it.
    return is_legal(graph, [one, two]) and kernel_cost(graph, [one, two])["time"] < apart
    # END SOLUTION


# %% [markdown]
# **Pairs**: some are illegal, and others are legal but not worth fusing.

# %% grade_id="edges" points=2
check_edges(
    should_fuse,
    edges_asked([small, *drawn_graphs(2, "overwritten", "between", "pair", "pair")]),
    name="edges",
)

# %% [markdown]
# ## The whole graph
#
# A partition is a list of kernels, each of them a list of names, and every operation is in exactly one. There has to be
# an order in which the kernels can run, because two groups that are both legal may still wait for each other. Return
# the fastest of all such partitions. Repeatedly joining the best pair doesn't always find it, so try them all: each
# operation either joins an existing group or starts a new one. With six operations that's quick. The transformer layer
# has fifteen, so there you should drop a group as soon as no further operation can make it legal.


# %% grade_id="partition-answer"
def partition(graph):
    """A list of lists of names."""
    # About 20 lines.
    # BEGIN SOLUTION
    operations = graph["operations"]
    seen = {}

    def cost(group):
        """Return a kernel's seconds, computed once for all partitions; inf if it isn't legal."""
        key = tuple(group)
        if key not in seen:
            seen[key] = (
                kernel_cost(graph, group)["time"] if is_legal(graph, group) else float("inf")
            )
        return seen[key]

    def best(place, groups):
        """Return (seconds, partition): the best continuation with the operations starting at
        `place`."""
        if place == len(operations):
            names = [[each["name"] for each in group] for group in groups]
            time = sum(cost(group) for group in names)
            return (
                (time, names)
                if time < float("inf") and can_run(graph, names)
                else (float("inf"), names)
            )
        new = operations[place]
        found = [best(place + 1, [*groups, [new]])]
        for number, group in enumerate(groups):
            # If two operations clash, they clash whatever joins later. The other rules may still be
            # satisfied later.
            if not any(clash(each, new) for each in group):
                found.append(
                    best(place + 1, [*groups[:number], [*group, new], *groups[number + 1 :]])
                )
        return min(found)

    return best(0, [])[1]
    # END SOLUTION


# %% [markdown]
# **Partitions**: in some graphs, taking the best pair first doesn't lead to the best partition, and in some it's
# fastest not to fuse. In one, groups would wait for each other, and in one a group is legal only when it's complete.
# The others depend on one of the rules.

# %% grade_id="partitions" points=4
features = (
    "greedy",
    "greedy",
    "greedy",
    "apart",
    "apart",
    "cycle",
    "late",
    "overwritten",
    "registers",
)
check_partitions(partition, [small, *drawn_graphs(3, *features)], name="partitions")

# %% [markdown]
# **A transformer layer**: norm, projections, rotary embedding, attention from a library, a gated feed-forward, dropout,
# and two in-place residuals.

# %%
layer = transformer_layer(tokens=4096, width=4096)
one_by_one = [kernel_cost(layer, [each["name"]])["time"] for each in layer["operations"]]
print(f"one by one {sum(one_by_one) * 1e6:.0f} us")
rows = [
    (each["name"], each["kind"], each["columns"], " ".join(each["reads"]), " ".join(each["writes"]))
    for each in layer["operations"]
]
table(("operation", "kind", "columns", "reads", "writes"), rows)

# %% grade_id="layer" points=2
check_partitions(partition, [layer, transformer_layer(tokens=64, width=8192)], name="layer")

# %% [markdown]
# **The two hidden checks** are empty here, and run during grading.

# %% grade_id="other-groups" points=1
# Grading asks about other groups of other graphs here.
# BEGIN HIDDEN TESTS
rules = (
    "opaque",
    "size",
    "tiles",
    "elsewhere",
    "overwritten",
    "overwritten",
    "together",
    "between",
    "registers",
)
check_legal(
    is_legal,
    groups_asked(drawn_graphs(1729, *rules, "in place", "far"), seed=1729),
    name="other-groups",
)
# END HIDDEN TESTS

# %% grade_id="other-partitions" points=2
# Grading uses other graphs here.
# BEGIN HIDDEN TESTS
features = (
    "greedy",
    "greedy",
    "apart",
    "cycle",
    "late",
    "overwritten",
    "between",
    "registers",
    "together",
)
check_partitions(partition, drawn_graphs(1730, *features), name="other-partitions")
# END HIDDEN TESTS

# %% [markdown]
# On the command line, `fusion check exercises/13_decide.ipynb` grades the saved notebook.
