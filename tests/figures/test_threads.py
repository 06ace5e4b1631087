"""The grid's threads against a kernel that says who it is and what it read; the picture and its explorer."""

import re

import pytest
import torch

from helpers.figures.memory.thread_addresses import BLOCK, BLOCKS, STRIDES, THREADS, ThreadsExplorer, load_of
from helpers.instruments import cuda_kernel, measure

WHO = """
__global__ void who(const float* x, int* block, int* warp, int* lane, float* read, int stride) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  block[i] = blockIdx.x, warp[i] = threadIdx.x / 32, lane[i] = threadIdx.x % 32;
  read[i] = x[i * stride];
}"""


@pytest.mark.parametrize("stride", STRIDES)
def test_what_is_told_of_a_thread_is_what_a_kernel_finds(stride):
    threads = BLOCKS * BLOCK
    x = torch.arange(threads * stride, dtype=torch.float32)
    block, warp, lane = torch.empty(3, threads, dtype=torch.int32)
    read = torch.empty(threads)
    found = measure(cuda_kernel(WHO, "who")[BLOCKS, BLOCK], x, block, warp, lane, read, stride)
    explorer = ThreadsExplorer(stride=stride)
    sectors = found.sectors_read // (threads // 32)
    for thread in THREADS:
        explorer.thread.value = thread
        assert f"(block {block[thread]}, warp {warp[thread]}, lane {lane[thread]})" in explorer.text
        assert f"reads x[{read[thread]:.0f}], byte {4 * read[thread]:.0f}" in explorer.text
        assert f"fetches {sectors} sectors" in explorer.text


def test_every_frame_is_that_of_its_sliders_and_draws_what_is_fetched():
    explorer = ThreadsExplorer()
    frames = explorer._stage.data["frames"]
    assert len(frames) == len(STRIDES) * len(THREADS)
    for stride, thread in ((1, 0), (3, 35), (32, 255)):
        explorer.stride.value, explorer.thread.value = stride, thread
        frame = frames[STRIDES.index(stride) * len(THREADS) + THREADS.index(thread)]
        assert frame["text"] == explorer.text == repr(explorer.chart())
        drawn = [path.count("M") for path in re.findall(r'<path d="([^"]*)"', frame["svg"])]
        assert drawn == [31, len(load_of(thread, stride).sectors), 31, 2]


def test_boxes_stand_where_the_axes_put_them_and_within_the_picture():
    explorer = ThreadsExplorer(stride=8, thread=35)
    figure = explorer.chart().figure
    frame = explorer._stage.data["frames"][STRIDES.index(8) * len(THREADS) + THREADS.index(35)]
    own = re.findall(r'<path d="M([0-9.]+) ([0-9.]+)', frame["svg"])[-1]
    x, y = figure.axes[0].transData.transform((3.08, 1.12))
    assert (float(own[0]), float(own[1])) == pytest.approx((x, figure.bbox.height - y), abs=0.06)
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= box.x0 < box.x1 <= width
    assert 0 <= box.y0 < box.y1 <= height


@pytest.mark.parametrize(("arguments", "name"), [({"stride": 5}, "stride"), ({"thread": 999}, "thread i")])
def test_bad_input_is_refused_in_one_line(arguments, name):
    with pytest.raises(ValueError, match=f"the {name} slider has no") as error:
        ThreadsExplorer(**arguments)
    assert "\n" not in str(error.value)
