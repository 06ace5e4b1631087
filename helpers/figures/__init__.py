"""The pictures and live charts of the lessons, one file a figure: its model, its chart, its explorer."""

from helpers import room

__getattr__, __dir__ = room(
    __name__,
    {
        "banks": "banks_explorer",
        "attention_lengths": "lengths_explorer",
        "attention_tiles": "tiles_explorer",
        "attention_units": "units_explorer",
        "blocks": "blocks_chart",
        "checkpointing": "checkpointing_explorer layer_ways",
        "dropout_mask": "Draw mask_chart",
        "kernel_timeline": "kernel_timeline_chart kernel_timeline_explorer",
        "lanes": "lanes_chart",
        "launch_overhead": "chain_time launch_costs launch_explorer timeline_chart",
        "occupancy": "occupancy_chart occupancy_explorer",
        "losses": "loss_chart",
        "online_softmax": "online_softmax_chart",
        "operation_traffic": "traffic_explorer",
        "recomputation": "TRAINING_STEPS recomputation_explorer",
        "register_file": "register_file_chart",
        "register_growth": "registers_explorer",
        "roofline": "Point roofline_chart roofline_explorer",
        "stages": "stages_chart",
        "stepper": "watch",
        "tensor_traffic": "traffic_chart",
        "threads": "threads_explorer",
        "tile_choice": "Tiling matmul_explorer",
        "tile_order": "order_explorer",
        "timing": "timing_chart",
        "variance": "variance_explorer",
        "warp": "WarpLoad warp_chart warp_explorer",
        "waves": "waves_chart",
        "wide_rows": "wide_rows_explorer",
        "windows": "Windows windows_explorer",
    },
)
