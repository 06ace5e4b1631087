"""What is said of attention's speed-ups, under conditions as near to the claims' own as can be had."""

from collections.abc import Callable

import torch
import torch._inductor.config as inductor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from helpers.instruments.timing import Timing, benchmark_together
from kernels.tiled.flash_attention import flash_attention

BATCH, HEADS, DIM = 8, 12, 64  # flash-attention's README, "Speedup and Memory Savings": similar to BERT-base
TRAINING_TOKENS = (128, 256, 512, 1024, 2048, 4096)
TOKENS = (512, 1024, 2048, 4096)
COMPILED = (512, 2048)
LENGTHS = tuple(2**power for power in range(7, 18))
LONG_HEADS, LONG_DIM = 16, 128


def three_operations(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Product, softmax, product; q comes scaled."""
    return torch.softmax(q @ k.mT, dim=-1) @ v


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same with the scaling, as one writes it."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal, as one writes it."""
    unseen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5).masked_fill(unseen, -torch.inf), dim=-1) @ v


def flash2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """PyTorch's FlashAttention-2."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def _inputs(tokens: int, training: bool = False) -> list[torch.Tensor]:
    shape = BATCH, HEADS, tokens, DIM
    return [torch.randn(shape, dtype=torch.float16, device="cuda", requires_grad=training) for _ in range(3)]


def measure_three() -> dict[int, dict[str, Timing]]:
    """Tokens -> how -> time of the forward pass, q scaled beforehand."""
    found = {}
    for tokens in TOKENS:
        q, k, v = _inputs(tokens)
        ways = {
            "three operations": lambda q=q, k=k, v=v: three_operations(q, k, v),
            "fused": lambda q=q, k=k, v=v: flash_attention(q, k, v, False, 1.0),
        }
        with torch.no_grad():
            found[tokens] = benchmark_together(ways, runs=20)
    return found


def measure_compiled() -> dict[int, dict[str, Timing]]:
    """Tokens -> how -> time of the forward pass written out, full and causal, eager and compiled; "patterns" are what
    torch.compile exchanges for scaled_dot_product_attention."""
    found = {}
    for tokens in COMPILED:
        inputs = _inputs(tokens)
        ways: dict[str, Callable] = {}
        for name, function in (("full", written_out), ("causal", masked)):
            ways[name] = lambda function=function, inputs=inputs: function(*inputs)
            for label, patterns in (("compiled", True), ("compiled, no patterns", False)):
                torch._dynamo.reset()
                with inductor.patch(pattern_matcher=patterns, force_disable_caches=True), torch.no_grad():
                    compiled = torch.compile(function, dynamic=False)
                    compiled(*inputs)
                graph = torch.cuda.CUDAGraph()  # kept as it was compiled, whatever the settings are later
                with torch.no_grad(), torch.cuda.graph(graph):
                    compiled(*inputs)
                ways[f"{name}, {label}"] = graph.replay
        with torch.no_grad():
            found[tokens] = benchmark_together(ways, runs=20, graphs=False)
    return found


def measure_training() -> dict[int, dict[str, Timing]]:
    """Tokens -> how -> time of forward and backward pass together."""
    found = {}
    for tokens in TRAINING_TOKENS:
        inputs = _inputs(tokens, training=True)
        grad = torch.randn_like(inputs[0])

        def both(function, inputs=inputs, grad=grad):
            return lambda: torch.autograd.grad(function(*inputs), inputs, grad)

        ways = {
            "full, eager": both(written_out),
            "full, FlashAttention-2": both(flash2),
            "full, ours": both(lambda q, k, v: flash_attention(q, k, v)),
            "causal, eager": both(masked),
            "causal, FlashAttention-2": both(lambda q, k, v: flash2(q, k, v, True)),
            "causal, ours": both(lambda q, k, v: flash_attention(q, k, v, True)),
        }
        found[tokens] = benchmark_together(ways, runs=15, graphs=False)
    return found


def measure_lengths() -> dict[int, dict[str, Timing | int]]:
    """Tokens -> "eager", "fused": time of 16 heads of 128 in bf16; "... memory": bytes allocated beyond the inputs.

    What does not fit in memory is left out.
    """
    found = {}
    for tokens in LENGTHS:
        shape = 1, LONG_HEADS, tokens, LONG_DIM
        q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        found[tokens] = {}
        for name, function in (("eager", written_out), ("fused", flash_attention)):
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            try:
                with torch.no_grad():
                    function(q, k, v)
                    used = torch.cuda.max_memory_allocated() - before
                    time = benchmark_together({name: lambda f=function, q=q, k=k, v=v: f(q, k, v)}, runs=7)[name]
            except torch.cuda.OutOfMemoryError:
                continue
            found[tokens] |= {name: time, f"{name} memory": used}
    torch.cuda.empty_cache()
    return found
