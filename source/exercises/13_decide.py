# %% [markdown]
# # Exercise 13: decide what to fuse [15 points]
#
# You write three functions: may these operations be one kernel, is it worth it for two of them, and which partition of
# a whole graph into kernels is fastest? The last is judged against an exhaustive search. About 75 minutes. Lesson 13
# has all you need.
#
# **The formulas**, for a group of operations in one kernel on an H200:
#
# $$\text{bytes} = \text{what others made, read once} + \text{what others need, written once}$$
#
# $$\text{time} = \text{start} + \max\Big(\frac{\text{bytes}}{\text{share} \times \text{bandwidth}},\
# \frac{\text{FLOP}}{\text{matrix rate}}\Big)$$
#
# $$\text{share} = \min\Big(1, \frac{\text{rows}}{\text{multiprocessors}}\Big) \text{ if it needs whole rows, else } 1$$
#
# **The picture**, one graph in two partitions; what crosses a kernel's edge is written and read:
#
# ```text
#      x   y                       x   y
#      |   |                       |   |
#    +-v---v-+                   +-v---v-+
#    |  add  |                   |  add  |
#    +---+---+                   |   |   |
#        | s: written, read      |   | s |  in registers
#    +---v---+                   |   v   |
#    | gelu  |                   | gelu  |
#    +---+---+                   +---+---+
#        v                           v
#    two kernels                 one kernel
# ```

# %%
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
# | `matmul` | a product, tile by tile |
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
# analyser of lesson 13 does. It does not check whether such a kernel is possible.

# %%
rows = []
for group in (["add"], ["gelu"], ["add", "gelu"], ["add", "gelu", "softmax"]):
    cost = kernel_cost(small, group)
    moved, time = f"{cost['bytes'] / 1e6:.1f} MB", f"{cost['time'] * 1e6:.2f} us"
    rows.append((", ".join(group), moved, cost["live"], cost["registers"], time))
table(("kernel", "bytes", "live", "registers per thread", "time"), rows)

# %% [markdown]
# In your answers use the functions' arguments, plain Python, `math` and `kernel_cost`, and nothing else of this
# notebook: then they can be graded. Each answer may call the functions of those before it.
#
# ## May it be one kernel?
#
# One operation alone always may. With several:
#
# 1. an **opaque** operation is a kernel of its own;
# 2. all go over as many rows and columns (**size**);
# 3. at most one is a product, and with a product none needs whole rows: a **tile** holds no whole row;
# 4. no operation reads another's output **elsewhere**: another block may not have made it yet, or may
#    have overwritten it already. Element by element, in place or not, is fine. (Lesson 13 also lets a block make such a
#    value anew for itself, a prologue or a recomputation; here nothing is made twice);
# 5. they hang **together**: from each one gets to each other by tensors that two of them read or write, whichever;
# 6. nothing outside has to run **between**: no operation of another kernel waits for one of them while another of them
#    waits for it. An operation waits for an earlier one if it reads or overwrites what that one writes, or overwrites
#    what that one reads; and for all that this one waits for;
# 7. a thread has at most 255 **registers**.
# <!-- given 255 registers: CUDA C++ Programming Guide, technical specifications per compute capability -->


# %% grade_id="legal-answer"
def is_legal(graph, group):
    """True or False; `group` is a list of names."""
    # About 25 lines, with a function or two of your own.
    # BEGIN SOLUTION
    if len(group) == 1:
        return True
    members = [each for each in graph["operations"] if each["name"] in group]
    # Rules 1 to 4 are broken by two operations, whatever else is in the kernel: a search can use
    # that.
    if any(clash(one, two) for place, two in enumerate(members) for one in members[:place]):
        return False
    reached = tensors_of(members[0])
    for _ in members:
        reached |= {
            tensor for each in members if tensors_of(each) & reached for tensor in tensors_of(each)
        }
    if not all(tensors_of(each) & reached for each in members):
        return False
    # With something between them there is no order, even if all the rest are kernels of their own.
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
    # A factor that is overwritten before all tiles have read it is as wrong as one that is not yet
    # made.
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
    # Run whatever waits for nothing that has not run. If that ends before all have, they wait for
    # each other.
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
# ## Is it worth it?
#
# Of two operations, `one` before `two` in the program: fuse them if one kernel may do both, and takes less time than
# the two.


