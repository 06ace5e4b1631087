"""CUDA C++ compiled by NVIDIA's compiler, launched on a GPU or executed on the CPU."""
