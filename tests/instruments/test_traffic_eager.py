"""The meter on eager PyTorch, against bytes worked out by hand: n elements of 4 bytes unless said."""

import pytest
import torch
import triton
import triton.language as tl
from torch.nn import functional

from helpers.instruments.prediction import predict
from helpers.instruments.traffic import measure

N = 1025


@pytest.fixture
def x():
    return torch.randn(N)


def counts(traffic):
    return traffic.launches, traffic.bytes_read, traffic.bytes_written


def test_add_then_gelu_is_two_launches_and_20_bytes_an_element():
    a, b = torch.randn(2, N)
    # add: reads a and b (8 B), writes the sum (4 B); gelu: reads the sum (4 B), writes (4 B).
    traffic = measure(lambda: functional.gelu(a + b, approximate="tanh"))
    assert counts(traffic) == (2, 12 * N, 8 * N)
    assert traffic.elements == N
    assert [(name, moved.total) for name, moved in traffic.by_launch] == [("add", 12 * N), ("gelu", 8 * N)]
    assert {name: (moved.read, moved.written) for name, moved in traffic.by_tensor.items()} == {
        "a": (4 * N, 0),
        "b": (4 * N, 0),
        "add": (4 * N, 4 * N),
        "result": (0, 4 * N),
    }
    # Wrong: a meter that counts an operator's outputs alone, or its inputs alone.
    assert counts(traffic) != (2, 12 * N, 4 * N)


