"""adamw: its steps against torch.optim.AdamW in float64, tensors of all sizes, skipped steps, bytes, errors."""

import pytest
import torch

from helpers.instruments import compile_for, measure
from kernels.elementwise import adamw as module
from kernels.elementwise.adamw import OP, adamw, adamw_reference, adamw_work, programs
from kernels.interpreter import runtime

OPTIONS = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
SIZES = [(1,), (127,), (1025,), (1, 127, 1025, 5000), tuple(1 + 7 * i % 90 for i in range(300))]
on_this_cpu = pytest.mark.skipif(runtime.has_gpu(), reason="a GPU's addresses in a table mean nothing to the meter")


def by_torch(params, steps, dtype, **options):
    """Return parameters and both moments after torch.optim.AdamW's steps, one list of gradients each, in `dtype`."""
    params = [torch.nn.Parameter(p.to(dtype, copy=True)) for p in params]
    optimizer = torch.optim.AdamW(params, foreach=False, **(OPTIONS | options))
    for grads in steps:
        for p, g in zip(params, grads, strict=True):
            p.grad = g.to(dtype, copy=True)
        optimizer.step()
    states = [optimizer.state[p] for p in params]
    return [p.detach() for p in params], [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]


def by_ours(params, steps, moments, step=adamw, **options):
    params = [p.clone() for p in params]
    first, second = ([torch.zeros_like(p, dtype=moments) for p in params] for _ in range(2))
    for i, grads in enumerate(steps, 1):
        step(params, grads, first, second, i, **(OPTIONS | options))
    return params, first, second


def draw(sizes, steps, dtype, device):
    torch.manual_seed(0)
    return [[torch.randn(n, dtype=dtype, device=device) for n in sizes] for _ in range(steps + 1)]


def assert_at_most_twice_as_far(ours, pytorchs, exact):
    """Our largest error over all tensors is at most twice PyTorch's, and a rounding."""
    for mine, theirs, right in zip(ours, pytorchs, exact, strict=True):
        mine, theirs, right = (torch.cat([x.double().flatten() for x in each]) for each in (mine, theirs, right))
        rounding = torch.finfo(ours[0][0].dtype).eps * right.abs().max()
        assert (mine - right).abs().max() <= 2 * (theirs - right).abs().max() + rounding / 2


# Three hundred tensors take many launches, which no dtype changes.
STEPS = [
    pytest.param(sizes, dtype, id=f"{len(sizes)}x{sizes[-1]}-{dtype}", marks=[pytest.mark.long] if slow else [])
    for sizes in SIZES
    for dtype in OP.dtypes
    for slow in [len(sizes) == 300 and dtype != OP.dtypes[0]]
]


@pytest.mark.parametrize(("sizes", "dtype"), STEPS)
def test_three_steps_against_torch_in_float64(device, sizes, dtype):
    params, *steps = draw(sizes, 3, dtype, device)
    exact = by_torch(params, steps, torch.float64)
    ours, pytorchs = by_ours(params, steps, dtype), by_torch(params, steps, dtype)
    assert_at_most_twice_as_far(ours, pytorchs, exact)


