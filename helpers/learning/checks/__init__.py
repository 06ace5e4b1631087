"""What the check cells of an exercise call, each giving an Outcome. Every check takes the answer first and `name=`."""

from helpers.learning.checks.budget import check_budget as check_budget
from helpers.learning.checks.cases import elementwise_cases as elementwise_cases
from helpers.learning.checks.code_cases import code_cases as code_cases
from helpers.learning.checks.code_cases import quantised_cases as quantised_cases
from helpers.learning.checks.conv_cases import batch_norm_cases as batch_norm_cases
from helpers.learning.checks.conv_cases import conv_cases as conv_cases
from helpers.learning.checks.cuda import check_cuda_code as check_cuda_code
from helpers.learning.checks.cuda import check_cuda_rows as check_cuda_rows
from helpers.learning.checks.cuda import check_cuda_sound as check_cuda_sound
from helpers.learning.checks.cuda import check_cuda_traffic as check_cuda_traffic
from helpers.learning.checks.dropout import check_drop_rate as check_drop_rate
from helpers.learning.checks.dropout import check_same_mask as check_same_mask
from helpers.learning.checks.dropout import dropout_cases as dropout_cases
from helpers.learning.checks.dropout import kept_elements as kept_elements
from helpers.learning.checks.gradients import check_gradcheck as check_gradcheck
from helpers.learning.checks.gradients import check_gradient_traffic as check_gradient_traffic
from helpers.learning.checks.gradients import check_repeats as check_repeats
from helpers.learning.checks.gradients import gradient_cases as gradient_cases
from helpers.learning.checks.layer_graph import transformer_layer as transformer_layer
from helpers.learning.checks.linear_traffic import check_linear_traffic as check_linear_traffic
from helpers.learning.checks.matmul import check_one_rounding as check_one_rounding
from helpers.learning.checks.matmul import check_tensor_cores as check_tensor_cores
from helpers.learning.checks.matmul import check_tile_traffic as check_tile_traffic
from helpers.learning.checks.numbers import check_counts as check_counts
from helpers.learning.checks.numbers import check_numbers as check_numbers
from helpers.learning.checks.numbers import fresh as fresh
from helpers.learning.checks.offsets import check_offsets as check_offsets
from helpers.learning.checks.partitions import check_edges as check_edges
from helpers.learning.checks.partitions import check_legal as check_legal
from helpers.learning.checks.partitions import check_partitions as check_partitions
from helpers.learning.checks.partitions import edges_asked as edges_asked
from helpers.learning.checks.partitions import groups_asked as groups_asked
from helpers.learning.checks.passes import check_passes as check_passes
from helpers.learning.checks.resources import check_vectorised as check_vectorised
from helpers.learning.checks.row_cases import large_mean_cases as large_mean_cases
from helpers.learning.checks.row_cases import norm_cases as norm_cases
from helpers.learning.checks.row_cases import topk_cases as topk_cases
from helpers.learning.checks.small_graphs import drawn_graphs as drawn_graphs
from helpers.learning.checks.tile_cases import flash_cases as flash_cases
from helpers.learning.checks.tile_cases import linear_cases as linear_cases
from helpers.learning.checks.tile_cases import masked_cases as masked_cases
from helpers.learning.checks.tile_cases import rounding_cases as rounding_cases
from helpers.learning.checks.tile_cases import scores_cases as scores_cases
from helpers.learning.checks.traffic import check_cut as check_cut
from helpers.learning.checks.traffic import check_traffic as check_traffic
from helpers.learning.checks.values import check_values as check_values
from helpers.learning.hints import Hints as Hints
from helpers.learning.progress import watch

watch()
