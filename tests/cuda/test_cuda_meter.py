"""Bytes, sectors, bank conflicts and hazards of CUDA C++, counted by hand."""

import json
import time

import pytest
import torch

from helpers.instruments import cuda_kernel, measure

N = 4096
COPY = """
__global__ void copy(const float* x, float* out, int stride, int shift) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i * stride + shift];
}
__global__ void copy4(const float4* x, float4* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = x[i];
}
__global__ void broadcast(const float* x, float* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x];
}"""


@pytest.mark.parametrize(
    ("stride", "shift", "sectors"), [(1, 0, 4), (2, 0, 8), (4, 0, 16), (8, 0, 32), (32, 0, 32), (1, 1, 5), (0, 3, 1)]
)
def test_sectors_of_a_stride(stride, shift, sectors):
    x, out = torch.randn(N * 32 + 8), torch.empty(N)
    traffic = measure(cuda_kernel(COPY, "copy")[N // 256, 256], x, out, stride, shift)
    requests = N // 32
    assert traffic.sectors_read == sectors * requests
    assert traffic.sectors_written == 4 * requests
    assert traffic.bytes_read == (4 * N if stride else 4 * requests)
    assert traffic.unique_read == (4 * N if stride else 4)
    assert traffic.launches == 1
    assert torch.equal(out, x[torch.arange(N) * stride + shift])


def test_four_numbers_a_thread_are_a_quarter_of_the_requests():
    x, out = torch.randn(N), torch.empty(N)
    traffic = measure(cuda_kernel(COPY, "copy4")[N // 1024, 256], x, out)
    assert (traffic.bytes_read, traffic.bytes_written, traffic.sectors_per_request) == (4 * N, 4 * N, 16)
    assert {name: moved.total for name, moved in traffic.by_tensor.items()} == {"x": 4 * N, "out": 4 * N}


def test_lines_are_those_of_the_source():
    kernel = cuda_kernel(COPY, "broadcast")
    traffic = measure(kernel[4, 64], torch.randn(4), torch.empty(256))
    assert {line for file, line in traffic.by_line if file == kernel.file} == {11}
    assert "out[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x];" in traffic.line_table()
    assert traffic.bytes_read == 4 * 8  # once a warp


TRANSPOSE = """
template <int WIDTH> __global__ void transpose(const float* x, float* out) {
  __shared__ float tile[32][WIDTH];
  tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
  __syncthreads();
  out[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
__global__ void vectors(const float4* x, float4* out, int stride) {
  __shared__ float4 tile[256];
  tile[threadIdx.x * stride] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x * stride];
}"""


@pytest.mark.parametrize(("width", "wavefronts"), [(32, 32 + 32 * 32), (33, 32 + 32)])
def test_padding_removes_the_bank_conflicts_of_a_transpose(width, wavefronts):
    x, out = torch.randn(32, 32), torch.empty(32, 32)
    traffic = measure(cuda_kernel(TRANSPOSE, f"transpose<{width}>")[1, (32, 32)], x, out)
    assert torch.equal(out, x.T)
    assert (traffic.shared_requests, traffic.shared_wavefronts) == (64, wavefronts)
    assert traffic.bank_conflicts == wavefronts - 64
    assert not traffic.hazards


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 4), (2, 8), (8, 32)])
def test_sixteen_bytes_a_lane_are_served_a_quarter_warp_at_a_time(stride, wavefronts):
    x, out = torch.randn(32, 4), torch.empty(32, 4)
    traffic = measure(cuda_kernel(TRANSPOSE, "vectors")[1, 32], x, out, stride)
    assert torch.equal(out, x)
    assert traffic.shared_wavefronts == 2 * wavefronts


HAZARDS = {
    "out-of-bounds store": "out[threadIdx.x + 1] = 1;",
    "out-of-bounds read": "out[threadIdx.x] = x[threadIdx.x + 64];",
    "misaligned read": "out[threadIdx.x] = ((const float2*)(x + 1))->y + ((const float2*)(x + 1))->x;",
    "race": "s[threadIdx.x] = x[threadIdx.x]; out[threadIdx.x] = s[threadIdx.x ^ 32];",
    "uninitialised read": "if (threadIdx.x) s[threadIdx.x] = 1; __syncthreads(); out[threadIdx.x] = s[0];",
    "barrier not reached by all threads": "if (threadIdx.x < 40) __syncthreads(); out[threadIdx.x] = 1;",
    "wrong mask": "out[threadIdx.x] = __shfl_xor_sync(0xffff, x[threadIdx.x], 1);",
    "shuffle from an absent lane": "if (threadIdx.x % 2) __shfl_xor_sync(__activemask(), x[threadIdx.x], 1);",
}
SOUND = {
    "barrier between": "s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); out[threadIdx.x] = s[threadIdx.x ^ 32];",
    "warp barrier between": "s[threadIdx.x] = x[threadIdx.x]; __syncwarp(); out[threadIdx.x] = s[threadIdx.x ^ 1];",
    "threads that have returned": "if (threadIdx.x >= 40) return; __syncthreads(); out[threadIdx.x] = 1;",
    "own element": "s[threadIdx.x] = x[threadIdx.x]; out[threadIdx.x] = s[threadIdx.x];",
    "same value": "s[0] = 1; __syncthreads(); out[threadIdx.x] = s[0];",
    "atomics": "if (!threadIdx.x) s[0] = 0; __syncthreads(); atomicAdd(s, 1.f); __syncthreads(); *out = s[0];",
    "reads by all": "s[threadIdx.x] = 1; __syncthreads(); out[threadIdx.x] = s[0] + s[5]; __syncthreads(); s[0] = 2;",
    "a shuffle in a branch": "if (threadIdx.x < 32) out[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 1);",
}


def metered(statements):
    source = f"""__global__ void k(const float* x, float* out) {{
      __shared__ float s[64];
      {statements}
    }}"""
    return measure(cuda_kernel(source, "k")[3, 64], torch.randn(64), torch.empty(64))


@pytest.mark.parametrize("kind", HAZARDS)
def test_planted_fault_is_found_and_no_other(kind):
    hazards = metered(HAZARDS[kind]).hazards
    assert [hazard.kind for hazard in hazards] == [kind]
    assert hazards[0].line == 3
    assert "thread (" in str(hazards[0])


@pytest.mark.parametrize("name", SOUND)
def test_sound_kernel_has_no_hazard(name):
    assert metered(SOUND[name]).hazards == ()


HALF = 'asm volatile("bar.sync %0, 64;" :: "r"(1 + t / 64));'
EIGHT = "__syncwarp(0xffu << (t & 24));"
READ = "out[t] = s[t ^ {}];"
PARTS = {
    "the warps of a barrier": (HALF + READ, 32, 64),
    "the lanes of a mask": (EIGHT + READ, 4, 8),
    "lanes ordered by way of others": (
        "__syncwarp(t & 16 ? 0xffff0000 : 0xffff); if ((t & 31) > 7 && (t & 31) < 24) __syncwarp(0xffff00);"
        " if ((t & 31) == 20) out[t] = s[t ^ {}];",
        16,
        48,
    ),
    "a write after reads of one's own lanes": ("__syncwarp(); out[t] = s[t ^ 1]; " + EIGHT + "s[t ^ {}] = 2;", 3, 9),
    "a write after reads of one's own warps": (
        "__syncthreads(); out[t] = s[t ^ 1]; " + HALF + "s[t ^ {}] = 2;",
        32,
        64,
    ),
}


@pytest.mark.parametrize(("waited", "kinds"), [(64, ["race"]), (96, [])])
def test_a_write_that_one_of_several_readers_is_not_ordered_before(waited, kinds):
    """Two warps read a number, and a third waits for one or for both of them before it changes the number."""
    source = f"""__global__ void k(float* out) {{
      __shared__ float s[1];
      int t = threadIdx.x;
      if (!t) s[0] = 1;
      __syncthreads();
      if (t >= 32) out[t] = s[0];
      if (t < 32 || t >= {96 - waited + 32}) asm volatile("bar.sync 1, {waited};" ::: "memory");
      if (!t) s[0] = 5;
      __syncthreads();
      out[t] += s[0];
    }}"""
    found = measure(cuda_kernel(source, "k")[2, 96], torch.zeros(96)).hazards
    assert [hazard.kind for hazard in found if "shared" in hazard.where] == kinds


@pytest.mark.parametrize("name", PARTS)
def test_a_barrier_of_some_threads_orders_those_only(name):
    text, ordered, racing = PARTS[name]
    for apart, kinds in ((ordered, []), (racing, ["race"])):
        source = f"""__global__ void k(float* out) {{
          __shared__ float s[128];
          int t = threadIdx.x;
          s[t] = t;
          {text.format(apart)}
        }}"""
        found = measure(cuda_kernel(source, "k")[2, 128], torch.zeros(128)).hazards
        # All blocks write `out`: the same values, which is no race.
        assert [hazard.kind for hazard in found] == kinds, apart


def test_a_shuffle_from_a_lane_that_its_mask_does_not_name():
    for distance, kinds in ((1, []), (16, ["shuffle from an absent lane"])):
        shuffle = (
            f"out[threadIdx.x] = __shfl_xor_sync(threadIdx.x & 16 ? 0xffff0000 : 0xffff, x[threadIdx.x], {distance});"
        )
        assert [hazard.kind for hazard in metered(shuffle).hazards] == kinds


def test_a_mask_elects_one_of_its_own_lanes():
    source = """__global__ void k(int* out) {
      unsigned mask = threadIdx.x & 16 ? 0xffff0000 : 0xffff;
      asm volatile("{ .reg .pred p; elect.sync %0|p, %1; }" : "=r"(out[threadIdx.x]) : "r"(mask));
    }"""
    out = torch.empty(32, dtype=torch.int32)
    cuda_kernel(source, "k")[1, 32](out)
    assert out.tolist() == [0] * 16 + [16] * 16


def test_two_values_stored_at_once_race():
    found = metered("s[threadIdx.x / 2] = threadIdx.x; __syncthreads(); out[threadIdx.x] = s[threadIdx.x / 2];").hazards
    assert [hazard.kind for hazard in found] == ["race"]


def test_write_after_read_races_too():
    found = metered(
        "s[threadIdx.x] = 1; __syncthreads(); out[threadIdx.x] = s[63 - threadIdx.x]; s[threadIdx.x] = 2;"
    ).hazards
    assert [hazard.kind for hazard in found] == ["race"]


def test_uninitialised_memory_of_the_call_itself():
    kernel = cuda_kernel(COPY, "copy4")

    def copied(x):
        half, out = torch.empty_like(x), torch.empty_like(x)
        kernel[1, N // 8](x, half)
        kernel[1, N // 4](half, out)
        return out

    (hazard,) = measure(copied, torch.randn(N)).hazards
    assert hazard.kind == "uninitialised read"
    assert f"[{N // 2}]" in hazard.where


def test_what_strays_under_the_meter_touches_nothing():
    whole = torch.zeros(64)
    kernel = cuda_kernel("__global__ void k(float* x) { x[threadIdx.x] = 1; }", "k")
    traffic = measure(kernel[1, 64], whole[:32])
    assert whole.sum() == 32
    assert traffic.bytes_written == 128


def test_a_device_variable_that_is_written_counts_and_a_table_does_not():
    kernel = cuda_kernel(
        """
__device__ float scratch[1024];
__device__ const float table[4] = {1, 2, 3, 4};
__global__ void through(const float* x, float* y) {
  scratch[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x] * table[threadIdx.x % 4];
}""",
        "through",
    )
    x, y = torch.randn(256), torch.empty(256)
    traffic = measure(kernel[1, 256], x, y)
    assert torch.equal(y, x.flip(0) * torch.tensor([1.0, 2, 3, 4]).repeat(64))
    assert (traffic.bytes_read, traffic.bytes_written) == (2 * x.nbytes, 2 * x.nbytes)


def test_bank_conflicts_are_printed_and_stand_at_their_lines():
    kernel = cuda_kernel(
        """
__global__ void column(float* y) {
  __shared__ float tile[32 * 32];
  tile[threadIdx.x * 32] = threadIdx.x;
  __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x * 32];
}""",
        "column",
    )
    traffic = measure(kernel[1, 32], torch.empty(32))
    assert "shared memory: 2 requests, 64 wavefronts, 62 bank conflicts" in str(traffic)
    header, *lines = str(traffic.line_table()).splitlines()
    assert header.endswith("wavefronts  bank conflicts")
    assert [line.split()[-2:] for line in lines if "tile[" in line] == [["32", "31"]] * 2


SGEMM = """
__global__ void sgemm(const float* A, const float* B, float* C, int n) {
  __shared__ float a[32][32], b[32][32];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 32) {
    a[y][x] = A[row * n + k + x];
    b[y][x] = B[(k + y) * n + column];
    __syncthreads();
    for (int j = 0; j < 32; j++) sum += a[y][j] * b[j][x];
    __syncthreads();
  }
  C[row * n + column] = sum;
}"""


def test_metering_a_matmul_takes_at_most_four_times_the_plain_run():
    a, b, c = torch.randn(256, 256), torch.randn(256, 256), torch.empty(256, 256)
    launch = cuda_kernel(SGEMM, "sgemm")[(8, 8), (32, 32)]

    def seconds(run):
        start = time.process_time()
        run()
        return time.process_time() - start

    launch(a, b, c, 256)
    plain = min(seconds(lambda: launch(a, b, c, 256)) for _ in range(3))
    metered = min(seconds(lambda: measure(launch, a, b, c, 256)) for _ in range(3))
    assert metered < 4 * plain, f"{plain:.2f} s plain, {metered:.2f} s metered"


@pytest.mark.parametrize("reads", [1, 5])
def test_a_read_is_remembered_until_the_next_barrier(monkeypatch, reads):
    monkeypatch.setattr("helpers.instruments.cuda.sanitizer.MOST_READS", 3)
    read = "".join(f"v += s[(threadIdx.x + {at}) % 64];" for at in range(1, reads + 1))
    for between, races in (("", ["race"]), ("__syncthreads();", [])):
        found = metered(
            f"float v = 0; s[threadIdx.x] = 1; __syncthreads(); {read} {between} s[threadIdx.x] = v;"
            " out[threadIdx.x] = v;"
        ).hazards
        assert [hazard.kind for hazard in found] == races


def test_blocks_that_reach_a_barrier_apart_keep_their_own_reads():
    found = metered(
        "s[threadIdx.x] = 1; __syncthreads(); float v = s[threadIdx.x ^ 32]; if (blockIdx.x == 1) __syncthreads();"
        " s[threadIdx.x] = v;"
    ).hazards
    assert [hazard.kind for hazard in found] == ["race"]
    assert found[0].program in ((0, 0, 0), (2, 0, 0))


def test_bytes_are_numbers_that_json_takes():
    source = "__global__ void k(const float* x, float* y) { int i = threadIdx.x; if (i & 5) y[i] = x[i]; }"
    traffic = measure(cuda_kernel(source, "k")[1, 64], torch.zeros(64), torch.zeros(64))
    assert json.loads(json.dumps([traffic.bytes_read, traffic.bytes_written, traffic.sectors_read])) == [192, 192, 8]


@pytest.mark.parametrize(
    ("statement", "stale"),
    [
        ("y[i] = x[i]; __syncthreads(); y[64 + i] = __ldg(y + (i ^ 32));", True),
        ("y[i] = x[i]; __syncthreads(); y[64 + i] = y[i ^ 32];", False),
        ("y[i] = __ldg(y + i) + x[i];", False),  # read before it is stored
        ("y[i] = __ldg(x + i);", False),
    ],
)
def test_a_load_by_ldg_of_what_the_launch_stores_is_stale(statement, stale):
    source = f"__global__ void k(const float* x, float* y) {{ int i = threadIdx.x; {statement} }}"
    found = measure(cuda_kernel(source, "k")[1, 64], torch.zeros(64), torch.zeros(128)).hazards
    assert [each.kind for each in found] == ["stale read"] * stale
    assert all("y[32], which this launch stores" in str(each) for each in found)
