"""Compile CUDA C++ with NVIDIA's compiler, and run it on a GPU or execute its PTX on the CPU.

In:   a string of CUDA C++, a kernel's name, and at launch a grid, a block and PyTorch tensors (`cuda_kernel`).
Out:  the tensors, changed as a GPU would change them; registers, spills and SASS (`kernel.resources`);
      and for an observer of the launch (the traffic meter, the stepper): every access by every warp, races,
      out-of-bounds accesses.

A launch on the CPU passes through these modules:

    kernel         the entry: checks arguments, compiles once, launches on the GPU or on the executor   START HERE
    compile        NVRTC: CUDA C++ to PTX and to a cubin
    ptx            parses PTX into instructions, each with its line of C++
    basic_blocks   groups instructions into runs between jumps, labels and barriers
    decode         turns each instruction into a step: a function that runs it for many threads at once
    executor       runs the steps: threads are rows of NumPy arrays, whose groups diverge and reconverge

Steps are computed by:

    operation                     the common interface: a function of NumPy arrays with its PTX types
    arithmetic, floats, integers  results rounded as a GPU rounds them
    matrix, warp                  mma and ldmatrix; shuffles, votes, matches, reductions
    access, spaces, memory        loads, stores and atomics; checked addresses; tensors, shared and local memory
    copies                        cp.async, complete once a thread waits for it
    printing                      printf
    barriers, mbarriers           threads waiting for their block, or at a barrier in shared memory
    sanitizer                     races and reads of uninitialised shared memory

`gpu` launches on a real GPU instead; `observers` is where the meter registers, so that neither imports the other.
`kernel` lists the differences from a GPU. To add an instruction, start at the table in `decode` and run `pytest
tests/cuda/test_cuda_coverage.py`.

These parts of CUDA C++ run without a GPU:

    arguments        tensors, numbers within the range of their type, lists of tensors for arrays of pointers, structs
                     without pointers (ctypes.Structure, NumPy's structured scalars, bytes)
    library          printf and assert; <cmath>'s functions in float and double; CUB's block and warp primitives, in a
                     source without #define; atomics, cuda::atomic_ref
    copies           __pipeline_memcpy_async, cuda::memcpy_async, cuda::pipeline, cooperative groups' memcpy_async
    barriers         cooperative groups up to the grid, with grid.sync(); cuda::barrier of a block
    tensor cores     wmma fragments of <mma.h>, mma.sync

malloc, clocks, clusters, TMA's bulk copies, wgmma, textures and Thrust raise a one-line error
that names an alternative.

The executor supports these PTX instructions, by the name before the first dot. Any other instruction, and any
unsupported modifier, is rejected by name before the kernel starts.

    arithmetic       add sub mul mad fma div rem neg abs min max rcp sqrt rsqrt ex2 lg2 sin cos tanh copysign
                     in u16 s16 u32 s32 u64 s64, f16 f16x2 bf16 bf16x2 f32 f64 as in the PTX ISA; rounding modes
                     of f32 and f64, .ftz .sat .relu .NaN .xorsign.abs
    comparison       setp set selp testp
    conversion       cvt cvta isspacep mov
    bits             and or xor not cnot shl shr shf bfe bfi bmsk prmt lop3 popc clz bfind brev sad dp4a addc subc madc
    control          bra brx call ret exit trap
                     calls of __device__ functions, printf and assert
    memory           ld ldu st atom red cp
                     global, shared, local, const and generic; vectors; cp.async with commit and wait, whose bytes
                     arrive when the thread waits for them
    barriers         bar barrier membar fence mbarrier
                     cuda::barrier and grid.sync() of cooperative groups; no clusters
    warp             shfl vote match redux activemask elect
    matrix           mma ldmatrix wmma
                     mma.m16n8k8 and .m16n8k16 of f16 and bf16 with f32 sums; wmma of f16, bf16, tf32 and 8-bit
                     integers
    hints            prefetch prefetchu nanosleep discard applypriority griddepcontrol
"""
