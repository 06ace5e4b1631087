"""CUDA C++ compiled by NVIDIA's compiler, launched on a GPU or executed on the CPU (kernel.py).

The instructions of PTX that the executor covers, by what stands before the first dot; any other, and any modifier that
these do not take, is refused by name before the kernel starts.

    arithmetic       add sub mul mad fma div rem neg abs min max rcp sqrt rsqrt ex2 lg2 sin cos tanh copysign
                     in u16 s16 u32 s32 u64 s64, f16 f16x2 bf16 bf16x2 f32 f64 as the PTX ISA has them; rounding modes
                     of f32, .ftz .sat .relu .NaN .xorsign.abs
    comparison       setp set selp testp
    conversion       cvt cvta isspacep mov
    bits             and or xor not cnot shl shr shf bfe bfi prmt lop3 popc clz bfind brev sad dp4a
    control          bra brx call ret exit trap
    memory           ld ldu st atom red cp
                     global, shared, local, const and generic; vectors; cp.async with commit and wait
    barriers         bar barrier membar fence
    warp             shfl vote match redux activemask elect
    matrix           mma ldmatrix
                     mma.m16n8k8 and .m16n8k16 of f16 and bf16 with f32 sums
    hints            prefetch prefetchu nanosleep discard applypriority griddepcontrol
"""
