"""The sums over programs that end the gradients of weight and bias."""

import pytest
import torch

from kernels.rowwise.sums import sums_of_programs


@pytest.mark.parametrize("programs", [1, 3, 132, 300])
@pytest.mark.parametrize("cols", [1, 127, 1024])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16, torch.float64)])
def test_each_vector_is_the_sum_of_its_programs(device, programs, cols, dtypes):
    sums = torch.randn(len(dtypes), programs, cols, device=device)
    vectors = tuple(torch.empty(cols, dtype=dtype, device=device) for dtype in dtypes)
    for result, of, dtype in zip(sums_of_programs(tuple(sums), vectors), sums, dtypes, strict=True):
        assert result.dtype == dtype
        exact = of.double().sum(0)
        rounding = torch.finfo(dtype).eps * exact.abs() + torch.finfo(torch.float32).eps * of.double().abs().sum(0)
        assert ((result.double() - exact).abs() <= rounding).all()


def test_sums_in_double_stay_in_double(device):
    sums = torch.tensor([[1.0], [2**-50]], dtype=torch.float64, device=device)
    assert sums_of_programs((sums,), (sums[0],))[0].item() == 1 + 2**-50
