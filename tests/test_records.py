"""Every record states when, on what and with what it was taken, and `make results` retakes each of them."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import fusion_choices, held_out, metered, profiles, provenance, retake, validate

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FILES = [*RESULTS.glob("*.json"), *RESULTS.glob("*_profiles/block.json")]
RECORDS = {path.relative_to(RESULTS).as_posix(): json.loads(path.read_text()) for path in sorted(FILES)}
# Taken before every record held them; may only shrink.
LACKING = {
    "h200_fusion.json": {"ceilings"},
    "h200_fusion_choices.json": {"ceilings"},
    "h200_profiles/block.json": {"ceilings"},
}
MEASURED = {"copy_bytes_per_second", "read_bytes_per_second"}


def lacks(record: dict) -> set[str]:
    """What a record does not say of each of its runs."""
    several = isinstance(record.get("runs"), list)
    runs = [{"gpu": record["gpu"], **one} for one in record["runs"]] if several else [record]
    missing = {part for one in runs for part in ("gpu", "date", "versions", "ceilings") if one.get(part) is None}
    for one in runs:
        if not {"python", "torch", "triton", "cuda"} <= one.get("versions", {}).keys():
            missing.add("versions")
        if one.get("versions", {}).get("cuda") and not one.get("ceilings", {}).keys() >= MEASURED:
            missing.add("ceilings")  # a CPU's run has none
    return missing


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_when_and_with_what_it_was_taken(name):
    assert lacks(RECORDS[name]) <= LACKING.get(name, set())


@pytest.mark.parametrize("part", ["gpu", "date", "versions", "ceilings"])
def test_a_run_without_its_provenance_is_noticed(part):
    record = RECORDS["h200.json"]
    if part == "gpu":
        assert lacks({**record, "gpu": None}) >= {"gpu"}
    else:
        last = {name: value for name, value in record["runs"][-1].items() if name != part}
        assert lacks({**record, "runs": [*record["runs"][:-1], last]}) == {part}


CEILINGS = dict.fromkeys(
    ("copy_bytes_per_second", "read_bytes_per_second", "write_bytes_per_second", "bf16_matrix_flops_per_second"), 1.0
)


@pytest.fixture
def another_gpu(tmp_path, monkeypatch):
    """A machine with a GPU on which nothing takes any time; its records go to an empty folder."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA GeForce RTX 4090")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("kernels.interpreter.runtime.has_gpu", lambda: True)
    monkeypatch.setattr(provenance, "ceilings", lambda: CEILINGS)
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(profiles, "RESULTS", tmp_path)
    monkeypatch.setattr(held_out, "measure", lambda shapes: [])
    monkeypatch.setattr(metered, "rows", lambda device: [])
    monkeypatch.setattr(validate, "SECTIONS", {"times": list})
    monkeypatch.setattr(validate.hardware_counters, "command", lambda log: ["ncu"])
    monkeypatch.setattr("sys.argv", ["held_out"])
    return tmp_path


@pytest.mark.parametrize(
    ("write", "file"),
    [
        (lambda folder: held_out.main(), "geforce_rtx_4090_held_out.json"),
        (lambda folder: metered.main(), "geforce_rtx_4090_metered.json"),
        (lambda folder: validate.main([]), "geforce_rtx_4090_validation.json"),
        (
            lambda folder: profiles.take({**provenance.provenance(), "command": "", "tasks": {}}),
            "geforce_rtx_4090_profiles/block.json",
        ),
    ],
    ids=["held_out", "metered", "validate", "profiles"],
)
def test_what_is_written_on_another_gpu_has_its_name_and_lacks_nothing(another_gpu, write, file):
    write(another_gpu)
    assert lacks(json.loads((another_gpu / file).read_text())) == set()


def test_choices_of_fusion_are_timed_as_they_were_planned(another_gpu, monkeypatch):
    """The plan is that of the file it goes to, where there is one; the times stand beside it."""
    out = another_gpu / "geforce_rtx_4090_fusion_choices.json"
    out.write_text(json.dumps({"regions": {"mlp": [{"edges": []}]}}))
    monkeypatch.setattr(
        fusion_choices, "measure", lambda name, regions, small: [{**each, "gpu": {}} for each in regions]
    )
    fusion_choices.main(["--out", str(out)])
    record = json.loads(out.read_text())
    assert record["regions"] == {"mlp": [{"edges": [], "gpu": {}}]}
    assert lacks(record) == set()


def test_each_row_was_held_against_the_ceiling_of_its_own_run():
    record = RECORDS["h200.json"]
    for row in record["rows"]:
        ceilings = record["runs"][row["run"]]["ceilings"]
        kind = row["ceiling"]
        matrix = kind == "matrix"
        limit = ceilings["bf16_matrix_flops_per_second" if matrix else f"{kind}_bytes_per_second"]
        assert row["least_seconds"] == pytest.approx(row["flops" if matrix else "least_bytes"] / limit)
    for experiment in record["experiments"].values():
        assert 0 <= experiment["run"] < len(record["runs"])


def test_every_record_is_taken_again_by_a_step():
    written = {path.format(gpu="h200") for step in retake.STEPS for path in step.writes}
    of_others = {path.format(gpu="h100_80gb_hbm3") for step in retake.STEPS for path in step.writes}
    here = {path.relative_to(ROOT).as_posix() for path in (*RESULTS.iterdir(), *(ROOT / "tests/data").glob("h200*"))}
    # The driver's own answers, as docs/results.md says.
    assert here - written - of_others == {"tests/data/h200_occupancy.csv.gz"}
    # What a GPU launches is the same on either; the sweep, the held-out shapes and the public models are the H100's.
    kinds = ("held_out", "held_out_tiled", "metered", "models", "sweep")
    of_h100 = {f"benchmarks/results/h200_{kind}.json" for kind in kinds}
    assert {path for path in written - here if not path.endswith(".md")} == of_h100


@pytest.mark.parametrize("step", retake.STEPS, ids=lambda step: step.name)
def test_each_step_is_a_command_that_is_there(step):
    words = step.command.split()
    module = ROOT / words[1].replace(".", "/") if words[0] == "-m" else ROOT / words[0]
    if (module / "__main__.py").exists():  # a package
        source = "".join(path.read_text() for path in sorted(module.glob("*.py")))
    else:
        source = module.with_suffix(".py").read_text()
        assert '__name__ == "__main__"' in source
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []


def test_without_a_gpu_one_line_says_what_is_needed(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert retake.main([]) == 2
    told = capsys.readouterr().err
    assert told.startswith("results: this machine lacks an NVIDIA GPU that PyTorch can use")
    assert told.count("\n") == 1


def test_steps_run_in_order_and_stop_at_one_that_fails(monkeypatch, capsys):
    ran = []

    def run(command, env, **_):
        ran.append((command[1:], env.get("CUDA_VISIBLE_DEVICES")))
        return subprocess.CompletedProcess(command, int("source/claims.py" in command))

    monkeypatch.setattr(retake, "lacking", list)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA A100-SXM4-80GB")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(retake.subprocess, "run", run)
    assert retake.main(["--from", "cuda"]) == 1
    files = ["benchmarks/cuda_semantics.py", "-m", "source/fusion_proof.py", "source/build.py", "source/claims.py"]
    assert [command[0] for command, _ in ran] == files
    assert [hidden for _, hidden in ran] == [None, "", "", "", ""]
    assert "make results FROM=claims" in capsys.readouterr().err
    ran.clear()
    retake.main(["--from", "semantics"])
    assert ran[0][0] == ["tests/gpu_semantics.py", "tests/data/a100-sxm4-80gb_semantics.npz"]
