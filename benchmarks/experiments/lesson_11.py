"""Lesson 11: sums of gradients, and a loss that never stores all its logits. The training run is
benchmarks/training.py.

Three ways to sum a weight's gradient in RMSNorm's backward pass: their times, and whether results repeat.

Vocabulary projection and cross entropy in chunks of tokens, so that all logits never exist at once.

    loss = mean of cross_entropy(hidden @ weight.T, labels)

The gradients of hidden and weight need only the logits' gradient, softmax - one-hot. So the forward pass computes each
chunk's gradients while its logits exist, and overwrites the logits with their gradient. The backward pass only scales
the results.

Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009, for the problem; Liger
Kernel's fused linear cross entropy, arXiv:2410.10989, for gradients in the forward pass.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import nn

from helpers.instruments.timing import Timing, benchmark, benchmark_together

ROWS, COLUMNS = 32768, 4096
RUNS = 20  # of the same call, to count its different gradients
FEW = 264  # programs: two for each SM of an H200
WAYS = {  # whether the programs add to one row of sums, and the number of programs
    "atomics, a program a row": (True, ROWS),
    "atomics, few programs": (True, FEW),
    "partial sums": (False, FEW),
}


@triton.jit
def backward_kernel(
    grad_y_ptr,
    x_ptr,
    weight_ptr,
    grad_x_ptr,
    grad_weight_ptr,
    rows,
    cols,
    eps,
    ATOMIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.arange(0, BLOCK)
    inside = col < cols
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.cast(row, tl.int64) * cols + col
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        grad_y = tl.load(grad_y_ptr + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / cols + eps)
        x_hat, along = x * rstd, grad_y * weight
        grad_x = rstd * (along - x_hat * (tl.sum(along * x_hat) / cols))
        tl.store(grad_x_ptr + at, grad_x, mask=inside)
        total += grad_y * x_hat
    if ATOMIC:
        tl.atomic_add(grad_weight_ptr + col, total, mask=inside)
    else:
        tl.store(grad_weight_ptr + tl.program_id(0) * cols + col, total, mask=inside)


def backward(
    way: str, grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x, (rows, cols), and of the weight, (cols,) fp32; `way` is one of WAYS."""
    rows, cols = x.shape
    atomic, most = WAYS[way]
    programs = min(most, rows)
    grad_x = torch.empty_like(x)
    grad_weight = torch.zeros(cols, device=x.device) if atomic else torch.empty(programs, cols, device=x.device)
    arguments = (grad_y, x, weight, grad_x, grad_weight, rows, cols, 1e-6)
    backward_kernel[(programs,)](*arguments, ATOMIC=atomic, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return grad_x, grad_weight if atomic else grad_weight.sum(0)


def measure_times() -> dict[str, Timing]:
    """Return way -> GPU time of both gradients, for ROWS x COLUMNS in bf16."""
    grad_y, x = torch.randn(2, ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(COLUMNS, device="cuda", dtype=torch.bfloat16)
    return benchmark_together({way: partial(backward, way, grad_y, x, weight) for way in WAYS})


def measure_repeats(rows: int = ROWS, cols: int = COLUMNS, device: str = "cuda") -> dict[str, dict[str, float]]:
    """Return way -> for RUNS calls on the same fp32 inputs: the number of different gradients; columns that differ
    between calls; the largest spread of a column and the largest error against float64, over the largest sum."""
    torch.manual_seed(0)
    grad_y, x = torch.randn(2, rows, cols, device=device)
    weight = torch.randn(cols, device=device)
    exact = (grad_y.double() * x.double() * (x.double().square().mean(1, keepdim=True) + 1e-6).rsqrt()).sum(0)
    largest = exact.abs().max()
    found = {}
    for way in WAYS:
        sums = torch.stack([backward(way, grad_y, x, weight)[1] for _ in range(RUNS)])
        spread = sums.amax(0) - sums.amin(0)
        found[way] = {
            "different": len(sums.unique(dim=0)),
            "columns": int((spread > 0).sum()),
            "spread": (spread.max() / largest).item(),
            "error": ((sums - exact).abs().max() / largest).item(),
            "first": {run: sums[run, 0].item() for run in range(3)},
        }
    return found


TOKENS, HIDDEN, VOCABULARY = 8192, 4096, 128256  # a batch of Llama 3 8B
CHUNKS = (8192, 4096, 2048, 1024, 512, 256, 128)
MOST_LANES = 16384  # columns in registers at once


@triton.jit
def loss_kernel(x_ptr, labels_ptr, losses_ptr, rows, cols, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write each row's loss, and overwrite its logits with their gradient times `scale`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    x_ptr += row * cols
    peak = tl.full((ROWS, 1), -float("inf"), tl.float32)
    total = tl.zeros((ROWS, 1), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + col, mask=(row < rows) & (col < cols), other=-1e30).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, axis=1, keep_dims=True))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher), axis=1, keep_dims=True)
        peak = higher
    label = tl.load(labels_ptr + row, mask=row < rows, other=0)
    at_label = tl.load(x_ptr + label, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(losses_ptr + row, peak + tl.log(total) - at_label, mask=row < rows)
    tl.debug_barrier()  # the label's logit is read before another warp overwrites it
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + col, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.exp(x - peak) / total - tl.where(col == label, 1.0, 0.0)
        tl.store(x_ptr + col, gradient * scale, mask=inside)


class LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk):
        losses = torch.empty(len(hidden), device=hidden.device)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        buffer = hidden.new_empty(min(chunk, len(hidden)), len(weight))  # the only logits that ever exist
        block = min(MOST_LANES, triton.next_power_of_2(len(weight)))
        together = max(1, 2048 // block)  # short rows share a program
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = torch.mm(hidden[part], weight.T, out=buffer[: len(labels[part])])
            arguments = (logits, labels[part], losses[part], len(logits), len(weight), 1 / len(hidden))
            grid = (triton.cdiv(len(logits), together),)
            loss_kernel[grid](*arguments, ROWS=together, BLOCK=block, num_warps=max(4, block // 512))
            torch.mm(logits, weight, out=grad_hidden[part])
            grad_weight.addmm_(logits.T, hidden[part])
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.mean()

    @staticmethod
    def backward(ctx, grad_loss):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_loss, grad_weight * grad_loss, None, None


def linear_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk: int = 1024) -> torch.Tensor:
    """Return the mean loss of (tokens, hidden) against (vocabulary, hidden), `chunk` tokens at a time: fp32, scalar."""
    return LinearLoss.apply(hidden, weight, labels, chunk)


def written_out(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the same as in models: all logits, in fp32 for the loss."""
    return nn.functional.cross_entropy((hidden @ weight.T).float(), labels)


def step(loss: Callable, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradients of hidden and weight."""
    return torch.autograd.grad(loss(hidden, weight, labels), (hidden, weight))


def measure_linear_loss() -> dict[str, dict]:
    """Return version, or tokens per chunk -> "time" of the loss and its gradients; "peak", bytes beyond the inputs."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    hidden = torch.randn(TOKENS, HIDDEN, **options).requires_grad_()
    weight = (torch.randn(VOCABULARY, HIDDEN, **options) / HIDDEN**0.5).requires_grad_()
    labels = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
    versions = {"eager": written_out, "torch.compile": torch.compile(written_out, dynamic=False)}
    versions |= {chunk: partial(linear_loss, chunk=chunk) for chunk in CHUNKS}
    found = {}
    for name, loss in versions.items():
        call = partial(step, loss, hidden, weight, labels)
        call()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        found[name] = {"peak": torch.cuda.max_memory_allocated() - before, "time": benchmark(call, runs=10)}
    return found


def measure_training() -> dict[str, dict]:
    """Measure as benchmarks/training.py does."""
    from benchmarks import training  # which imports linear_loss from here

    return training.measure()


EXPERIMENTS = {
    "gradient_sums": measure_times,
    "gradient_repeats": measure_repeats,
    "linear_loss": measure_linear_loss,
    "training": measure_training,
}
