// gelu_tanh(x W^T + bias) in fp16: CUTLASS's GEMM for Hopper with an epilogue visitor tree, compiled once per tile.
//
//     x (tokens, inner), W (out, inner), bias (out), y (tokens, out); all row-major
//
// TILE_M, TILE_N, SCHEDULE (Pingpong or Cooperative) and CLUSTER_M are given to nvcc. The loop over K is CUTLASS's own.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

using namespace cute;
using Half = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;  // W^T, read from a row-major W

#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
using MainSchedule = JOINED(cutlass::gemm::KernelTmaWarpSpecialized, SCHEDULE);
#ifdef EPILOGUE_COOPERATIVE
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecializedCooperative;
#else
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized;
#endif

using TileShape = Shape<Int<TILE_M>, Int<TILE_N>, _64>;
using Cluster = Shape<Int<CLUSTER_M>, _1, _1>;
constexpr auto ROUND = cutlass::FloatRoundStyle::round_to_nearest;

// The tree, from the root down: gelu(add(bias per column, accumulator)).
using Accumulator = cutlass::epilogue::fusion::Sm90AccFetch;
using Bias = cutlass::epilogue::fusion::Sm90RowBroadcast<0, TileShape, Half, float>;
using Sum = cutlass::epilogue::fusion::Sm90EVT<
    cutlass::epilogue::fusion::Sm90Compute<cutlass::plus, float, float, ROUND>, Bias, Accumulator>;
using Tree = cutlass::epilogue::fusion::Sm90EVT<
    cutlass::epilogue::fusion::Sm90Compute<cutlass::epilogue::thread::GELU_taylor, Half, float, ROUND>, Sum>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, 8, Half, Row, 8, EpilogueSchedule,
    Tree>::CollectiveOp;
using MainLoop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, Row, 8, Half, Column, 8, float, TileShape, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    MainSchedule>::CollectiveOp;
using GemmKernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, MainLoop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;

// Returns 0, or CUTLASS's status: 1 to 8. `workspace` is null to ask for its size, which is returned in `bytes`.
extern "C" int linear_gelu(const void* x, const void* weight, const void* bias, void* y, int tokens, int inner, int out,
                           int sms, void* workspace, size_t* bytes, cudaStream_t stream) {
    using StrideA = typename GemmKernel::StrideA;
    using StrideB = typename GemmKernel::StrideB;
    using StrideC = typename GemmKernel::StrideC;
    using StrideD = typename GemmKernel::StrideD;
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {tokens, out, inner, 1},
        {static_cast<const Half*>(x), cutlass::make_cute_packed_stride(StrideA{}, make_shape(tokens, inner, 1)),
         static_cast<const Half*>(weight), cutlass::make_cute_packed_stride(StrideB{}, make_shape(out, inner, 1))},
        {{{{static_cast<const Half*>(bias)}, {}, {}}, {}},  // the tree's arguments: children first, then the node
         nullptr, StrideC{}, static_cast<Half*>(y),
         cutlass::make_cute_packed_stride(StrideD{}, make_shape(tokens, out, 1))}};
    arguments.hw_info.sm_count = sms;
    if (workspace == nullptr) {
        *bytes = Gemm::get_workspace_size(arguments);
        return static_cast<int>(Gemm::can_implement(arguments));
    }
    Gemm gemm;
    if (auto status = gemm.initialize(arguments, workspace, stream); status != cutlass::Status::kSuccess) {
        return static_cast<int>(status);
    }
    return static_cast<int>(gemm.run(stream));
}
