"""What the check cells of an exercise call, each giving an Outcome. Every check takes the answer first and `name=`."""

from helpers.checks.cases import elementwise_cases as elementwise_cases
from helpers.checks.hints import Hints as Hints
from helpers.checks.resources import check_vectorised as check_vectorised
from helpers.checks.traffic import check_traffic as check_traffic
from helpers.checks.values import check_values as check_values
