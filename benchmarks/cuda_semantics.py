"""Record a GPU's results, counters and sanitizer verdicts for the kernels of tests/cuda/programs.py.

    python benchmarks/cuda_semantics.py OUT

This writes OUT/<gpu>_cuda.npz (the tensors after each launch, as raw bytes) and OUT/<gpu>_cuda.json (GPU, versions,
sectors and wavefronts from Nsight Compute, compute-sanitizer on planted faults). Copy both to tests/data, where
tests/cuda/test_cuda_record.py compares the executor with them. It takes about two minutes.
"""

import csv
import glob
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cuda")]

from programs import FAULTS, PROGRAMS, TRAFFIC, CudaProgram, fault_source  # noqa: E402

from benchmarks.provenance import file_name  # noqa: E402
from helpers.instruments import cuda_kernel, this_device  # noqa: E402

COUNTERS = {
    "sectors_read": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "requests_read": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "sectors_written": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "requests_written": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "shared_wavefronts_read": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_wavefronts_written": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_conflicts_read": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_conflicts_written": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared_requests_read": "smsp__inst_executed_op_shared_ld.sum",
    "shared_requests_written": "smsp__inst_executed_op_shared_st.sum",
}
TOOLS = ("memcheck", "racecheck", "synccheck")


def digest(program: CudaProgram) -> str:
    """Return the digest of source and inputs: records of other versions are not compared."""
    whole = hashlib.sha256(program.source.encode())
    for argument in program.arguments:
        whole.update(raw(argument).tobytes() if isinstance(argument, torch.Tensor) else repr(argument).encode())
    return whole.hexdigest()[:16]


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def run(program: CudaProgram) -> list[torch.Tensor]:
    """Launch on the GPU, and return the tensors."""
    arguments = [each.cuda() if isinstance(each, torch.Tensor) else each for each in program.arguments]
    cuda_kernel(program.source, program.name, device=this_device())[program.grid, program.block, program.shared](
        *arguments
    )
    torch.cuda.synchronize()
    return [each for each in arguments if isinstance(each, torch.Tensor)]


def results(arrays: dict) -> dict:
    """Fill `arrays` with the changed tensors; return each program's digest, and the errors."""
    found = {}
    for name, program in PROGRAMS.items():
        try:
            tensors = run(program)
        except Exception as error:  # one failing kernel must not stop the others
            found[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(name, found[name]["error"], flush=True)
            continue
        given = [each for each in program.arguments if isinstance(each, torch.Tensor)]
        for place, (before, after) in enumerate(zip(given, tensors, strict=True)):
            if not np.array_equal(raw(before), raw(after)):
                arrays[f"{name}/{place}"] = raw(after)
        found[name] = {"digest": digest(program)}
    return found


def counters() -> dict:
    """Return Nsight Compute's counters of each traffic program; {"error": ...} if it does not run."""
    ncu = shutil.which("ncu") or next(iter(sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu"), reverse=True)), None)
    if ncu is None:
        return {"error": "no ncu"}
    names = "|".join(program.name for program in TRAFFIC)
    command = [
        ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--kernel-name", f"regex:^({names})$", "--metrics", ",".join(COUNTERS.values()),
        sys.executable, __file__, "--only-traffic",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        return {"error": "ncu took more than 180 s"}
    rows = list(csv.reader(io.StringIO("\n".join(row for row in done.stdout.splitlines() if row.startswith('"')))))
    if len(rows) < 3:
        return {"error": (done.stderr + done.stdout)[-800:]}
    header = rows[0]
    table = {}
    for row in rows[2:]:  # the second names the units
        values = dict(zip(header, row, strict=True))
        table[values["Kernel Name"].split("(")[0]] = {
            name: float(values[metric].replace(",", "")) for name, metric in COUNTERS.items() if values.get(metric)
        }
    return table


MAIN = """
#include <cstdio>
#include <cstdlib>
int main(int, char** arguments) {
  float *x, *out;
  cudaMalloc(&x, 64 * sizeof(float)); cudaMalloc(&out, 64 * sizeof(float));
  cudaMemset(x, 0, 64 * sizeof(float)); cudaMemset(out, 0, 64 * sizeof(float));
  switch (atoi(arguments[1])) {
%s
  }
  printf("end: %%s\\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
"""


def verdicts() -> dict:
    """Return compute-sanitizer's report on each planted fault, by tool; {"error": ...} if it does not run."""
    if not shutil.which("nvcc") or not shutil.which("compute-sanitizer"):
        return {"error": "no nvcc or no compute-sanitizer"}
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "faults.cu", Path(folder) / "faults"
        cases = "\n".join(
            f"    case {place}: fault_{name}<<<3, 64>>>(x, out); break;" for place, name in enumerate(FAULTS)
        )
        source.write_text("\n".join(map(fault_source, FAULTS)) + MAIN % cases)
        built = subprocess.run(
            ["nvcc", "-arch=sm_90", "-lineinfo", "-o", binary, source], capture_output=True, text=True
        )
        if built.returncode:
            return {"error": built.stderr[-800:]}
        found = {}
        for place, name in enumerate(FAULTS):
            for tool in TOOLS:
                command = ["compute-sanitizer", "--tool", tool, "--print-limit", "2", str(binary), str(place)]
                try:
                    said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
                except subprocess.TimeoutExpired:
                    said = "took more than 30 s"
                lines = [
                    row.split("=========", 1)[1].strip() for row in said.splitlines() if row.startswith("=========")
                ]
                found[f"{name}/{tool}"] = [row for row in lines if row and not row.startswith("COMPUTE-SANITIZER")][:4]
                found[f"{name}/{tool}"] += lines[-1:]
        return found


def main(out: Path) -> None:
    began = time.time()
    out.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    record = {
        "gpu": torch.cuda.get_device_name(),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "programs": results(arrays),
    }
    np.savez_compressed(out / f"{file_name(record['gpu'])}_cuda.npz", **arrays)
    for part, make in (("counters", counters), ("sanitizer", verdicts)):
        print(f"{time.time() - began:.0f} s: {part}", flush=True)
        record[part] = make()
        (out / f"{file_name(record['gpu'])}_cuda.json").write_text(json.dumps(record, indent=1))
    failed = [name for name, found in record["programs"].items() if "error" in found]
    print(f"{len(PROGRAMS)} programs, {len(failed)} failed {failed}; {time.time() - began:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:] == ["--only-traffic"]:
        for each in TRAFFIC:
            run(each)
    else:
        main(Path(sys.argv[1]))
