"""What measures, compiles and computes: any callable, any kernel, a GPU that need not be there."""

from helpers import room

__getattr__, __dir__ = room(
    __name__,
    {
        "devices": "DEVICES Device this_device",
        "roofline": "Roofline Work levels measured_device roofs",
        "operations": "OPERATIONS cost",
        "occupancy_calculator": "MAX_REGISTERS REGISTERS REGISTER_UNIT SUB_PARTITIONS WARP limits occupancy",
        "cuda.kernel": "CudaKernel cuda_kernel",
        "resources": "Resources compile_for inspect_kernel",
        "sass": "disassemble",
        "traffic": "Traffic measure",
        "kept": "kept_for_backward",
        "peak": "Peak peak_memory",
        "timing": "Timing benchmark benchmark_together",
        "prediction": "predict",
        "report": "bench",
        "fusion": "FusionPlan analyse",
        "recordings": "recorded recorded_page",
        "sweep": "RecordedSweep recorded_sweep",
        "ncu_pages": "CounterPair NcuCounter NcuKernel counters_beside read_ncu",
        "tables": "table",
        "traces": "KernelTimeline Opportunity TraceKernel read_trace",
    },
)
