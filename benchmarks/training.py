"""Train a small transformer twice from the same weights on the same tokens: unfused in PyTorch, and fused.

    python -m benchmarks.training                a minute of fused training, and as many steps unfused
    python -m benchmarks.training --seconds 5
    python -m benchmarks.training --record       a minute, and its losses to benchmarks/results/cpu.json

Without a GPU the fused one runs in Triton's interpreter: same arithmetic, no speedup.

The tokens are random: each is one of BRANCHES successors of the token before the last. So a model has to look back one
token, and no model's mean loss can be below log(BRANCHES).
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmarks.experiments.lesson_11 import linear_loss, written_out
from benchmarks.provenance import RESULTS, date_and_versions
from helpers.instruments.devices import this_device
from helpers.instruments.timing import benchmark
from kernels import flash_attention, rms_norm, swiglu
from kernels.interpreter import runtime

BRANCHES = 2


def norm_written_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def attention_written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    tokens = q.shape[-2]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
    return torch.softmax(scores, -1) @ v


@dataclass(frozen=True)
class Parts:
    """The parts that differ between the two versions."""

    norm: Callable  # (x, weight)
    attention: Callable  # causal, of q, k, v: (batch, heads, tokens, dim)
    gate: Callable  # silu(gate) * up
    loss: Callable  # (hidden, weight, labels)


UNFUSED = Parts(norm_written_out, attention_written_out, lambda gate, up: nn.functional.silu(gate) * up, written_out)
FUSED = Parts(rms_norm, partial(flash_attention, causal=True), swiglu, linear_loss)


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    tokens: int
    rate: float  # learning rate


SMALL = Sizes(layers=2, width=32, heads=1, vocabulary=32, batch=5, tokens=32, rate=1e-2)
LARGE = Sizes(layers=6, width=1024, heads=16, vocabulary=32768, batch=8, tokens=1024, rate=3e-4)
STEPS = 60  # of LARGE


class Block(nn.Module):
    def __init__(self, sizes: Sizes, parts: Parts):
        super().__init__()
        width, self.heads, self.parts = sizes.width, sizes.heads, parts
        self.before_attention, self.before_gate = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        each = (batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.parts.norm(x, self.before_attention)).view(each).permute(2, 0, 3, 1, 4)
        seen = self.parts.attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(seen)
        h = self.parts.norm(x, self.before_gate)
        return x + self.down(self.parts.gate(self.gate(h), self.up(h)))


class Transformer(nn.Module):
    """Maps (batch, tokens + 1) token numbers to the mean loss of predicting each from the previous ones."""

    def __init__(self, sizes: Sizes, parts: Parts):
        super().__init__()
        self.parts = parts
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.place = nn.Parameter(torch.randn(sizes.tokens, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes, parts) for _ in range(sizes.layers))
        self.last = nn.Parameter(torch.ones(sizes.width))
        self.head = nn.Parameter(torch.randn(sizes.vocabulary, sizes.width) / sizes.width**0.5)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embedding(text[:, :-1]) + self.place
        for block in self.blocks:
            x = block(x)
        hidden = self.parts.norm(x, self.last).flatten(0, 1)
        return self.parts.loss(hidden, self.head, text[:, 1:].flatten())


def batches(sizes: Sizes, device: str) -> Iterator[torch.Tensor]:
    """Yield (batch, tokens + 1) token numbers forever, the same in every call on every machine."""
    draw = torch.Generator().manual_seed(0)
    successors = torch.randint(sizes.vocabulary, (sizes.vocabulary, BRANCHES), generator=draw)
    while True:
        text = torch.randint(sizes.vocabulary, (sizes.batch, sizes.tokens + 1), generator=draw)
        branch = torch.randint(BRANCHES, text.shape, generator=draw)
        for place in range(2, sizes.tokens + 1):
            text[:, place] = successors[text[:, place - 2], branch[:, place]]
        yield text.to(device)


def prepared(parts: Parts, sizes: Sizes, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Transformer:
    """Return the model with the same random weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Transformer(sizes, parts).to(device=device, dtype=dtype)


def train(model: Transformer, sizes: Sizes, steps: int, device: str = "cpu", seconds: float = math.inf) -> list[float]:
    """Train for `steps` steps or `seconds` of CPU time, whichever ends first; return each step's loss."""
    adam, losses, start = torch.optim.AdamW(model.parameters(), lr=sizes.rate), [], time.process_time()
    for _, text in zip(range(steps), batches(sizes, device), strict=False):
        loss = model(text)
        loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.detach())
        if time.process_time() - start > seconds:
            break
    return [loss.item() for loss in losses]


def measure() -> dict[str, dict]:
    """Return version -> for LARGE in bf16: "losses" of STEPS steps; "again", how many differ in a second run; "step",
    GPU time of a forward and a backward pass; "peak", bytes of such a step beyond weights and text."""
    found, text = {}, next(batches(LARGE, "cuda"))
    versions = {"unfused": UNFUSED, "torch.compile": UNFUSED, "fused": FUSED}
    for name, parts in versions.items():
        runs = []
        for _ in range(1 if name == "torch.compile" else 2):
            model = prepared(parts, LARGE, "cuda", torch.bfloat16)
            trained = torch.compile(model, dynamic=False) if name == "torch.compile" else model
            runs.append(train(trained, LARGE, STEPS, "cuda"))
        model.zero_grad(set_to_none=True)
        step = partial(gradients, trained, text)
        step()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        found[name] = {
            "losses": dict(enumerate(runs[0])),
            "again": sum(first != second for first, second in zip(*runs, strict=True)) if len(runs) > 1 else 0,
            "peak": torch.cuda.max_memory_allocated() - before,
            "step": benchmark(step, runs=10),
        }
        del model, trained, step
        torch.cuda.empty_cache()
    return found


def gradients(model: nn.Module, text: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(model(text), tuple(model.parameters()))


def measure_here(seconds: float) -> dict[str, dict[int, float]]:
    """Return version -> step -> loss, for as many fused steps of SMALL as fit in `seconds`, and as many unfused."""
    device = "cuda" if runtime.has_gpu() else "cpu"
    fused = train(prepared(FUSED, SMALL, device), SMALL, 10**9, device, seconds)
    unfused = train(prepared(UNFUSED, SMALL, device), SMALL, len(fused), device)
    return {"unfused": dict(enumerate(unfused)), "fused": dict(enumerate(fused))}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer, unfused and fused.")
    parser.add_argument("--seconds", type=float, default=60, help="of the fused one")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more threads would cost more than they gain for such small tensors
    losses = measure_here(options.seconds)
    unfused, fused = losses.values()
    for step in range(0, len(fused), max(1, len(fused) // 10)):
        print(f"step {step:4}: unfused {unfused[step]:.7f}, fused {fused[step]:.7f}")
    apart = max(abs(unfused[step] - fused[step]) for step in fused)
    print(f"{len(fused)} steps; the largest difference of a loss: {apart:.1e}")
    if options.record:
        run = {**date_and_versions(), "ceilings": {}}
        found = {"training": {"run": 0, "times": losses}}
        where = this_device().name.replace(", 1 thread", ", one thread")
        content = {"gpu": where, "runs": [run], "experiments": found, "rows": []}
        (RESULTS / "cpu.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
