"""How fast CUDA C++ is executed without a GPU, on one core: thread-instructions a second, and seconds a launch.

    python benchmarks/cuda_executor.py

Each kernel is launched plainly and under the meter; the best of three. The last column is how much work fits into the
two seconds that a lesson's cell should take at most, metered.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cuda")]

from programs import ADD_GELU, LAYER_NORM, MATMUL, SOFTMAX  # noqa: E402

from helpers.instruments import cuda_kernel, measure  # noqa: E402
from helpers.instruments.cuda import observers  # noqa: E402

HEADERS = "#include <cuda_bf16.h>\n"
ATTEMPTS = 3


def cases():
    """(name, elements of work, kernel, grid, block, arguments)"""
    n = 1 << 18
    yield "add_gelu, float4", n, cuda_kernel(ADD_GELU, "add_gelu")[n // 1024, 256], (*torch.randn(3, n), n)
    x = torch.randn(256, 4096)
    yield "softmax, a row a block", x.numel(), cuda_kernel(SOFTMAX, "softmax")[256, 256], (x, x.clone(), 4096)
    x = torch.randn(256, 4096).bfloat16()
    norm = cuda_kernel(HEADERS + LAYER_NORM, "layer_norm")[256, 256]
    yield "layer_norm, bf16", x.numel(), norm, (x, torch.ones(4096), x.clone(), 4096)
    a, b, c = torch.randn(3, 128, 128)
    matmul = cuda_kernel(MATMUL, "matmul")[(8, 8), (16, 16)]
    yield "matmul 128^3, 16 x 16 tiles", 128**3, matmul, (a, b, c, 128)


def best(call) -> float:
    times = []
    for _ in range(ATTEMPTS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    head = ("kernel", "instructions", "s", "M/s", "metered s", "M/s", "elements in 2 s, metered")
    print("{:<30}{:>14}{:>8}{:>8}{:>11}{:>8}{:>26}".format(*head))
    for name, elements, launch, arguments in cases():
        before = observers.total_executed()
        launch(*arguments)
        executed = observers.total_executed() - before
        plain = best(lambda launch=launch, arguments=arguments: launch(*arguments))
        metered = best(lambda launch=launch, arguments=arguments: measure(launch, *arguments))
        print(
            f"{name:<30}{executed:>14,}{plain:>8.3f}{executed / plain / 1e6:>8.0f}{metered:>11.3f}"
            f"{executed / metered / 1e6:>8.0f}{2 / metered * elements:>26,.0f}"
        )


if __name__ == "__main__":
    main()
