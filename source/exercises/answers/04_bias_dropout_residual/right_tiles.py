# Tiles of some rows and columns, the bias loaded once a tile; the same kernel forwards and backwards.

# %%
import torch
import triton
import triton.language as tl

# %% grade_id="forward-kernel"
ROWS, COLUMNS = 2, 512


@triton.jit
def dropout_kernel(
    x_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    rows,
    columns,
    p,
    seed,
    FORWARD: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None].to(tl.int64)
    column = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    inside = (row < rows) & (column < columns)
    element = row * columns + column
    value = tl.load(x_ptr + element, mask=inside, other=0.0).to(tl.float32)
    if FORWARD:
        value += tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    value = tl.where(tl.rand(seed, element) >= p, value / (1 - p), 0.0)
    if FORWARD:
        value += tl.load(residual_ptr + element, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + element, value, mask=inside)


# %% grade_id="forward"
def launch(x, bias, residual, p, seed, forward):
    y = torch.empty_like(x)
    rows, columns = x.shape
    grid = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    dropout_kernel[grid](
        x, bias, residual, y, rows, columns, p, seed, FORWARD=forward, R=ROWS, C=COLUMNS
    )
    return y


def forward(x, bias, residual, p, seed):
    return launch(x.contiguous(), bias.contiguous(), residual.contiguous(), p, seed, True)


# %% grade_id="backward-kernel"
# The forward's kernel does it: grad_y in place of x, without bias and residual.


# %% grade_id="backward"
def backward(grad_y, p, seed):
    return launch(grad_y.contiguous(), None, None, p, seed, False)