def test_an_error_of_a_thousandth_is_rejected(device):
    params, *steps = draw((1025,), 3, torch.float32, device)
    exact, pytorchs = by_torch(params, steps, torch.float64), by_torch(params, steps, torch.float32)
    wrong = by_ours(params, steps, torch.float32, lr=OPTIONS["lr"] * 1.001)
    with pytest.raises(AssertionError):
        assert_at_most_twice_as_far(wrong, pytorchs, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp32_moments_leave_one_rounding_of_16_bit_parameters(device, dtype):
    params, *steps = draw((1, 127, 1025), 3, dtype, device)
    ours = by_ours(params, steps[:1], torch.float32)
    exact = by_torch(params, steps[:1], torch.float64)
    for p, right in zip(ours[0], exact[0], strict=True):
        # Once rounded: within half a unit in the last place, and fp32's error in what is rounded.
        assert ((p.double() - right).abs() <= torch.finfo(dtype).eps / 2 * right.abs() * 1.001 + 1e-7).all()
    for mine, right in zip(ours[1] + ours[2], exact[1] + exact[2], strict=True):
        torch.testing.assert_close(mine.double(), right, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("step", [1, 2, 1000, 100_000])
def test_bias_correction(device, step):
    params, grads, first, second, _ = OP.inputs(127, device=device)
    right = [[x.double() for x in each] for each in (params, grads, first, second)]
    adamw_reference(*right, step)
    adamw(params, grads, first, second, torch.tensor(float(step), device=device))
    torch.testing.assert_close(params[0].double(), right[0][0], atol=1e-6, rtol=1e-6)


def test_views_at_an_offset_and_their_neighbours(device):
    """Three of four tensors begin at no multiple of 16 bytes; nothing around them changes."""
    whole = [torch.full((1030,), 7.0, device=device) for _ in range(4)]
    views = [[x[i : i + 1025]] for i, x in enumerate(whole)]
    for view, values in zip(views, OP.inputs(1025, device=device), strict=False):
        view[0].copy_(values[0])
    copies = [[x[0].clone()] for x in views]
    adamw(*views, 3)
    adamw(*copies, 3)
    for i, (view, copy) in enumerate(zip(views, copies, strict=True)):
        assert torch.equal(view[0], copy[0])
        assert (whole[i][:i] == 7).all()
        assert (whole[i][i + 1025 :] == 7).all()


def test_nothing_and_empty_tensors(device):
    adamw([], [], [], [], 1)
    assert adamw(*OP.inputs(0, device=device)) is None
    given = OP.inputs(0, 5, 0, device=device)
    without = [[x[1].clone()] for x in given[:4]]
    adamw(*given)
    adamw(*without, 3)
    assert torch.equal(given[0][1], without[0][0])


def test_gradients_that_are_not_finite_stay_in_their_elements(device):
    params, grads, first, second, step = OP.inputs(1025, device=device)
    clean = [[x.clone() for x in each] for each in (params, grads, first, second)]
    grads[0][[3, 700]] = torch.tensor([torch.nan, torch.inf], device=device)
    adamw(params, grads, first, second, step)
    adamw(*clean, step)
    bad = ~params[0].isfinite()
    assert bad.nonzero().flatten().tolist() == [3, 700]
    assert torch.equal(params[0][~bad], clean[0][0][~bad])


@pytest.mark.parametrize("dtype", OP.dtypes)
def test_found_inf_writes_nothing(device, dtype):
    given = OP.inputs(1, 1025, 5000, dtype=dtype, device=device)
    before = [[x.clone() for x in each] for each in given[:4]]
    adamw(*given, found_inf=torch.tensor(1.0, device=device))
    for each, same in zip(given, before, strict=False):
        assert all(map(torch.equal, each, same))
    adamw(*given, found_inf=torch.tensor([0.0], device=device))
    assert not torch.equal(given[0][2], before[0][2])


def test_the_scale_is_taken_out_of_fp16_gradients(device):
    """A scale of 2**26 changes no bit: small gradients would be 0 if they were unscaled in fp16."""
    params, grads, first, second, step = OP.inputs(1025, dtype=torch.float16, device=device)
    first, second = ([x.float() * 1e-9 for x in each] for each in (first, second))
    plain = [params[0].float()], [grads[0].float() * 2.0**-26], [first[0].clone()], [second[0].clone()]
    adamw(params, grads, first, second, step, grad_scale=torch.tensor(2.0**26, device=device))
    adamw(*plain, step)
    assert torch.equal(first[0], plain[2][0])
    assert torch.equal(second[0], plain[3][0])
    assert torch.equal(params[0], plain[0][0].half())


@on_this_cpu
def test_bytes_and_launches():
    sizes = (1, 127, 1025, 5000)
    given = OP.inputs(*sizes)
    adamw(*given)  # makes the tables, on the host
    found, work = measure(adamw, *given), adamw_work(sizes, torch.float32)
    assert work.bytes == 7 * 4 * sum(sizes)
    assert found.launches == 1
    assert found.bytes_written == work.bytes_written
    assert 0 <= found.bytes_read - work.bytes_read <= 56 * programs(*sizes)  # five and two entries of the tables


@on_this_cpu
@pytest.mark.parametrize("foreach", [False, True])
def test_moves_less_than_half_of_what_eager_steps_move(foreach):
    given = OP.inputs(127, 1025, 5000)
    params = [torch.nn.Parameter(p) for p in given[0]]
    for p, g in zip(params, given[1], strict=True):
        p.grad = g.clone()
    optimizer = torch.optim.AdamW(params, foreach=foreach)
    optimizer.step()  # allocates the moments
    adamw(*given)
    eager, ours = measure(optimizer.step), measure(adamw, *given)
    assert ours.launches == 1 < eager.launches
    assert ours.bytes_total < eager.bytes_total / 2


@pytest.mark.parametrize("dtype", OP.dtypes)
def test_compiles_for_a_gpu_without_spilling(dtype):
    arguments, options = OP.compile_arguments(1000, 5, dtype=dtype)
    assert compile_for(OP.kernel, *arguments, **options).spill_bytes == 0


def test_steps_that_find_their_tensors_again_are_not_checked_again(device, monkeypatch):
    given = OP.inputs(127, 5, device=device)
    adamw(*given)
    with monkeypatch.context() as without:
        without.setattr(module, "_check_lists", None)
        without.setattr(module, "_tables", None)
        adamw(*given)
    expected = [[x.clone() for x in each] for each in given[:4]]
    adamw(*expected, 3)
    adamw(*given)
    assert all(map(torch.equal, given[0], expected[0]))


CHANGES = {
    "stride": ("contiguous", lambda x: x.as_strided_((5,), (25,))),
    "shape": ("params.0.'s shape", lambda x: x.as_strided_((5, 1), (1, 1))),
    "dtype": ("exp_avgs.0. of torch.int32", lambda x: setattr(x, "data", x.data.view(torch.int32))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_changed_in_place_is_checked_again(device, change):
    """The same objects, at the same addresses."""
    given = OP.inputs(125, device=device)
    for each in given[:4]:
        each[0] = each[0][:5] if change == "dtype" else each[0].as_strided((5,), (1,))
    adamw(*given)
    message, mutate = CHANGES[change]
    mutate(given[2][0])
    with pytest.raises((TypeError, ValueError), match=message):
        adamw(*given)


def test_few_tables_are_kept(device):
    for n in range(1, 2 * module.MAX_TABLES):
        adamw(*OP.inputs(n, device=device))
    assert len(module._known) <= module.MAX_TABLES


ERRORS = {
    "params of type Tensor": lambda p, g, m, v: (p[0], g, m, v, 1),
    "2 params and 1 grads": lambda p, g, m, v: (p, g[:1], m, v, 1),
    "grads.1. of torch.float16": lambda p, g, m, v: (p, [g[0], g[1].half()], m, v, 1),
    "exp_avgs.0. of torch.float64": lambda p, g, m, v: (p, g, [x.double() for x in m], v, 1),
    "moments of one dtype|moments of the parameters": lambda p, g, m, v: (p, g, m, [x.half() for x in v], 1),
    "grads.1. of .1, 5.": lambda p, g, m, v: (p, [g[0], g[1][None]], m, v, 1),
    "contiguous": lambda p, g, m, v: (p, [g[0], g[0].repeat(2)[:10:2]], m, v, 1),
    "exp_avg_sqs.1. on meta": lambda p, g, m, v: (p, g, m, [v[0], v[1].to("meta")], 1),
    "got 0: count": lambda p, g, m, v: (p, g, m, v, 0),
    "lr as a number": lambda p, g, m, v: (p, g, m, v, 1, -1.0),
    "betas": lambda p, g, m, v: (p, g, m, v, 1, 1e-3, (0.9, 1.0)),
    "found_inf as a tensor": lambda p, g, m, v: (p, g, m, v, 1, 1e-3, (0.9, 0.99), 1e-8, 0.0, None, True),
    "type NoneType": lambda p, g, m, v: (p, [g[0], None], m, v, 1),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_in_one_line(device, message):
    given = OP.inputs(127, 5, device=device)[:4]
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        adamw(*ERRORS[message](*given))
    assert "\n" not in str(raised.value)