# name: (what runs, launches, bytes read, bytes written), each worked out beside it.
EAGER = {
    "views": (lambda x: x[5:].view(-1, 4).t().unsqueeze(0).expand(3, 4, 255)[0], (0, 0, 0)),
    "view, then copy": (lambda x: x[:1024].view(32, 32).t().contiguous(), (1, 4096, 4096)),
    "contiguous of contiguous": (lambda x: x.contiguous(), (0, 0, 0)),
    "in place with a scalar": (lambda x: x.mul_(2), (1, 4 * N, 4 * N)),
    "in place with a tensor": (lambda x: x.add_(x), (1, 4 * N, 4 * N)),  # one tensor, read once
    "scalars": (lambda x: 2 * x + 1, (2, 8 * N, 8 * N)),
    "fill": (lambda x: x.fill_(3), (1, 0, 4 * N)),
    "zero": (lambda x: x.zero_(), (1, 0, 4 * N)),
    "copy": (lambda x: x[:100].copy_(x[100:200]), (1, 400, 400)),
    "copy from a broadcast": (lambda x: x[:100].copy_(x[100]), (1, 4, 400)),
    "uniform": (lambda x: x.uniform_(), (1, 0, 4 * N)),
    "bernoulli with tensor": (lambda x: torch.empty(N).bernoulli_(x.sigmoid_()), (2, 8 * N, 8 * N)),
    "empty": (lambda x: torch.empty_like(x), (0, 0, 0)),
    "empty with strides": (lambda x: x.new_empty_strided((5,), (1,)), (0, 0, 0)),
    "zeros": (lambda x: torch.zeros(7), (1, 0, 28)),
    "ones_like": (lambda x: torch.ones_like(x), (1, 0, 4 * N)),
    "new_full": (lambda x: x.new_full((3,), 2.0), (1, 0, 12)),
    "rand_like": (lambda x: torch.rand_like(x), (1, 0, 4 * N)),
    "randn": (lambda x: torch.randn(9), (1, 0, 36)),
    "arange": (lambda x: torch.arange(10), (1, 0, 80)),
    "clone": (lambda x: x.clone(), (1, 4 * N, 4 * N)),
    "to half": (lambda x: x.half(), (1, 4 * N, 2 * N)),
    "to the same": (lambda x: x.to(torch.float32), (0, 0, 0)),
    "comparison gives bools": (lambda x: x > 0, (1, 4 * N, N)),
    "where with a scalar": (lambda x: torch.where(x > 0, x, 0.0), (2, 4 * N + N + 4 * N, N + 4 * N)),
    "out=": (lambda x: torch.add(x, 1, out=torch.empty(N)), (1, 4 * N, 4 * N)),
    "sum": (lambda x: x.sum(), (1, 4 * N, 4)),
    "sum of nothing": (lambda x: x[:0].sum(), (1, 0, 4)),
    "add of nothing": (lambda x: x[:0] + x[:0], (0, 0, 0)),
    "item": (lambda x: x[3].item(), (0, 4, 0)),
    "equal": (lambda x: torch.equal(x, x + 1), (2, 12 * N, 4 * N)),
    "shapes": (lambda x: x.numel() + x.stride(0) + x.is_contiguous(), (0, 0, 0)),
    "broadcast bias": (lambda x: x[:1000].view(10, 100) + x[1000:1010, None], (1, 4000 + 40, 4000)),
    "expanded input": (lambda x: x[:1].expand(50) * 2, (1, 4, 200)),
    "every eighth": (lambda x: x[:1024:8] + 1, (1, 512, 512)),
    "two different views": (lambda x: x[1:] - x[:-1], (1, 2 * 4 * (N - 1), 4 * (N - 1))),
    "sliding windows": (lambda x: x[:10].unfold(0, 3, 1) * 1.0, (1, 40, 96)),  # 8 windows of 3 over 10 elements
    "cat": (lambda x: torch.cat([x, x[:5]]), (1, 4 * N + 20, 4 * N + 20)),
    "stack": (lambda x: torch.stack([x, x + 1]), (2, 4 * N + 8 * N, 4 * N + 8 * N)),
    "max with indices": (lambda x: x.max(dim=0), (1, 4 * N, 4 + 8)),
    "softmax": (lambda x: x.softmax(0), (1, 4 * N, 4 * N)),
    "foreach": (lambda x: torch._foreach_mul_([x[:5], x[5:15]], 2.0), (1, 60, 60)),
    "linear": (
        lambda x: functional.linear(x[:30].view(5, 6), x[30:48].view(3, 6), x[48:51]),
        (1, 4 * (30 + 18 + 3), 4 * 15),
    ),
    # y and, for the backward pass, a mean and a reciprocal deviation for each of 5 rows
    "layer_norm": (
        lambda x: functional.layer_norm(x.view(5, 205), (205,), x[:205], x[205:410]),
        (1, 4 * (N + 410), 4 * (N + 10)),
    ),
    "batch_norm in training": (
        lambda x: functional.batch_norm(x.view(205, 5), x.new_zeros(5), x.new_ones(5), training=True),
        (3, 4 * (N + 10), 4 * (10 + N + 10 + 10)),  # two fills; x, running stats; y, saved and running stats
    ),
    "gather": (lambda x: x.gather(0, torch.tensor([3, 3, 9])), (1, 8 + 24, 12)),  # 3 and 9, each once
    "index": (lambda x: x[torch.tensor([4, 0, 4])], (1, 8 + 24, 12)),
    "boolean index": (lambda x: x[:4][torch.tensor([True, False, True, False])], (1, 8 + 4, 8)),
    "index_select": (lambda x: x.view(41, 25).index_select(0, torch.tensor([7, 7])), (1, 100 + 16, 200)),
    "embedding": (
        lambda x: functional.embedding(torch.tensor([1, 1, 2]), x.view(41, 25)),
        (1, 200 + 24, 300),
    ),
    "index_put_": (lambda x: x.index_put_((torch.tensor([2, 5]),), x[:2] * 1), (2, 8 + 16 + 8, 8 + 8)),
    "assignment at an index": (lambda x: x.__setitem__(torch.tensor([2, 5]), 0.0), (1, 16, 8)),
    "scatter_": (lambda x: x.scatter_(0, torch.tensor([1, 8]), 5.0), (1, 16, 8)),
    "scatter_add_": (lambda x: x.scatter_add_(0, torch.tensor([1, 8]), torch.tensor([1.0, 2])), (1, 8 + 16 + 8, 8)),
    "scatter_add_ of rows": (
        lambda x: torch.zeros(41, 25).scatter_add_(0, torch.tensor([[3], [40], [3]]).expand(3, 25), x[:75].view(3, 25)),
        (2, 24 + 300 + 200, 4 * N + 200),
    ),
    "gather of columns": (
        lambda x: x.view(41, 25).gather(-1, torch.tensor([[4, 0]]).expand(41, 2)),
        (1, 2 * 4 * 41 + 16, 2 * 4 * 41),
    ),
    "index_add_": (lambda x: x.index_add_(0, torch.tensor([1, 1]), torch.tensor([1.0, 2])), (1, 4 + 16 + 8, 4)),
    "scatter_reduce_": (
        lambda x: x.scatter_reduce_(0, torch.tensor([3, 3, 9]), torch.tensor([1.0, 2, 3]), "amax"),
        (1, 8 + 24 + 12, 8),
    ),
    "index_reduce_": (
        lambda x: x.view(41, 25).index_reduce_(0, torch.tensor([7, 7]), x[:50].view(2, 25) + 1, "amax"),
        (2, 200 + 100 + 16 + 200, 200 + 100),
    ),
    "masked_scatter_": (  # as many of the source as the mask has; the kernel rewrites all of x[:4]
        lambda x: x[:4].masked_scatter_(torch.tensor([True, False, True, False]), torch.tensor([1.0, 2, 3, 4])),
        (1, 16 + 4 + 8, 16),
    ),
    "put_": (lambda x: x.put_(torch.tensor([3, 9]), torch.tensor([1.0, 2])), (1, 16 + 8, 8)),
    "embedding_bag": (
        lambda x: functional.embedding_bag(torch.tensor([1, 1, 2]), x.view(41, 25), torch.tensor([0])),
        (1, 200 + 24 + 8, 100 + 24 + 2 * 8),  # it writes each index's bag, and each bag's size and maximum, too
    ),
    # A copy of x, then the rows.
    "index_copy": (
        lambda x: x.view(41, 25).index_copy(0, torch.tensor([1]), torch.ones(1, 25)),
        (3, 4 * N + 8 + 100, 100 + 4 * N + 100),
    ),
    "scatter_add": (
        lambda x: x.scatter_add(0, torch.tensor([1, 8]), torch.tensor([1.0, 2])),
        (2, 4 * N + 8 + 16 + 8, 4 * N + 8),
    ),
    # log_softmax reads and writes 5x205; the loss reads one log-probability a row, not the rest, and writes 2 numbers
    "cross_entropy": (
        lambda x: functional.cross_entropy(x.view(5, 205), torch.tensor([0, 1, 2, 3, -100])),
        (2, 4 * N + 16 + 40, 4 * N + 8),
    ),
    # Of 5 rows: amax, abs, == inf, masked_fill_, subtract, exp_, sum, log_, add_. Source: logsumexp_out_impl in
    # ReduceOps.cpp.
    "logsumexp": (
        lambda x: x.view(5, 205).logsumexp(1),
        (9, 4 * (4 * N + 5 + 5 + 5 + 5 + 5 + 10) + 5, 4 * (2 * N + 5 + 5 + 5 + 5 + 5 + 5) + 5),
    ),
    "repeat": (lambda x: x.view(41, 25).repeat(2, 1), (1, 4 * N, 8 * N)),
    "slice_scatter": (lambda x: x.slice_scatter(x[5:105], 0, 0, 100), (2, 4 * N + 400, 4 * N + 400)),  # clone and copy
    "diag_embed": (lambda x: torch.diag_embed(x[:4]), (2, 16, 64 + 16)),  # zeros and copy
    "dropout": (lambda x: functional.dropout(x, 0.5, training=False), (0, 0, 0)),
    "convolution": (
        lambda x: functional.conv2d(x[:256].view(1, 1, 16, 16), x[300:309].view(1, 1, 3, 3), x[400:401]),
        (1, 4 * (256 + 9 + 1), 4 * 14 * 14),
    ),
}


