"""What is softmax's own: rows of every width, rows of -inf, its bytes, its errors, and on a GPU its largest sizes."""

import pytest
import torch
import triton.language as tl
from accuracy import assert_as_accurate, with_gradients

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import softmax, variant
from kernels.interpreter import runtime
from kernels.rowwise import softmax as plain
from kernels.rowwise.softmax import softmax_op, softmax_reference
from kernels.tuned import wide_softmax
from kernels.tuned.segments import row_vectors

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
BOTH = pytest.mark.parametrize("tier", ["plain", "tuned"], indirect=True)


@BOTH
@pytest.mark.parametrize("cols", [1, 2, 1023, 4096, 16384, 16385, 32769, 49152, 262144])
def test_rows_of_every_width_and_their_gradients(tier, device, cols, poisoned):
    x, weight = torch.randn(2, 2, cols, device=device)
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight))


@BOTH
@pytest.mark.parametrize("cols", [12288, 20483])
def test_gradients_of_rows_of_16_bits(tier, device, cols):
    x, weight = torch.randn(2, 3, cols, device=device).bfloat16()
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight.double()))


@pytest.mark.parametrize("cols", [64, 256, 512])
def test_gradients_of_few_rows_that_share_a_program(device, cols):
    assert plain.backward_settings(2048, cols, torch.bfloat16)["BLOCK_ROWS"] > 1
    x, weight = torch.randn(2, 11, cols, device=device).bfloat16()
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight.double()))


@BOTH
@pytest.mark.parametrize("cols", [65, 20000, 33000])
def test_masked_rows(tier, device, cols):
    x = torch.randn(5, cols, device=device)
    x[0] = -torch.inf
    x[1, 3:] = -torch.inf
    x[2, cols // 2] = torch.nan
    x[3, 7] = torch.inf
    y = softmax(x)
    assert y[[0, 2, 3]].isnan().all()
    assert_as_accurate(y, softmax_reference(x), softmax_reference(x.double()))


@BOTH
@pytest.mark.parametrize("cols", [1025, 20001, 33001])
@pytest.mark.parametrize("where", [0, -1])
def test_one_finite_element_outside_of_whole_vectors(tier, device, cols, where):
    x = torch.full((9, cols), -torch.inf, device=device)
    x[:, where] = 3.0
    x[8, cols // 2] = torch.nan
    y = softmax(x)
    assert torch.equal(y[:8], softmax_reference(x[:8]))
    assert y[8].isnan().all()


@BOTH
@pytest.mark.parametrize("cols", [127, 20000, 33000])
def test_huge_values_neither_overflow_nor_drown(tier, device, cols):
    x = 3e38 * (1 - torch.rand(2, cols, device=device))
    x[:, 5] = 3e38
    shifted = torch.randn(2, cols, device=device) + 1e4
    for each in (x, shifted):
        assert_as_accurate(softmax(each), softmax_reference(each), softmax_reference(each.double()))


def test_strided_rows_are_not_copied(device):
    x = torch.randn(4, 300, device=device)[:, 7:263]
    assert_as_accurate(softmax(x), softmax_reference(x), softmax_reference(x.double()))
    assert measure(softmax, x).launches == 1


def softmax_unfused(x):
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)


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
@BOTH
@pytest.mark.parametrize("cols", [16389, 40000, 70001])
def test_wide_rows_of_16_bits(tier, device, cols, dtype):
    x, weight = torch.randn(2, 3, cols, dtype=dtype, device=device)
    x[0, :] = -torch.inf
    x[0, -1] = 3.0
    ours, theirs = (with_gradients(function, [x], weight) for function in (softmax, softmax_reference))
    assert_as_accurate(ours, theirs, with_gradients(softmax_reference, [x.double()], weight.double()))


@pytest.mark.parametrize("cols", [19001, 40000, 70001])
def test_of_a_wide_row_only_what_registers_do_not_hold_is_read_twice(device, cols):
    x = torch.randn(1, cols, dtype=torch.bfloat16, device=device)
    with variant("tuned"):
        traffic, chosen = measure(softmax, x), wide_softmax.settings(cols, x.dtype, *row_vectors(x))
    chunk, whole = chosen["LANES"] * chosen["EACH"], cols // 8 * 8
    again = min(whole, (-(-whole // chunk) - chosen["NUM_CACHED"]) * chunk)
    assert (traffic.launches, traffic.bytes_read, traffic.unique_read) == (1, 2 * (cols + again), x.nbytes)
    assert traffic.bytes_written == x.nbytes


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
@pytest.mark.parametrize("cols", [1024, 4099, 10000, 12288, 16384, 32768])
def test_the_plain_kernels_do_not_spill(gpu, cols):
    x = torch.empty(32768, cols, dtype=torch.bfloat16, device="meta")
    arguments, options = plain.OP.compile_arguments(*x.shape, dtype=x.dtype)
    assert compile_for(plain.softmax_kernel, *arguments, device=gpu, **options).spill_bytes == 0
    if cols <= 16384:
        chosen = plain.backward_settings(len(x), cols, x.dtype)
        kernel = plain.softmax_backward_kernel
        assert compile_for(kernel, x, x, x, *x.shape, cols, device=gpu, **chosen).spill_bytes == 0


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
@pytest.mark.parametrize("cols", [16400, 32768, 65536])
def test_the_tuned_backward_does_not_spill(gpu, cols):
    x = torch.empty(32768, cols, dtype=torch.bfloat16, device="meta")
    vectors = row_vectors(x)
    chosen = wide_softmax.backward_settings(cols, x.dtype, *vectors)
    kernel, arguments = wide_softmax.softmax_backward_wide_kernel, (x, x, x, cols, cols, *vectors)
    assert compile_for(kernel, *arguments, COMPUTE=tl.float32, device=gpu, **chosen).spill_bytes == 0


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
