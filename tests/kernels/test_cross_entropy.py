"""What is cross_entropy's own: labels, smoothing, reductions, its bytes, its errors, and on a GPU its largest sizes."""

import subprocess
import sys

import pytest
import torch
from accuracy import assert_as_accurate, with_gradients
from triton.runtime.errors import InterpreterError

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import cross_entropy, variant
from kernels.arguments import cdiv
from kernels.interpreter import runtime
from kernels.rowwise import cross_entropy as plain
from kernels.rowwise.cross_entropy import cross_entropy_op, cross_entropy_reference
from kernels.tuned import cross_entropy as tuned

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
BOTH = pytest.mark.parametrize("tier", ["plain", "tuned"], indirect=True)


def rows_of(rows, classes, device, dtype=torch.float32):
    logits = torch.randn(rows, classes, dtype=dtype, device=device).requires_grad_()
    return logits, torch.randint(classes, (rows,), device=device)


def assert_right(logits, labels, weight, reduction="none", of=lambda x: x, **options):
    """The losses and, weighted, their gradient. Losses are fp32 where logits are narrower: so are PyTorch's here."""
    options = {"reduction": reduction, **options}
    ours = with_gradients(lambda x: cross_entropy(of(x), labels, **options), [logits], weight)
    theirs, exact = (
        with_gradients(lambda x: cross_entropy_reference(of(x), labels, **options), [each], weight)
        for each in (logits, logits.double())
    )
    assert_as_accurate(ours, theirs, exact)
    return ours


