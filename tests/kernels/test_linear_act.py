"""What is linear_act's own: three kernels that agree, its epilogues, precisions, registration, errors and resources."""

import pytest
import torch
from accuracy import assert_as_accurate, doubled

from helpers.instruments.resources import compile_for
from helpers.instruments.traffic import measure
from kernels import arguments, linear_act, variant, variants
from kernels.activations import ACTIVATIONS
from kernels.descriptors import takes_descriptors
from kernels.interpreter import runtime
from kernels.tiled.linear_act import (
    OP,
    LinearAct,
    gradient_of_sum,
    linear_act_kernel,
    linear_act_op,
    linear_act_reference,
)
from kernels.tiled.linear_act import settings as plain_settings
from kernels.tuned import linear_descriptors, linear_few_rows
from kernels.tuned.linear_descriptors import TILES, linear_act_descriptors_kernel, operands, settings

gpu_only = pytest.mark.skipif(not runtime.has_gpu(), reason="needs a GPU")
ACTS = pytest.mark.parametrize("act", [None, *ACTIVATIONS])


@pytest.fixture(params=["plain", "descriptors"])
def kernel(request, monkeypatch):
    """Each of the kernels for many rows, where another would take its place."""
    for module in (linear_descriptors, linear_few_rows):
        monkeypatch.setattr(module, "FEW_ROWS", 0)
    with variant("plain" if request.param == "plain" else "tuned"):
        yield request.param


