"""What a learner is asked, and told: predictions, self-tests, checks with their outcomes and hints, progress."""

from helpers import room

__getattr__, __dir__ = room(
    __name__,
    {
        "guesses": "predict_first predictions",
        "puzzles": "puzzle",
        "self_tests": "self_test",
        "outcome": "Outcome",
        "hints": "Hints",
        "beside": "beside_catalogue",
        "checks": (
            "batch_norm_cases check_budget check_counts check_cuda_code check_cuda_rows check_cuda_sound "
            "check_cuda_traffic check_drop_rate check_gradcheck check_gradient_traffic check_linear_traffic "
            "check_cut check_edges check_legal check_numbers check_offsets check_partitions check_repeats drawn_graphs "
            "edges_asked code_cases gradient_cases groups_asked quantised_cases transformer_layer "
            "check_one_rounding check_passes check_same_mask check_tensor_cores check_tile_traffic "
            "check_traffic check_values check_vectorised conv_cases dropout_cases elementwise_cases flash_cases fresh "
            "kept_elements large_mean_cases linear_cases masked_cases norm_cases rounding_cases scores_cases topk_cases"
        ),
    },
)