# %% grade_id="edge-answer"
def should_fuse(graph, one, two):
    """True or False; `one` and `two` are names."""
    # About 3 lines.
    # BEGIN SOLUTION
    apart = kernel_cost(graph, [one])["time"] + kernel_cost(graph, [two])["time"]
    # A kernel over rows has as many blocks as rows: with few of them, operations fused into it slow
    # down to its pace.
    return is_legal(graph, [one, two]) and kernel_cost(graph, [one, two])["time"] < apart
    # END SOLUTION


# %% [markdown]
# ## The whole graph
#
# A partition is a list of kernels, each a list of names; every operation is in one of them. All kernels together must
# be able to run in some order: two groups, each of them legal, may wait for each other. Among all such partitions
# return a fastest one. Joining the best pair again and again does not always find it, so try them all: each operation
# joins a group that is there, or begins one. With six operations that is quick. The transformer's layer has fifteen:
# there, do not go on with a group that no further operation can make legal.


# %% grade_id="partition-answer"
def partition(graph):
    """A list of lists of names."""
    # About 20 lines.
    # BEGIN SOLUTION
    operations = graph["operations"]
    seen = {}

    def cost(group):
        """Seconds of a kernel that many partitions have, worked out once; inf if there is none."""
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
            # What clashes with one of a group clashes whatever comes later. The other rules may yet
            # be met.
            if not any(clash(each, new) for each in group):
                found.append(
                    best(place + 1, [*groups[:number], [*group, new], *groups[number + 1 :]])
                )
        return min(found)

    return best(0, [])[1]
    # END SOLUTION


# %% [markdown]
# ## Checks
#
# Run them in order, as often as you like. Stuck? Run `hint(1)` in a cell of your own, then `hint(2)`: they are about
# the first check that has not passed. In a failure `x*` is a tensor that is read elsewhere.

# %% tags=["hide-input"]
hint = Hints(
    legal=(
        "Take the rules one by one: 1 to 4 are about two operations at a time, so ask each pair "
        "of the group.",
        "Rule 5: begin with one operation's tensors, and take in the tensors of all that touch "
        "them, until nothing is new. Rule 6: put the group and every other operation, alone, "
        "into an order in which each comes after its dependencies. If there is none, something "
        "has to run between.",
        "Who waits: a read after a write, a write after a read, a write after a write. The last "
        "two are in place.",
    ),
    edges=(
        "Two questions: is it legal? Is the time of one kernel below the sum of the two?",
        "is_legal(graph, [one, two]), and three calls of kernel_cost.",
    ),
    partitions=(
        "Place the operations one by one, each in every group that is there and in a new one; "
        "when all are placed, add up the times.",
        "A group that is not legal yet may become so: by adding the operations that connect it, "
        "or those in between. Ask is_legal when all are placed.",
        "Two legal groups may wait for each other: use what you wrote for rule 6, with all groups.",
    ),
    layer=(
        "Fifteen operations have over a billion partitions. Which two can never be in one kernel, "
        "whatever else is?",
        "Rules 1 to 4 are about pairs: before an operation joins a group, ask whether it clashes "
        "with one of it.",
    ),
)
hint

# %% [markdown]
# **Legal or not**: groups of graphs that break each rule in turn.

# %% grade_id="legal" points=4
rules = ("opaque", "size", "tiles", "elsewhere", "overwritten", "together", "between", "registers")
check_legal(
    is_legal,
    groups_asked([small, *drawn_graphs(1, *rules, "in place", "far")], seed=1),
    name="legal",
)

# %% [markdown]
# **Pairs**: some are illegal, and some that are legal are not worth it.

# %% grade_id="edges" points=2
check_edges(
    should_fuse,
    edges_asked([small, *drawn_graphs(2, "overwritten", "between", "pair", "pair")]),
    name="edges",
)

# %% [markdown]
# **Partitions**: some where the best pair first is not the best in the end, some where not fusing wins, one in which
# groups would wait for each other, one with a group that is legal only when it is whole, and some that turn on a rule.

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
# **A transformer's layer**: norm, projections, rotary embedding, a library's attention, a gated feed-forward, dropout,
# and two residuals in place.

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

# %% grade_id="other-groups" points=1
# Other groups of other graphs are asked here when the exercise is graded.
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
