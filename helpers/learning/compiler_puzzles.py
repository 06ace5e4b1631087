"""The puzzles of lesson 16: a function without graph breaks, a pattern that matches, and a score_mod for
FlexAttention."""

import warnings
from collections.abc import Callable

import torch

from helpers.learning.display_text import Unquoted


def graph_puzzle(function: Callable, *inputs: torch.Tensor, wanted: Callable) -> Unquoted:
    """Trace a function with Dynamo and report whether it compiles to one graph and gives the same results as `wanted`.

    Returns:
        Text that begins with "Solved" or "Not yet".
    """
    torch._dynamo.reset()
    explained = torch._dynamo.explain(function)(*inputs)
    # Include other signs and smaller values: a single branch would be right for the given ones.
    for tried in (inputs, [-each for each in inputs], [0.1 * each for each in inputs]):
        if not torch.allclose(function(*tried), wanted(*tried), rtol=1e-5, atol=1e-6):
            return Unquoted("Not yet: it computes something else")
    graphs, breaks = explained.graph_count, explained.graph_break_count
    if breaks:
        return Unquoted(f"Not yet: right values, but {graphs} graphs: {breaks} graph break")
    return Unquoted("Solved: right values, one graph")


def pattern_puzzle(search: Callable, replacement: Callable, model: Callable, *inputs: torch.Tensor) -> Unquoted:
    """Replace a pattern in a traced model and report whether it matched and left the values unchanged.

    Args:
        search: a function of example tensors; its traced operators are the pattern.
        replacement: a function of the same tensors.
        model: traced on the inputs; its values must stay the same.
        inputs: also the example tensors of the pattern.

    Returns:
        Text that begins with "Solved" or "Not yet", followed by the remaining operators.
    """
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement
    from torch.fx.experimental.proxy_tensor import make_fx

    pattern_pass = PatternMatcherPass()
    with torch.no_grad():
        register_replacement(search, replacement, list(inputs), fwd_only, pattern_pass)
        # Trace to Inductor's operators, as fwd_only traces the pattern.
        graph = make_fx(model, select_decomp_table(), tracing_mode="fake")(*inputs)
        matches = pattern_pass.apply(graph.graph)
        graph.recompile()
        same = torch.allclose(graph(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    names = [str(node.target).removeprefix("aten.") for node in graph.graph.nodes if node.op == "call_function"]
    left = f"{len(names)} operators are left: {', '.join(names)}"
    if not matches:
        return Unquoted(f"Not yet: the pattern matches nowhere; {left}")
    if not same:
        return Unquoted(f"Not yet: it matches, but the values change; {left}")
    return Unquoted(f"Solved: {matches} match, the same values; {left}")


def score_puzzle(score_mod: Callable, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, wanted) -> Unquoted:
    """Run FlexAttention with a score_mod and compare it with attention that materialises all scores.

    Args:
        score_mod: a function of (score, batch, head, query, key), as FlexAttention calls it.
        q, k, v: (batch, heads, tokens, dim).
        wanted: scores (batch, heads, queries, keys) -> the modified scores.

    Returns:
        Text that begins with "Solved" or "Not yet".
    """
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that it stores all scores when it isn't compiled; that's fine here
        got = flex_attention(q, k, v, score_mod=score_mod)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        right = torch.softmax(wanted(scores), -1) @ v
    wrong = ~torch.isclose(got, right, rtol=1e-4, atol=1e-5)
    if wrong.any():
        rows = wrong.any(-1)[0, 0].nonzero().flatten().tolist()
        return Unquoted(f"Not yet: {len(rows)} of {q.shape[2]} queries are wrong; the first is query {rows[0]}")
    return Unquoted(f"Solved: right for all {q.shape[2]} queries")