@BOTH
@pytest.mark.parametrize("classes", [1, 2, 1023, 4096, 32769, pytest.param(262144, marks=pytest.mark.long)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_every_width_smoothed_or_not_and_the_gradient(tier, device, classes, smoothing, poisoned):
    logits, labels = rows_of(3, classes, device)
    labels[1] = -100
    _, gradient = assert_right(logits, labels, torch.randn(3, device=device), label_smoothing=smoothing)
    assert not gradient[1].any()


@BOTH
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_reductions_count_what_is_not_ignored(tier, device, reduction):
    logits, labels = rows_of(7, 11, device)
    labels[[0, 4]] = 3
    weight = torch.ones(7 if reduction == "none" else (), device=device)
    assert_right(logits, labels, weight, ignore_index=3, label_smoothing=0.2, reduction=reduction)


def test_the_mean_is_what_one_gets_unasked(device):
    logits, labels = rows_of(3, 11, device)
    labels[1] = -100
    torch.testing.assert_close(cross_entropy(logits, labels), torch.nn.functional.cross_entropy(logits, labels))


# In `make test` each width with one type or two.
@BOTH
@pytest.mark.parametrize(
    ("rows", "classes", "width", "dtype"),
    [
        pytest.param(*shape, dtype, marks=[] if place % 3 == number or place == 3 else [pytest.mark.long])
        for place, shape in enumerate(((35, 17, 17), (19, 65, 67), (5, 1025, 1027), (3, 4103, 4103)))
        for number, dtype in enumerate((torch.bfloat16, torch.float32, torch.float64))
    ],
)
def test_rows_that_begin_anywhere_in_a_vector(tier, device, dtype, rows, classes, width):
    """The rim's logits, first and last, are labels here, and one is the row's maximum; rows do not fill a program.

    It is no larger: PyTorch's float64, which is what is exact here, loses digits where a probability is nearly 1.
    """
    logits = torch.randn(rows, width, dtype=dtype, device=device)
    logits[::2, 0], logits[1::2, classes - 1] = 5.0, 5.0
    labels = torch.arange(rows, device=device) % 3 * (classes - 1) // 2
    for offset in (0, 1):
        leaf = logits.flatten()[offset:].detach().requires_grad_()
        spread = lambda flat: flat.as_strided((rows - 1, classes), (width, 1))  # noqa: E731
        weight = torch.randn(rows - 1, device=device, dtype=torch.promote_types(dtype, torch.float32))
        smoothing = 0.0 if dtype == torch.float64 else 0.1  # which is fp32
        assert_right(leaf, labels[:-1], weight, of=spread, label_smoothing=smoothing)


def test_all_ignored_is_a_mean_of_nothing(device):
    logits, labels = rows_of(2, 5, device)
    assert cross_entropy(logits, labels.fill_(-100), reduction="mean").isnan()


@BOTH
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_infinite_and_undefined_logits(tier, device, smoothing):
    logits = torch.randn(6, 130, device=device)
    labels = torch.zeros(6, dtype=torch.int64, device=device)
    logits[0] = -torch.inf
    logits[1, 0] = -torch.inf  # the label's own: an infinite loss
    logits[2, 5] = -torch.inf
    logits[3, 7] = torch.nan
    logits[4, 7] = torch.inf
    logits[5], labels[5] = torch.nan, -100
    options = {"label_smoothing": smoothing, "reduction": "none"}
    theirs, exact = (cross_entropy_reference(x, labels, **options) for x in (logits, logits.double()))
    assert_as_accurate(cross_entropy(logits, labels, **options), theirs, exact)


@BOTH
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_large_logits_lose_no_digits(tier, device, smoothing):
    logits, labels = rows_of(4, 300, device)
    ones = torch.ones(4, device=device)
    losses, _ = assert_right(logits.detach() + 1e4, labels, ones, label_smoothing=smoothing)
    options = {"label_smoothing": smoothing, "reduction": "none"}
    exact = cross_entropy_reference((logits.detach() + 1e4).double(), labels, **options)
    # Stricter than PyTorch's error, which has lost digits there: a few roundings of the loss itself.
    torch.testing.assert_close(losses.double(), exact, rtol=2e-6, atol=0)


@BOTH
@pytest.mark.skipif(runtime.has_gpu(), reason="on a GPU the process would end: the next test starts one of its own")
@pytest.mark.parametrize("label", [-1, 5, 2**40, -101])
def test_a_label_out_of_range_is_an_error(tier, label):
    labels = torch.tensor([0, label, 1])
    with pytest.raises(InterpreterError, match="a label is neither a class nor ignore_index") as raised:
        cross_entropy(torch.randn(3, 5), labels)
    assert "\n" not in str(raised.value)


@gpu_only
def test_a_label_out_of_range_stops_the_gpu():
    program = (
        "import torch, kernels; kernels.cross_entropy(torch.ones(3, 5).cuda(), torch.tensor([0, 5, 1]).cuda());"
        "torch.cuda.synchronize()"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode != 0
    assert "a label is neither a class nor ignore_index" in finished.stderr
    assert "device-side assert" in finished.stderr


def test_the_bytes_of_the_docstring(device):
    logits, labels = rows_of(3, 1025, device, torch.bfloat16)
    fused = measure(cross_entropy, logits.detach(), labels, -100, 0.0, "none")
    assert (fused.launches, fused.by_tensor["logits"].read) == (1, 2 * logits.numel() + 2 * 3)
    assert (fused.bytes_read - fused.by_tensor["logits"].read, fused.bytes_written) == (3 * 8, 3 * 4)
    losses = cross_entropy(logits, labels, reduction="none")
    kept = losses.grad_fn.saved_tensors[2:]
    assert sum(tensor.nbytes for tensor in kept) == 3 * 8  # no probabilities
    weight = torch.randn_like(losses)
    backward = measure(lambda: torch.autograd.grad(losses, logits, weight))
    assert backward.launches == 1
    assert 4 * logits.numel() <= backward.bytes_total < 4 * logits.numel() + 100


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
def test_nothing_spills(gpu):
    x = torch.empty(8192, 65536, dtype=torch.bfloat16, device="meta")
    labels, values = torch.empty(8192, dtype=torch.int64, device="meta"), torch.empty(8192, device="meta")
    backward = (values, x, labels, values, x, 8192, 65536, 65536, -100, 0.0)
    forward, options = plain.OP.compile_arguments(*x.shape, dtype=x.dtype)
    for kernel, arguments, chosen in (
        (plain.cross_entropy_kernel, forward, options),
        (plain.cross_entropy_backward_kernel, backward, plain.backward_settings(65536)),
        (
            tuned.cross_entropy_backward_vectors_kernel,
            backward,
            tuned.backward_settings(8192, 65536, torch.bfloat16, vector=8, unaligned=False)[1],
        ),
    ):
        assert compile_for(kernel, *arguments, device=gpu, **chosen).spill_bytes == 0


@pytest.mark.parametrize("pretended", [2048, 134218])
@pytest.mark.parametrize("classes", [64, 515, 1536])
def test_rows_that_share_a_program(device, pretended, classes, monkeypatch):
    """As many as of `pretended` rows; the last program has fewer, one of them to be ignored."""

    chosen_for = tuned.settings

    def settings(rows, *given, **named):
        _, chosen = chosen_for(pretended, *given, **named)
        return cdiv(rows, chosen["BLOCK_ROWS"]), chosen

    monkeypatch.setattr(tuned, "settings", settings)
    logits, labels = rows_of(7, classes, device)
    labels[5] = -100
    with variant("tuned"):
        assert_right(logits, labels, torch.randn(7, device=device), label_smoothing=0.1)


def test_the_first_logits_are_loaded_before_the_label_is_there():
    x, labels = torch.empty(2048, 1024, dtype=torch.bfloat16, device="meta"), torch.empty(2048, device="meta").long()
    _, chosen = tuned.settings(2048, 1024, torch.bfloat16, 132, 8, False)
    arguments = x, labels, torch.empty(2048, device="meta"), None, 2048, 1024, 1024, -100, 0.0
    ptx = compile_for(tuned.cross_entropy_vectors_kernel, *arguments, **chosen).ptx
    first_logits, label_checked = ptx.index("ld.global.v4"), ptx.index("__assertfail,")
    assert first_logits < label_checked


def test_registration(device):
    logits, labels = rows_of(3, 9, device)
    torch.library.opcheck(cross_entropy_op.forward_op, (logits.detach(), labels, -100, 0.1))
    torch.library.opcheck(cross_entropy_op.training_op, (logits, labels, -100, 0.1))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": [1.0]}, TypeError, "takes tensors, got logits of type list: use torch.tensor"),
        ({"logits": torch.ones(3, 5).int()}, TypeError, r"got logits of torch.int32: convert it with .to"),
        ({"logits": torch.tensor(1.0)}, ValueError, r"takes rows, \(..., cols\), got x of shape \(\)"),
        ({"labels": torch.ones(3)}, TypeError, r"labels in a tensor of torch.int64, got torch.float32: convert with"),
        ({"labels": [0, 1, 2]}, TypeError, "labels in a tensor of torch.int64, got list: convert with"),
        ({"labels": torch.ones(4).long()}, ValueError, r"takes one label per row, \(3,\), got \(4,\): pass logits"),
        ({"labels": torch.ones(3, device="meta").long()}, ValueError, "labels on meta: move one with"),
        ({"logits": torch.ones(3, 0)}, ValueError, "takes at least 1 class, got logits of 0 columns"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing of 0 to 1, got 1.5"),
        (
            {"label_smoothing": float("nan")},
            ValueError,
            "label_smoothing as a finite number of at most 64 bits, got nan",
        ),
        ({"reduction": "avg"}, ValueError, "reduction of none, mean or sum, got 'avg'"),
    ],
)
def test_bad_input_is_one_clear_line(device, change, error, message):
    arguments = {"logits": torch.ones(3, 5), "labels": torch.zeros(3, dtype=torch.int64), **change}
    meta = any(isinstance(x, torch.Tensor) and x.is_meta for x in arguments.values())
    if not meta:
        arguments = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
    else:
        arguments["logits"] = arguments["logits"].to(device)
    with pytest.raises(error, match=message) as raised:
        cross_entropy(**arguments)
    assert "\n" not in str(raised.value)


@gpu_only
def test_offsets_past_two_to_the_31():
    logits = torch.randn(32769, 65600, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    labels = torch.randint(65600, (32769,), device="cuda")
    losses = cross_entropy(logits, labels, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    some, ones = logits[-3:].detach(), torch.ones(3, device="cuda")
    theirs, exact = (
        with_gradients(lambda x: cross_entropy_reference(x, labels[-3:], reduction="none"), [each], ones)
        for each in (some, some.double())
    )
    assert_as_accurate((losses[-3:], gradient[-3:]), theirs, exact)
