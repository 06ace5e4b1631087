"""Dropout's random numbers against the generator's published answers, and the kernel's mask against PyTorch's."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.philox import dropout_mask, kept, new_seed, philox


@triton.jit
def mask_kernel(mask_ptr, seed_ptr, first_row, first_col, p, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None].to(tl.int64) + first_row
    mask = kept(tl.load(seed_ptr), row, first_col, p, ROWS, COLS)
    tl.store(mask_ptr + tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :], mask.to(tl.int8))


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [  # kat_vectors of Random123, philox4x32-10
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**32 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ],
)
def test_known_answers(key, counter, answer):
    words = philox(key, (torch.tensor([counter]),) * 4)
    assert " ".join(f"{int(word):08x}" for word in words) == answer


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -5])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_the_kernels_mask_is_pytorchs(device, seed, p):
    seed = torch.tensor(seed, device=device)
    mask = torch.empty(4, 64, dtype=torch.int8, device=device)
    mask_kernel[(1,)](mask, seed, 3, 128, p, 64, ROWS=4, COLS=64)
    assert torch.equal(mask.bool(), dropout_mask(seed, 7, 192, p)[3:, 128:])


def test_fours_of_memory():
    """Rows of 5: the second begins with the second element of a four, the third with the third."""
    seed = torch.tensor(3)
    fours = dropout_mask(seed, 3, 8, 0.5)
    right = torch.stack([fours[row, row : row + 5] for row in range(3)])
    assert torch.equal(dropout_mask(seed, 3, 5, 0.5), right)
    assert not torch.equal(fours[:, :5], right)


def test_rows_past_two_to_the_32_have_masks_of_their_own(device):
    masks = torch.empty(2, 1, 64, dtype=torch.int8, device=device)
    for mask, row in zip(masks, (5, 2**32 + 5), strict=True):
        mask_kernel[(1,)](mask, torch.tensor(1, device=device), row, 0, 0.5, 64, ROWS=1, COLS=64)
    assert not torch.equal(masks[0], masks[1])


def test_the_share_dropped_is_p(device):
    mask = dropout_mask(new_seed(device), 1000, 1000, 0.3)
    assert abs(mask.float().mean().item() - 0.7) < 5 * (0.21 / 1e6) ** 0.5
    for axis in (0, 1):  # neither rows nor columns are alike
        assert mask.float().mean(dim=axis).std().item() == pytest.approx((0.21 / 1000) ** 0.5, rel=0.2)


def test_torchs_seed_governs_it(device):
    torch.manual_seed(3)
    first, second = new_seed(device), new_seed(device)
    torch.manual_seed(3)
    assert new_seed(device) == first != second