@pytest.mark.parametrize("name", EAGER)
def test_operator(x, name):
    run, expected = EAGER[name]
    assert counts(measure(run, x)) == expected
    with torch.inference_mode():  # where composite operators arrive whole
        assert counts(measure(run, x.clone())) == expected


def test_a_naive_meter_fails_these(x):
    """Every tensor argument read whole and every result written: what the cases above must tell apart."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Naive(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for way, values in (("read", (args, kwargs)), ("written", result)):
                self.moved[way] += sum(t.numel() * t.itemsize for t in tree_leaves(values) if torch.is_tensor(t))
            return result

    wrong = []
    for name, (run, (_, read, written)) in EAGER.items():
        meter = Naive()
        meter.moved = {"read": 0, "written": 0}
        with meter:
            run(x.clone())
        if meter.moved != {"read": read, "written": written}:
            wrong.append(name)
    assert {"views", "copy", "broadcast bias", "expanded input", "gather", "fill", "scatter_"} <= set(wrong)


def test_a_backward_operator_with_a_kernel_of_its_own_is_one_launch():
    x = torch.randn(1000, requires_grad=True)
    y, grad = functional.silu(x), torch.ones(1000)
    traffic = measure(lambda: torch.autograd.grad(y, x, grad))
    assert [name for name, _ in traffic.by_launch] == ["silu_backward"]  # its form made of others has eight
    assert (traffic.bytes_read, traffic.bytes_written) == (8000, 4000)


def test_backward_pass():
    x = torch.randn(N, requires_grad=True)
    # forward: exp reads x, writes y; sum reads y, writes 4 B. backward: the seed gradient of 4 B; expanded it is read
    # as 4 B, and y with it; the gradient of x is written, and becomes x.grad with no copy.
    traffic = measure(lambda: x.exp().sum().backward())
    assert counts(traffic) == (4, 4 * N + 4 * N + 0 + 4 + 4 * N, 4 * N + 4 + 4 + 4 * N)
    assert x.grad is not None
    forward = measure(lambda: x.exp().sum())
    assert counts(forward) != counts(traffic)


def test_names_hold_through_the_call(x):
    def f(a, pair):
        total = a + pair[0]
        total += pair[1]
        return total, total[:2]

    traffic = measure(f, x, [x + 1, x + 2])
    assert list(traffic.by_tensor) == ["a", "pair[0]", "pair[1]", "result[0]"]
    assert traffic.by_tensor["result[0]"].read == 4 * N
    assert traffic.by_tensor["result[0]"].written == 8 * N
    assert torch.equal(traffic.result[0], x + (x + 1) + (x + 2))


def test_two_tensors_in_one_storage_keep_their_names():
    both = torch.randn(2, 10)
    a, b = both
    traffic = measure(lambda: a + b)
    assert {name: moved.read for name, moved in traffic.by_tensor.items()} == {"a": 40, "b": 40, "result": 0}
    columns = torch.randn(10, 2)
    left, right = columns.t()
    traffic = measure(lambda: left * 2 + right)
    assert [traffic.by_tensor[name].read for name in ("left", "right")] == [40, 40]


def test_the_parameters_of_a_module_are_named():
    layer = torch.nn.Linear(6, 3)
    x = torch.randn(4, 6)
    assert {"input", "weight", "bias", "result"} == set(measure(layer, x).by_tensor)
    assert {"x", "layer['weight']", "layer['bias']", "result"} == set(measure(lambda: layer(x)).by_tensor)


def test_distinct_bytes_are_counted_once_over_the_call(x):
    traffic = measure(lambda: x + 1 + x + x[:10].sum())
    # x three times, but its bytes once; three intermediates, of which two are read; a sum of 4 B, read once.
    assert traffic.unique_read == 4 * N + 2 * 4 * N + 4
    assert traffic.bytes_read == traffic.unique_read + 4 * N + 40
    assert traffic.unique_written == traffic.bytes_written == 3 * 4 * N + 4


def test_freed_storages_are_not_taken_for_new_ones():
    def f(x):
        for _ in range(8):
            x = x * 2  # each result may get the memory of the one before last
        return x

    traffic = measure(f, torch.ones(100))
    assert traffic.unique_written == traffic.bytes_written == 8 * 400


def test_sectors():
    x = torch.randn(1024)
    assert measure(lambda: x[8:16] + 1).sectors_read == 1
    assert measure(lambda: x[7:16] + 1).sectors_read == 2
    assert measure(lambda: x[::8] + 1).sectors_read == 128  # every element in a sector of its own
    assert measure(lambda: x[::8] + 1).sectors_written == 16
    assert measure(lambda: x[:1000:2] + 1).sectors_read == 125


def test_lines_of_eager_code(x):
    traffic = measure(lambda: x + 1)
    ((file, number), line), *others = traffic.by_line.items()
    assert (file, not others) == (__file__, True)
    assert (line.read, line.written, line.sectors_per_request) == (4 * N, 4 * N, None)
    assert f"{number}: traffic = measure(lambda: x + 1)" in traffic.line_table()


@triton.jit
def _twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def _launch_twice(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    _twice[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y


@pytest.fixture(scope="module")
def twice():
    """A custom operator as kernels register theirs, with a derivative."""
    operator = torch.library.custom_op("test_traffic::twice", _launch_twice, mutates_args=())
    operator.register_autograd(lambda context, gradient: operator(gradient))
    yield operator
    operator._lib._destroy()


def test_custom_operator_counts_as_what_it_does_inside(twice):
    x = torch.randn(2 * N)
    assert counts(measure(twice, x)) == (1, 8 * N, 8 * N)
    # Every second element: a copy first (reads N, writes N), then the kernel.
    traffic = measure(twice, x[::2])
    assert counts(traffic) == (2, 8 * N, 8 * N)
    assert [name for name, _ in traffic.by_launch] == ["clone", "_twice"]
    assert torch.equal(traffic.result, 2 * x[::2])
    # Wrong: the operator as a launch of its own would make it three.
    assert traffic.launches != 3


def test_custom_operator_under_autograd(twice):
    x = torch.randn(N, requires_grad=True)
    weight = torch.randn(N)
    # forward: twice (8 B), product with weight (12 B), sum. backward: the seed (4 B), weight * expanded seed
    # (reads 4 N + 4, writes 4 N), twice.
    traffic = measure(lambda: (twice(x) * weight).sum().backward())
    assert [name for name, _ in traffic.by_launch] == ["_twice", "mul", "sum", "ones_like", "mul", "_twice"]
    assert traffic.bytes_read == 4 * N + 8 * N + 4 * N + 0 + (4 * N + 4) + 4 * N
    assert torch.allclose(x.grad, 2 * weight)


def test_custom_operator_written_for_one_device():
    library = torch.library.Library("test_traffic_cpu", "DEF")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CPU")
    library.define("inplace(Tensor(a!) x) -> ()")
    library.impl("inplace", lambda x: (x.mul_(3), None)[1], "CPU")
    x = torch.ones(10)
    assert counts(measure(torch.ops.test_traffic_cpu.thrice, x)) == (1, 40, 40)
    assert counts(measure(torch.ops.test_traffic_cpu.inplace, x)) == (1, 40, 40)
    library._destroy()


def test_sparse_tensors_are_refused():
    x = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match=r"^the meter counts strided tensors, got a nested one: pad it"):
        measure(lambda x: x + 1, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(ValueError, match=r"^the meter counts strided tensors, got torch.sparse_coo: .*to_dense\(\)$"):
        measure(torch.relu, x)


@pytest.mark.parametrize("beta", [0, 1])
def test_a_product_reads_what_it_adds_to_unless_it_is_scaled_by_zero(beta):
    matrix, vector, out = torch.ones(64, 32), torch.ones(32), torch.ones(64)
    for call in (lambda: torch.addmv(out, matrix, vector, beta=beta), lambda: out.addmv_(matrix, vector, beta=beta)):
        traffic = measure(call)
        assert (traffic.bytes_read, traffic.bytes_written) == (4 * (64 * 32 + 32 + beta * 64), 4 * 64)
    traffic = measure(torch.mv, matrix, vector)
    assert (traffic.bytes_read, traffic.bytes_written, traffic.launches) == (4 * (64 * 32 + 32), 4 * 64, 1)


def test_fills_for_numbers_in_torch_where_are_named_where_they_are_not_counted():
    x = torch.randn(64)
    traffic = measure(lambda x: torch.where(x > 0, torch.where(x > 1, 1.0, x), 0.0), x)
    assert (traffic.launches, traffic.uncounted_fills) == (4, 2)
    assert "not counted: 2 fills on a GPU, for numbers given to torch.where" in str(traffic)
    plain = measure(lambda x: torch.where(x > 0, x, x.new_zeros(64)), x)
    assert plain.uncounted_fills == 0
    assert "not counted" not in str(plain)
    assert "without the fill" in repr(predict(lambda x: torch.where(x > 0, x, 0.0), x))


def test_a_dry_run_does_not_make_autograd_copy_gradients():
    """A gradient that nobody else holds becomes `.grad` as it is; one that a tool holds would be copied."""
    layer = torch.nn.Linear(64, 32)

    def step(x):
        layer.zero_grad()
        layer(x).relu().sum().backward()

    x = torch.randn(8, 64)
    launched = [name for name, _ in measure(step, x).by_launch]
    assert [launch.name for launch in predict(step, x).launches] == launched
    assert "copy_" not in launched