def tensors(m, k, n, device, dtype=torch.float16, residual=True, grad=False):
    shapes = [(m, k), (n, k), (n,)] + [(m, n)] * residual
    scales = [1, max(1, k) ** -0.5, 1, 1]
    return [
        (torch.randn(shape, device=device, dtype=dtype) * scale).requires_grad_(grad)
        for shape, scale in zip(shapes, scales, strict=False)
    ]


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that take the forward calls, tuned where one does, in order."""
    names, choose = [], variants.tuned_for
    of_modules = {linear_descriptors.__name__: "descriptors", linear_few_rows.__name__: "few"}

    def noted(operation, stage, arguments):
        found = choose(operation, stage, arguments)
        if stage != "backward":
            names.append("plain" if found is None else of_modules[found.launch.__module__])
        return found

    monkeypatch.setattr(variants, "tuned_for", noted)
    with variant("tuned"):
        yield names


@ACTS
def test_every_epilogue_in_tiles_that_overhang(act, kernel, device, poisoned):
    inputs = tensors(130, 72, 264, device)
    exact = linear_act_reference(*doubled(inputs), act)
    assert_as_accurate(linear_act(*inputs, act), linear_act_reference(*inputs, act), exact)
    bare = linear_act_reference(*doubled(inputs[:2]), None, None, act)
    assert_as_accurate(linear_act(*inputs[:2], act=act), linear_act_reference(*inputs[:2], None, None, act), bare)


@pytest.mark.parametrize("act", [None, "gelu"])
@pytest.mark.parametrize("m", [1, 16, 17, 32])
def test_few_rows(m, act, launched, device, poisoned):
    """With the sum that training keeps, whose gradients tell of it, and columns that overhang."""
    inputs = tensors(m, 264, 70, device, grad=True)
    weight = torch.randn(m, 70, device=device, dtype=torch.float16)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    found = []
    for of, given, upstream in (
        (linear_act, inputs, weight),
        (linear_act_reference, inputs, weight),
        (linear_act_reference, doubles, weight.double()),
    ):
        y = of(*given, act)
        found.append((y, *torch.autograd.grad(y, given, upstream)))
    if not runtime.has_gpu() or torch.cuda.get_device_capability() in ((9, 0), (10, 0)):
        assert launched[0] == "few"
    for mine, native, truth in zip(*found, strict=True):
        assert_as_accurate(mine, native, truth)
    bare = [x.detach() for x in inputs[:2]]
    exact = linear_act_reference(*doubled(bare), None, None, act)
    assert_as_accurate(linear_act(*bare, act=act), linear_act_reference(*bare, None, None, act), exact)


@pytest.mark.parametrize(
    ("shape", "dtype", "tf32", "taken"),
    [
        ((32, 72, 41), torch.float16, False, "few"),  # y needs no descriptor
        ((1, 72, 40), torch.float32, True, "few"),
        ((1, 71, 40), torch.float16, False, "plain"),
        ((33, 72, 40), torch.float16, False, "descriptors"),
        ((33, 72, 40), torch.float32, True, "descriptors"),
        ((33, 72, 40), torch.float32, False, "plain"),  # no tensor cores
        ((33, 71, 40), torch.float16, False, "plain"),  # rows of x and weight start between multiples of 16 bytes
        ((33, 72, 41), torch.float16, False, "descriptors"),  # rows of y do
        ((33, 0, 40), torch.float16, False, "plain"),  # nothing to describe
    ],
)
def test_which_kernel_takes_what(shape, dtype, tf32, taken, launched, device, poisoned):
    inputs = tensors(*shape, device, dtype)
    y = linear_act(*inputs, tf32=tf32)
    if not runtime.has_gpu() or torch.cuda.get_device_capability() in ((9, 0), (10, 0)):
        assert launched == [taken]
    exact = linear_act_reference(*doubled(inputs))
    if tf32:
        assert (y.double() - exact).norm() < 2**-10 * exact.norm()  # tf32 keeps 10 bits of the operands' mantissas
    else:
        assert_as_accurate(y, linear_act_reference(*inputs), exact)


# In `make test` each shape with one activation.
@pytest.mark.parametrize(
    ("act", "m", "k", "n", "copied"),
    [
        ("gelu", 130, 71, 263, True),
        (None, 40, 300, 500, True),
        ("gelu", 40, 64, 75, False),
        ("gelu", 17, 257, 264, True),
        pytest.param(None, 130, 71, 263, True, marks=pytest.mark.long),
        pytest.param("gelu", 40, 300, 500, True, marks=pytest.mark.long),
        pytest.param(None, 40, 64, 75, False, marks=pytest.mark.long),
        pytest.param(None, 17, 257, 264, True, marks=pytest.mark.long),
    ],
)
def test_rows_of_any_length_reach_the_copy_engine(act, m, k, n, copied, device, launched, monkeypatch, poisoned):
    """Copied into rows of whole 16 bytes where the product is large enough; with the sum that training keeps."""
    monkeypatch.setattr(linear_descriptors, "worth_padding", lambda *_: True)
    inputs = tensors(m, k, n, device, grad=True)
    assert takes_descriptors(*(each.detach() for each in inputs[:2])) != copied
    weight = torch.randn(m, n, device=device, dtype=torch.float16)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    ours, theirs, exact = (
        linear_act(*inputs, act), linear_act_reference(*inputs, act), linear_act_reference(*doubles, act)
    )  # fmt: skip
    assert_as_accurate(ours, theirs, exact)
    found, native, truth = (
        torch.autograd.grad(y, leaves, weight.to(y.dtype))
        for y, leaves in ((ours, inputs), (theirs, inputs), (exact, doubles))
    )
    assert_as_accurate(found, native, truth)
    assert launched == ["few" if m <= linear_descriptors.FEW_ROWS else "descriptors"]


@pytest.mark.parametrize(
    ("m", "k", "n", "worth"),
    [
        (1023, 4097, 4099, True),
        (777, 300, 5000, True),
        (1, 4097, 4099, True),
        (64, 127, 4099, False),
        (8, 71, 5, False),
    ],
)
def test_a_copy_is_made_where_it_costs_less_than_it_saves(m, k, n, worth, monkeypatch):
    monkeypatch.setattr(arguments, "MULTIPROCESSORS", 132)
    x, weight = (torch.empty(rows, k, dtype=torch.bfloat16) for rows in (m, n))
    assert linear_descriptors.takes(x, weight, None, None, None, False) == worth


def test_a_residual_that_begins_anywhere(device, launched, poisoned):
    x, weight, bias, residual = tensors(48, 64, 40, device)
    apart = torch.cat([residual.new_zeros(1), residual.flatten()])[1:].view(48, 40)
    assert torch.equal(linear_act(x, weight, bias, apart), linear_act(x, weight, bias, residual))
    assert launched == ["descriptors"] * 2


def test_tf32_is_chosen_never_a_surprise(device):
    """Values whose difference tf32 cannot tell: the low bits of x are lost exactly where it was asked for."""
    x = torch.full((16, 32), 1 + 2**-12, device=device)
    weight = torch.eye(32, device=device)[:16]
    assert torch.equal(linear_act(x, weight, act=None), x[:, :16])
    assert torch.equal(linear_act(x, weight, act=None, tf32=True), torch.ones_like(x[:, :16]))


@pytest.mark.parametrize(("rows", "kernel_of_them"), [(24, "few"), (48, "descriptors")])
def test_strides_are_copied_only_where_columns_are_apart(rows, kernel_of_them, device, launched, poisoned):
    x, weight, bias, residual = tensors(rows, 64, 48, device)
    arguments = x, weight, bias, residual
    theirs, exact = linear_act_reference(*arguments), linear_act_reference(*doubled(arguments))
    wide = torch.randn(rows, 128, device=device, dtype=x.dtype)
    wide[:, 64:] = x
    ways = [
        (wide[:, 64:], weight, bias, residual),  # rows with other columns between them: read where they are
        (x.T.contiguous().T, weight.T.contiguous().T, bias.repeat(2)[::1][:48], residual.T.contiguous().T),
        (x.view(2, 3, -1, 64), weight, bias, residual.view(2, 3, -1, 48)),
        (torch.cat([x.new_zeros(1), x.flatten()])[1:].view(rows, 64), weight, bias, residual),  # 2 bytes off
    ]
    for inputs in ways:
        y = linear_act(*inputs)
        assert y.shape == (*inputs[0].shape[:-1], 48)
        assert_as_accurate(y.view(rows, 48), theirs, exact)
    assert launched == [kernel_of_them] * 3 + ["plain"]


def test_rows_far_apart(device, kernel):
    """Row strides whose multiples pass 2**31, over memory that is never touched."""
    stride = 2**30 if not runtime.has_gpu() else 2**31
    memory = torch.empty(2 * stride + 64, dtype=torch.float16, device=device)
    x = memory.as_strided((3, 64), (stride, 1))
    x.copy_(torch.randn(3, 64, device=device))
    weight = torch.randn(40, 64, device=device, dtype=torch.float16)
    assert torch.equal(linear_act(x, weight), linear_act(x.contiguous(), weight))


def test_nan_and_infinity_stay_where_they_are(device, poisoned):
    x, weight, bias, _ = tensors(8, 32, 16, device)
    x[2, 3], weight[5, 7] = torch.nan, torch.inf
    bias[1] = -torch.inf
    for act in ("relu", None):
        exact = linear_act_reference(*doubled((x, weight, bias)), None, act)
        theirs = linear_act_reference(x, weight, bias, None, act)
        assert exact.isnan().any()
        assert exact.isinf().any()
        assert_as_accurate(linear_act(x, weight, bias, None, act), theirs, exact)


def test_one_rounding(device):
    """The bias and the residual meet the sum in fp32: 2048 + 1 - 2048 is 0 in fp16 after every operation, 1 here."""
    x, weight = torch.ones(16, 32, device=device).half(), torch.zeros(16, 32, device=device).half()
    weight[:, 0] = 2048
    bias, residual = torch.ones(16, device=device).half(), torch.full((16, 16), -2048.0, device=device).half()
    assert bool((linear_act(x, weight, bias, residual, None) == 1).all())
    assert bool((linear_act_reference(x, weight, bias, residual, None) == 0).all())


@pytest.mark.parametrize("act", [None, *(pytest.param(act, marks=pytest.mark.long) for act in ACTIVATIONS)])
def test_gradcheck(act, device):
    inputs = [x.detach().requires_grad_() for x in tensors(2, 3, 3, device, torch.float64)]
    assert torch.autograd.gradcheck(lambda *inputs: linear_act(*inputs, act), inputs)


@ACTS
def test_gradients_in_16_bits(act, device, poisoned):
    inputs = tensors(70, 40, 264, device, grad=True)
    weight = torch.randn(70, 264, device=device, dtype=torch.float16)
    ours = torch.autograd.grad(linear_act(*inputs, act), inputs, weight)
    theirs = torch.autograd.grad(linear_act_reference(*inputs, act), inputs, weight)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(linear_act_reference(*doubles, act), doubles, weight.double())
    for mine, native, truth in zip(ours, theirs, exact, strict=True):
        assert_as_accurate(mine, native, truth)


def test_only_the_gradients_asked_for(device):
    x, weight, bias, residual = tensors(4, 32, 16, device, torch.float32)
    for act in (None, "silu"):
        bias.requires_grad_()
        (grad,) = torch.autograd.grad(linear_act(x, weight, bias, residual, act).sum(), bias)
        (expected,) = torch.autograd.grad(linear_act_reference(x, weight, bias, residual, act).sum(), bias)
        torch.testing.assert_close(grad, expected)


def test_bytes_and_launches_of_training(device):
    """The docstring's account, of tiles that hold all of it: forward one launch, the activation's gradient one."""
    x, weight, bias, _ = tensors(33, 72, 40, device, grad=True)
    forward = measure(linear_act, x, weight, bias)
    result = 33 * 40 * x.itemsize
    assert (forward.launches, forward.bytes_written) == (1, 2 * result)  # y and the sum
    assert forward.bytes_read == x.nbytes + weight.nbytes + bias.nbytes
    with torch.no_grad():
        assert measure(linear_act, x, weight, bias).bytes_written == result
    s = torch.randn(33, 40, device=device, dtype=x.dtype)
    backward = measure(gradient_of_sum, torch.randn_like(s), s, "silu")
    assert backward.by_tensor["grad_y"].read == backward.by_tensor["s"].read == result


def test_registration(device):
    inputs = tensors(9, 16, 8, device, torch.float32, grad=True)
    for act in (None, "silu"):
        torch.library.opcheck(linear_act_op.training_op, (*inputs, act, False))
    torch.library.opcheck(linear_act_op.forward_op, (*inputs[:2], None, None, "relu", False), test_utils="test_schema")


def test_module_is_a_linear_layer(device):
    layer = LinearAct(24, 16, act="silu", device=device)
    assert isinstance(layer, torch.nn.Linear)
    x, residual = torch.randn(2, 3, 24, device=device), torch.randn(2, 3, 16, device=device)
    expected = torch.nn.functional.silu(torch.nn.functional.linear(x, layer.weight, layer.bias)) + residual
    torch.testing.assert_close(layer(x, residual), expected)
    layer(x, residual).sum().backward()
    assert layer.weight.grad.isfinite().all()
    assert LinearAct(24, 16, bias=False, act=None, device=device)(x).shape == (2, 3, 16)


def test_under_autocast_as_linear_is(device):
    x, weight, bias, residual = tensors(9, 16, 8, device, torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        y, summed = linear_act(x, weight, bias), linear_act(x, weight, bias, residual)
    lowered = linear_act(*[each.bfloat16() for each in (x, weight, bias)])
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, lowered)
    assert torch.equal(summed, lowered + residual)  # the stream of residuals stays fp32


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda x, w: (x, w, 1.0), TypeError, "linear_act takes tensors, got bias of type float: use torch.tensor"),
        (lambda x, w: (x, w.half()), TypeError, "got x of torch.float32 and weight of torch.float16: convert one"),
        (lambda x, w: (x.int(), w), TypeError, r"got x of torch.int32: convert it with .to\(dtype\)"),
        (lambda x, w: (x, w.T), ValueError, r"x of \(\.\.\., K\) and weight of \(N, K\), got \(3, 5\) and \(5, 4\)"),
        (lambda x, w: (x[0, 0], w), ValueError, r"got \(\) and \(4, 5\): transpose weight, or reshape x"),
        (lambda x, w: (x, w, x[0]), ValueError, r"bias of \(4,\) for x of \(3, 5\) and weight of \(4, 5\), got \(5,\)"),
        (lambda x, w: (x, w, None, x), ValueError, r"residual of \(3, 4\) for x of \(3, 5\).*got \(3, 5\): expand"),
        (lambda x, w: (x, w, None, None, "tanh"), ValueError, "act of relu, gelu, gelu_tanh, silu, got 'tanh'"),
        (lambda x, w: (x.half(), w.half(), None, None, None, True), ValueError, "tf32=True for float32, got"),
        (lambda x, w: (x, w.to("meta")), ValueError, r"one device, got x on \w+(:\d)? and weight on meta: move"),
    ],
)
def test_bad_input_is_one_clear_line(device, arguments, error, message):
    x, weight, *_ = tensors(3, 5, 4, device, torch.float32)
    with pytest.raises(error, match=message) as raised:
        linear_act(*arguments(x, weight))
    assert "\n" not in str(raised.value)


def test_a_wrong_answer_is_refused(device):
    """The rule can fail: the tile that overhangs left out, and a product summed in fp16."""
    inputs = tensors(130, 72, 264, device)
    theirs, exact = linear_act_reference(*inputs), linear_act_reference(*doubled(inputs))
    y = linear_act(*inputs)
    for wrong in (y.index_fill(0, torch.tensor([129], device=device), 0), y * 1.01):
        with pytest.raises(AssertionError):
            assert_as_accurate(wrong, theirs, exact)


def compiled(act="gelu_tanh", residual=False, keep_sum=False, dtype=torch.bfloat16, m=4096, n=4096, k=4096):
    """linear_act_descriptors_kernel for an H100 as a launch would have it compiled."""
    chosen = settings(m, n, dtype, residual, keep_sum)
    x, weight, y = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (n, k), (m, n)))
    arguments = operands(x, weight, y[0], y if residual else None, y, y if keep_sum else None, chosen)
    return compile_for(linear_act_descriptors_kernel, *arguments, ACT=act, **chosen)


def test_the_copy_engine_and_the_tensor_cores_do_the_work():
    """What the docstring says of the benchmark's kernel: whole tiles in, no address of an operand computed;
    a result alone leaves by addresses, two by the copy engine."""
    kernel, arguments, options = linear_descriptors.compile_arguments(*OP.gpu_shapes[0], dtype=torch.bfloat16)
    resources = compile_for(kernel, *arguments, **options)
    assert options["num_stages"] == 4
    assert resources.shared_memory <= 232448
    assert resources.instructions["HGMMA"] == options["BLOCK_K"] // 16
    assert resources.instructions["UTMALDG"] >= 2
    assert resources.instructions["UTMASTG"] == 0
    assert resources.spill_bytes == 0
    assert compiled(keep_sum=True).instructions["UTMASTG"] >= 2
    assert resources.instructions["USETMAXREG"] == 0
    assert not [name for name in resources.instructions if name.startswith("LDGSTS")]  # copies by address


@pytest.mark.parametrize(
    ("dtype", "m", "n"),
    [
        (torch.float32, 3000, 4104),
        (torch.float16, 1023, 4099),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                (torch.float16, 4096, 4096),
                (torch.float32, 4096, 4096),
                (torch.float16, 256, 4096),
                (torch.float16, 3000, 4104),
                (torch.float16, 1500, 4096),
                (torch.float16, 16, 4096),
                (torch.float16, 777, 4099),
            )
        ),
    ],
)
def test_no_spills_with_all_that_an_epilogue_can_have(dtype, m, n):
    resources = compiled("gelu", residual=True, keep_sum=True, dtype=dtype, m=m, n=n)
    assert resources.spill_bytes == 0
    assert resources.shared_memory <= 232448


@pytest.mark.parametrize("n", [4096, 14336])
@pytest.mark.parametrize("m", [16, 32])
def test_few_rows_come_in_by_the_copy_engine_and_spill_nothing(m, n):
    """200 KB of loads on their way on a multiprocessor, of one program or two; weights of 64 rows on tensor cores."""
    chosen = linear_few_rows.few_settings(m, n, torch.bfloat16)
    x, weight, y = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((m, 4096), (n, 4096), (m, n)))
    arguments = linear_few_rows.few_operands(x, weight, y[0], y, y, y, chosen)
    found = compile_for(linear_few_rows.linear_act_few_kernel, *arguments, ACT="gelu", **chosen)
    assert found.spill_bytes == 0
    assert found.occupancy().blocks == (1 if n == 4096 else 2)
    assert found.occupancy().blocks * found.shared_memory > 180 * 2**10
    assert found.instructions["HGMMA"] == chosen["BLOCK_K"] // 16
    assert found.instructions["UTMALDG"] >= 2


# Microseconds on an H200 in bf16 with bias and GELU, for tiles of 128x256, 256x128, 128x128, 64x128 and 64x64.
MEASURED = {
    (300, 4096, 4096): (45.0, 45.7, 29.5, 44.3, 37.4),
    (528, 4096, 4096): (44.7, 45.8, 53.4, 63.8, 62.0),
    (700, 4096, 4096): (45.0, 45.5, 52.8, 65.6, 72.2),
    (1000, 4096, 14336): (182.0, 185.4, 187.6, 274.6, 326.6),
    (1056, 4096, 4096): (87.7, 88.9, 78.3, 92.4, 110.2),
    (1500, 4096, 4096): (88.7, 90.6, 79.1, 130.1, 144.7),
    (2048, 4096, 11008): (268.2, 274.1, 281.2, 417.8, 491.9),
    (2200, 8192, 8192): (423.3, 429.6, 465.8, 672.2, 839.9),
    (3000, 4096, 4104): (182.0, 144.7, 169.0, 246.4, 281.2),
    (4224, 4096, 4096): (185.2, 230.6, 215.7, 330.0, 378.3),
    (5000, 5120, 5120): (379.8, 391.1, 410.8, 585.3, 704.7),
    (8192, 1024, 8192): (218.4, 229.5, 247.6, 358.5, 397.0),
}


@pytest.mark.parametrize("shape", MEASURED)
def test_the_tile_that_was_fastest_is_chosen(shape):
    m, _, n = shape
    chosen = settings(m, n, torch.bfloat16)
    times = dict(zip((tile[:2] for tile in TILES), MEASURED[shape], strict=True))
    assert times[chosen["BLOCK_M"], chosen["BLOCK_N"]] == min(times.values())


@pytest.mark.parametrize("rows", [1, 16, 128, 256, 512, 1024, 3000, 8192])
def test_tiles_fit_with_loads_ahead(rows):
    for dtype in (torch.float16, torch.float32):
        assert settings(rows, 4104, dtype, residual=True)["num_stages"] >= 3


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.long), "H100"])
def test_the_plain_kernel_uses_tensor_cores_and_spills_nothing(gpu):
    for dtype, tf32 in ((torch.float16, False), (torch.float32, gpu == "H100")):
        x = torch.empty(4096, 4096, dtype=dtype, device="meta")
        arguments = x, x, x[0], x, x, x, *(4096,) * 5
        resources = compile_for(linear_act_kernel, *arguments, device=gpu, ACT="gelu", **plain_settings(dtype, tf32))
        assert resources.spill_bytes == 0
        mma = resources.instructions["HGMMA" if gpu == "H100" else "HMMA"]
        assert (mma > 0) == (dtype == torch.float16 or tf32)


@gpu_only
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape",
    [
        (1000, 1032, 1048),
        (1, 4096, 4096),
        (32, 2048, 14336),
        (64, 4096, 4096),
        (200, 1024, 4096),
        (512, 4096, 4096),
        (3000, 1024, 4104),
        (777, 1001, 1003),
    ],
)
def test_large_tiles_on_a_gpu(shape, dtype, poisoned):
    inputs = tensors(*shape, "cuda", dtype, grad=True)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    for act in ("gelu", None):
        ours, theirs, exact = (linear_act(*inputs, act), *(linear_act_reference(*x, act) for x in (inputs, doubles)))
        assert_as_accurate(ours, theirs, exact)
        weight = torch.randn_like(exact)
        for mine, native, truth in zip(
            *(
                torch.autograd.grad(y, leaves, weight.to(y.dtype))
                for y, leaves in ((ours, inputs), (theirs, inputs), (exact, doubles))
            ),
            strict=True,
        ):
            assert_as_accurate(mine, native, truth)


@gpu_only
def test_a_result_past_two_to_the_31_elements(kernel):
    x, weight, *_ = tensors(2**17 + 8, 64, 2**14 + 16, "cuda", torch.bfloat16, residual=False)
    y = linear_act(x, weight, act="relu")
    assert y.numel() > 2**31
    torch.testing.assert_close(y[-300:, -300:], linear_act_reference(x[-300:], weight[-300:], act="relu"))
