import contextlib

import pytest
import torch

from kernels import arguments, launch_cache, variant
from kernels.interpreter import runtime


@pytest.fixture(autouse=True)
def tritons_own_assembler(monkeypatch):
    """torch.compile gives Triton PyTorch's assembler for the rest of the process, which spills where Triton's does not:
    what a test says of registers must not depend on the tests before it."""
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)


@pytest.fixture(autouse=True)
def tier(request):
    """The kernels that a test's parameter `tier` (indirect=True) asks for, or `pytest --tier`: see pytest_addoption."""
    name = getattr(request, "param", None) or request.config.getoption("tier")
    with variant(name) if name else contextlib.nullcontext():
        yield name


@pytest.fixture(autouse=True)
def a_small_gpu(monkeypatch):
    """Where kernels are interpreted, two multiprocessors: programs walk over several rows, and rows are few or many,
    at sizes that an interpreter takes in its stride."""
    monkeypatch.setattr(arguments, "MULTIPROCESSORS", 2)


@pytest.fixture(autouse=True)
def memory_for_other_workers():
    """A test gives its gigabytes back: what PyTorch keeps in its cache, no other worker of this GPU can have."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**30:
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def no_plans():
    """A test that changes a kernel's settings finds no plan made before, and leaves none."""
    launch_cache.clear_plans()
    yield
    launch_cache.clear_plans()


@pytest.fixture
def device() -> str:
    """Where kernels run here: compiled on the GPU, or interpreted on the CPU."""
    return "cuda" if runtime.has_gpu() else "cpu"


@pytest.fixture
def poisoned(monkeypatch):
    """Fresh floating-point memory holds NaN, so that an element never written cannot pass for a right one."""

    def poison(allocate):
        def allocate_poisoned(*args, **options):
            tensor = allocate(*args, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return allocate_poisoned

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))
