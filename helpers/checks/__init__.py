"""What the check cells of an exercise call, each giving an Outcome. Every check takes the answer first and `name=`."""

from helpers.checks.budget import check_budget as check_budget
from helpers.checks.cases import elementwise_cases as elementwise_cases
from helpers.checks.dropout import check_drop_rate as check_drop_rate
from helpers.checks.dropout import check_same_mask as check_same_mask
from helpers.checks.dropout import dropout_cases as dropout_cases
from helpers.checks.dropout import kept_elements as kept_elements
from helpers.checks.hints import Hints as Hints
from helpers.checks.linear_traffic import check_linear_traffic as check_linear_traffic
from helpers.checks.matmul import check_one_rounding as check_one_rounding
from helpers.checks.matmul import check_tensor_cores as check_tensor_cores
from helpers.checks.matmul import check_tile_traffic as check_tile_traffic
from helpers.checks.numbers import check_counts as check_counts
from helpers.checks.numbers import check_numbers as check_numbers
from helpers.checks.numbers import fresh as fresh
from helpers.checks.passes import check_passes as check_passes
from helpers.checks.resources import check_vectorised as check_vectorised
from helpers.checks.row_cases import large_mean_cases as large_mean_cases
from helpers.checks.row_cases import norm_cases as norm_cases
from helpers.checks.row_cases import topk_cases as topk_cases
from helpers.checks.tile_cases import flash_cases as flash_cases
from helpers.checks.tile_cases import linear_cases as linear_cases
from helpers.checks.tile_cases import masked_cases as masked_cases
from helpers.checks.tile_cases import scores_cases as scores_cases
from helpers.checks.traffic import check_traffic as check_traffic
from helpers.checks.values import check_values as check_values
from helpers.progress import watch

watch()
