"""Peak memory of attention and its gradients: fused, and as written out in PyTorch.

python benchmarks/attention_memory.py      on a GPU

On an H200, causal, 16 heads of 128, 16384 tokens: 68 MB beyond the inputs, where the unfused takes 26 GB; in training
0.34 GB and 35 GB.
"""

from collections.abc import Callable

import torch

from kernels.tiled.flash_attention import flash_attention, flash_attention_reference

HEADS, DIM = 16, 128
TOKENS = (1024, 2048, 4096, 8192, 16384)


def peak(function: Callable, tokens: int, training: bool) -> int:
    """Bytes that one causal call allocates beyond its inputs, at most at once; in training with its gradients.

    Raises:
        RuntimeError: there is no GPU.
    """
    q, k, v = (torch.randn(1, HEADS, tokens, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    leaves = [x.requires_grad_(training) for x in (q, k, v)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = function(*leaves, True)
    if training:
        torch.autograd.grad(out, leaves, torch.ones_like(out))
    return torch.cuda.max_memory_allocated() - before


def measure() -> dict[int, dict[str, int]]:
    """tokens -> "fused", "eager", "fused training", "eager training" -> bytes."""
    functions = {"fused": flash_attention, "eager": flash_attention_reference}
    return {
        tokens: {
            name + suffix: peak(function, tokens, bool(suffix))
            for suffix in ("", " training")
            for name, function in functions.items()
        }
        for tokens in TOKENS
    }


if __name__ == "__main__":
    for tokens, bytes_by_name in measure().items():
        print(tokens, ", ".join(f"{name} {value / 2**20:.0f} MiB" for name, value in bytes_by_name.items()))
