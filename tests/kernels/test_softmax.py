"""What is softmax's own: rows of every width, rows of -inf, its bytes, its errors, and on a GPU its largest sizes."""

import pytest
import torch
import triton.language as tl
from accuracy import assert_as_accurate, with_gradients

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import softmax
from kernels.interpreter import runtime
from kernels.rowwise import softmax as module
from kernels.rowwise import softmax_wide
from kernels.rowwise.pieces import pieces_of, row_launch
from kernels.rowwise.softmax import softmax_op, softmax_reference, softmax_unfused
from kernels.vectors import vectors_of_rows

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")


@pytest.mark.parametrize("cols", [1, 2, 1023, 4096, 16384, 16385, 32769, 49152, 262144])
def test_rows_of_every_width_and_their_gradients(device, cols, poisoned):
    x, weight = torch.randn(2, 2, cols, device=device)
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight))


@pytest.mark.parametrize("cols", [12288, 20483])
def test_gradients_of_rows_held_two_elements_to_a_register(device, cols):
    x, weight = torch.randn(2, 3, cols, device=device).bfloat16()
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight.double()))


@pytest.mark.parametrize("cols", [65, 20000])
def test_masked_rows(device, cols):
    x = torch.randn(5, cols, device=device)
    x[0] = -torch.inf
    x[1, 3:] = -torch.inf
    x[2, cols // 2] = torch.nan
    x[3, 7] = torch.inf
    y = softmax(x)
    assert y[[0, 2, 3]].isnan().all()
    assert_as_accurate(y, softmax_reference(x), softmax_reference(x.double()))


@pytest.mark.parametrize("cols", [1025, 20001])
@pytest.mark.parametrize("where", [0, -1])
def test_one_finite_element_outside_of_whole_vectors(device, cols, where):
    x = torch.full((9, cols), -torch.inf, device=device)
    x[:, where] = 3.0
    x[8, cols // 2] = torch.nan
    y = softmax(x)
    assert torch.equal(y[:8], softmax_reference(x[:8]))
    assert y[8].isnan().all()


@pytest.mark.parametrize("cols", [127, 20000])
def test_huge_values_neither_overflow_nor_drown(device, cols):
    x = 3e38 * (1 - torch.rand(2, cols, device=device))
    x[:, 5] = 3e38
    shifted = torch.randn(2, cols, device=device) + 1e4
    for each in (x, shifted):
        assert_as_accurate(softmax(each), softmax_reference(each), softmax_reference(each.double()))


def test_strided_rows_are_not_copied(device):
    x = torch.randn(4, 300, device=device)[:, 7:263]
    assert_as_accurate(softmax(x), softmax_reference(x), softmax_reference(x.double()))
    assert measure(softmax, x).launches == 1


def test_the_bytes_of_the_docstring(device):
    x = torch.randn(3, 1025, dtype=torch.bfloat16, device=device)
    n = x.numel()
    unfused, fused = measure(softmax_unfused, x), measure(softmax, x)
    per_row = 4 * 2 * 3  # the columns of maxima and sums, which the docstring's figure leaves out
    assert (unfused.launches, unfused.bytes_total - 2 * per_row // 2) == (5, 16 * n)
    assert (fused.launches, fused.bytes_total) == (1, 4 * n)
    y = softmax(x.requires_grad_())
    grad_y = torch.randn_like(y)
    backward = measure(lambda: torch.autograd.grad(y, x, grad_y))
    assert (backward.launches, backward.bytes_total) == (1, 6 * n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cols", [16389, 40000, 70001])
def test_wide_rows_of_two_elements_to_a_register(device, cols, dtype):
    x, weight = torch.randn(2, 3, cols, dtype=dtype, device=device)
    x[0, :] = -torch.inf
    x[0, -1] = 3.0
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight.double()))


@pytest.mark.parametrize("cols", [18001, 40000, 70001])
def test_of_a_wide_row_only_what_registers_do_not_hold_is_read_twice(device, cols):
    x = torch.randn(1, cols, dtype=torch.bfloat16, device=device)
    traffic, chosen = measure(softmax, x), softmax_wide.settings(cols, x.dtype, *vectors_of_rows(x))
    chunk, whole = chosen["LANES"] * chosen["EACH"], cols // 8 * 8
    again = min(whole, (-(-whole // chunk) - chosen["HELD"]) * chunk)
    assert (traffic.launches, traffic.bytes_read, traffic.unique_read) == (1, 2 * (cols + again), x.nbytes)
    assert traffic.bytes_written == x.nbytes


def compiled_backward(cols: int, gpu: str):
    x = torch.empty(32768, cols, dtype=torch.bfloat16, device="meta")
    if cols > module.WIDEST_BACKWARD:
        vectors = vectors_of_rows(x)
        chosen = softmax_wide.backward_settings(cols, x.dtype, *vectors)
        arguments = x, x, x, cols, cols, *vectors
        return compile_for(
            softmax_wide.softmax_backward_wide_kernel, *arguments, COMPUTE=tl.float32, device=gpu, **chosen
        )
    chosen = {"PIECES": pieces_of(x), "COMPUTE": tl.float32, **row_launch(*x.shape, tensors=2)[1]}
    return compile_for(module.softmax_backward_kernel, x, x, x, *x.shape, cols, device=gpu, **chosen)


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
@pytest.mark.parametrize("cols", [1024, 4099, 10000, 12288, 16384, 32768, 65536])
def test_the_backward_does_not_spill(gpu, cols):
    assert compiled_backward(cols, gpu).spill_bytes == 0


def test_registration(device):
    torch.library.opcheck(softmax_op.training_op, (torch.randn(3, 9, device=device, requires_grad=True),))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (lambda device: [1.0], TypeError, "softmax takes tensors, got x of type list: use torch.tensor"),
        (lambda device: torch.ones(3, device=device).int(), TypeError, r"got x of torch.int32: convert it with .to"),
        (
            lambda device: torch.tensor(1.0, device=device),
            ValueError,
            r"takes rows, \(..., cols\), got x of shape \(\)",
        ),
    ],
)
def test_bad_input_is_one_clear_line(device, x, error, message):
    with pytest.raises(error, match=message) as raised:
        softmax(x(device))
    assert "\n" not in str(raised.value)


@gpu_only
@pytest.mark.parametrize("shape", [(175000, 12288), (65537, 32769)])
def test_offsets_past_two_to_the_31(shape):
    x = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    y = softmax(x)
    for row in (0, shape[0] // 2, shape[0] - 1):
        assert_as_accurate(y[row], softmax_reference(x[row]), softmax_reference(x[row].double()))
    # In bf16 a probability has 8 bits, and the errors of a row's average out: 2^-8 for all of them is a wide bound.
    assert bool((y.sum(dim=1, dtype=torch.float32) - 1).abs().amax() < 2**-8)
