"""The catalogue against arithmetic units and clocks, and what a wrong entry or name says."""

import time

import pytest
import torch

from helpers.instruments import devices as module
from helpers.instruments.devices import (
    DEVICES,
    FMA_PER_CLOCK,
    Devices,
    PeakFlops,
    gpu_from_driver,
    last_level_cache,
    this_device,
)
from helpers.instruments.roofline import Roofline, measured_device

# Vendors round: 0.75 % covers all but these.
PEAK_TOLERANCE = {("L40S", "fp16"): 0.0125, ("L40S", "bf16"): 0.0125, ("L4", "tf32"): 0.01, ("B200", "tf32"): 0.025}
PEAK_TOLERANCE |= {("B300", "tf32"): 0.025}
BANDWIDTH_TOLERANCE = {"H100 PCIe": 0.02}  # "2 TB/s" on the datasheet

ENTRY = """
["RTX A6000"]
model = "RTX A6000"
driver_name = "NVIDIA RTX A6000"
compute_capability = "8.6"
sms = 84
peak_tflops = { fp32 = 38.7, tf32 = 77.4, fp16 = 154.8, bf16 = 154.8 }
sm_clock_mhz = 1800
bandwidth_gb_s = 768
memory_bus_bits = 384
memory_clock_mhz = 8001
memory_gib = 48
l2_mib = 6
source = "NVIDIA RTX A6000 datasheet"
"""


def peaks_that_fail(device):
    return [
        dtype
        for dtype, peak in device.peak_flops.items()
        if abs(device.peak_from_clock(dtype) / peak - 1) > PEAK_TOLERANCE.get((device.name, dtype), 0.0075)
    ]


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_peaks_follow_from_units_and_clock(device):
    assert device.source
    assert peaks_that_fail(device) == []


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_bandwidth_follows_from_bus_and_clock(device):
    assert device.bandwidth_from_clock == pytest.approx(
        device.memory_bandwidth, rel=BANDWIDTH_TOLERANCE.get(device.name, 0.0025)
    )


def test_the_self_test_finds_a_high_peak_and_a_wrong_bandwidth(tmp_path):
    devices = Devices()
    file = tmp_path / "gpus.toml"
    file.write_text(ENTRY.replace("fp16 = 154.8", "fp16 = 194.8").replace("= 768", "= 1008"))
    devices.load(file)
    assert peaks_that_fail(devices["RTX A6000"]) == ["fp16"]
    assert abs(devices["RTX A6000"].bandwidth_from_clock / devices["RTX A6000"].memory_bandwidth - 1) > 0.2


def test_every_value_of_the_h200():
    h200 = DEVICES["H200"]
    assert (h200.compute_capability, h200.sms, h200.memory_bandwidth) == ((9, 0), 132, 4814e9)
    peaks = {"fp32": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1979e12}
    assert h200.peak_flops == pytest.approx(peaks)
    assert (h200.memory, h200.l2_cache) == (141 * 2**30, 60 * 2**20)


def test_a_missing_peak_is_an_error_never_another_dtype():
    with pytest.raises(ValueError, match="V100 has no bf16 peak: choose from fp32, fp16") as error:
        DEVICES["V100"].peak_flops["bf16"]
    assert "\n" not in str(error.value)
    assert DEVICES["V100"].peak_flops.get("bf16") is None


def test_an_unknown_device_lists_the_names_and_the_nearest():
    with pytest.raises(ValueError, match="the nearest is 'H100 PCIe'") as error:
        DEVICES["h100pcie"]
    message = str(error.value)
    assert all(name in message for name in DEVICES)
    assert "\n" not in message


def test_a_gpu_of_ones_own(tmp_path):
    devices = Devices()
    file = tmp_path / "gpus.toml"
    file.write_text(ENTRY)
    devices.load(file)
    assert peaks_that_fail(devices["RTX A6000"]) == []
    assert devices["RTX A6000"].memory_bandwidth == 768e9


def test_a_measured_l2_bandwidth_comes_with_its_source(tmp_path):
    devices = Devices()
    file = tmp_path / "gpus.toml"
    file.write_text(ENTRY + 'l2_bandwidth_gb_s = 2000\nl2_bandwidth_source = "read-only loop over 3 MiB, 2026-11-21"')
    devices.load(file)
    assert devices["RTX A6000"].l2_bandwidth == 2000e9
    assert devices["RTX A6000"].source.endswith("L2 bandwidth: read-only loop over 3 MiB, 2026-11-21")
    for device in DEVICES.values():
        assert (device.l2_bandwidth is None) == ("L2 bandwidth" not in device.source)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY + "l2_bandwidth_gb_s = 2000", "lacks l2_bandwidth_source: an L2 bandwidth and its source go together"),
        (ENTRY + "l2_bandwidth_gb_s = 0\nl2_bandwidth_source = 's'", "l2_bandwidth_gb_s is 0"),
        (ENTRY + "l2_bandwidth_gb_s = 1\nl2_bandwidth_source = 1", "l2_bandwidth_source is 1: it must be a string"),
        ("[", "is not a TOML file"),
        ("RTX = 1", "RTX is not a table"),
        (ENTRY.replace("sms = 84", ""), "lacks sms"),
        (ENTRY + "cores = 3", "unknown keys cores"),
        (ENTRY.replace("sms = 84", "sms = -84"), "sms is -84"),
        (ENTRY.replace("sms = 84", 'sms = "84"'), "sms is '84'"),
        (ENTRY.replace("sms = 84", "sms = 84.5"), "sms is 84.5: it must be a whole number"),
        (ENTRY.replace("memory_gib = 48", "memory_gib = inf"), "memory_gib is inf: it must be a number above 0"),
        (ENTRY.replace("fp16 = 154.8", "fp16 = 309.7"), "peak_tflops of fp16 is 2 times what its SMs and clock can do"),
        (ENTRY.replace("memory_clock_mhz = 8001", "memory_clock_mhz = 16002"), "bandwidth_gb_s is 0.5 times what"),
        (ENTRY.replace("bandwidth_gb_s = 768", "bandwidth_gb_s = 6144"), "bandwidth_gb_s is 8 times what"),
        (ENTRY.replace('"8.6"', '"86"'), "compute_capability is '86'"),
        (ENTRY.replace('"8.6"', "8.6"), "compute_capability is 8.6: it must be a string"),
        (ENTRY.replace("fp32 = 38.7, ", "fp32 = 0, "), "peak_tflops is"),
    ],
)
def test_a_bad_device_file_is_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "gpus.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"gpus\.toml") as error:
        Devices().load(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_device_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no device file at"):
        Devices().load(tmp_path / "none.toml")


H200_AS_THE_DRIVER_TELLS = {
    "name": "NVIDIA H200",
    "compute_capability": (9, 0),
    "sms": 132,
    "memory": 150_000_000_000,
    "l2_cache": 60 * 2**20,
    "sm_clock": 1.98e9,
    "memory_bus_width": 6016,
    "memory_clock": 3.201e9,
}


def test_a_known_gpu_takes_its_peaks_from_the_catalogue_and_the_rest_from_the_driver():
    device = gpu_from_driver(**H200_AS_THE_DRIVER_TELLS)
    assert (device.name, device.memory) == ("H200", 150_000_000_000)
    assert device.peak_flops["bf16"] == 989.4e12
    assert device.memory_bandwidth == pytest.approx(4814e9, rel=1e-3)


def test_a_slice_of_a_known_gpu_is_not_that_gpu():
    device = gpu_from_driver(**H200_AS_THE_DRIVER_TELLS | {"name": "NVIDIA H200 MIG 1g.18gb", "sms": 16})
    assert device.peak_flops["fp32"] == pytest.approx(16 * 128 * 2 * 1.98e9)


def test_the_same_gpu_at_another_clock_has_other_peaks():
    slow = gpu_from_driver(**H200_AS_THE_DRIVER_TELLS | {"sm_clock": 1.2e9})
    assert slow.peak_flops["bf16"] == pytest.approx(132 * 2048 * 2 * 1.2e9)
    assert measured_device(slow) is None  # the record is of a GPU at full clock
    same = gpu_from_driver(**H200_AS_THE_DRIVER_TELLS | {"sm_clock": 1.965e9})
    assert (same.name, same.peak_flops["bf16"]) == ("H200", 989.4e12)
    assert measured_device(same) is not None


def test_a_turing_without_tensor_cores_has_no_peak_for_them():
    """GTX 1660 Ti: TU116, "lacking RT cores and tensor cores"; a T4 is of the same compute capability."""
    facts = H200_AS_THE_DRIVER_TELLS | {"compute_capability": (7, 5), "sms": 24, "sm_clock": 1.77e9}
    for name in ("NVIDIA GeForce GTX 1660 Ti", "NVIDIA GeForce GTX 1650", "NVIDIA T600 Laptop GPU", "Quadro T1000"):
        assert list(gpu_from_driver(**facts | {"name": name}).peak_flops) == ["fp32"]
    for name in ("NVIDIA GeForce RTX 2060", "Tesla T4", "Quadro RTX 4000"):
        assert "fp16" in gpu_from_driver(**facts | {"name": name}).peak_flops


def test_clocks_that_the_driver_does_not_report_are_unknown():
    facts = H200_AS_THE_DRIVER_TELLS | {"name": "NVIDIA GB10", "compute_capability": (12, 0), "sms": 48}
    no_memory_clock = gpu_from_driver(**facts | {"memory_clock": 0})
    assert (no_memory_clock.memory_bandwidth, no_memory_clock.memory_clock) == (None, None)
    with pytest.raises(
        ValueError, match="no memory bandwidth of NVIDIA GB10 is known, as its driver reports no memory"
    ):
        Roofline(no_memory_clock, "fp32")
    no_clock = gpu_from_driver(**facts | {"sm_clock": 0})
    assert (dict(no_clock.peak_flops), no_clock.special_rate, no_clock.shared_bandwidth) == ({}, None, None)
    with pytest.raises(ValueError, match="has no fp16 peak: add them from a TOML file"):
        Roofline(no_clock, "fp16")
    known = gpu_from_driver(**H200_AS_THE_DRIVER_TELLS | {"memory_clock": 0, "sm_clock": 0})
    assert (known.memory_bandwidth, known.sm_clock) == (4814e9, 1.98e9)


def test_shared_memory_of_turing_serves_half_as_much_per_clock():
    """NVIDIA's GA102 whitepaper: 128 bytes per clock and SM "versus 64 bytes/clock in Turing"."""
    assert DEVICES["T4"].shared_bandwidth == pytest.approx(40 * 64 * 1.59e9)
    assert DEVICES["A10"].shared_bandwidth == pytest.approx(72 * 128 * 1.695e9)


def test_each_gpu_of_a_machine_is_asked_by_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "_gpu", lambda index: ("first", "second")[index])
    for index, name in enumerate(("first", "second")):
        monkeypatch.setattr(torch.cuda, "current_device", lambda index=index: index)
        assert this_device() == name


def test_a_geforce_halves_its_tensor_cores_and_an_unknown_generation_has_no_peaks():
    facts = H200_AS_THE_DRIVER_TELLS | {"name": "NVIDIA GeForce RTX 4070", "compute_capability": (8, 9), "sms": 46}
    geforce = gpu_from_driver(**facts)
    assert geforce.peak_flops["fp16"] == pytest.approx(46 * 256 * 2 * 1.98e9)
    assert geforce.peak_flops["fp32"] == pytest.approx(46 * 128 * 2 * 1.98e9)
    future = gpu_from_driver(**facts | {"compute_capability": (99, 0)})
    with pytest.raises(ValueError, match="has no fp16 peak: add them from a TOML file"):
        future.peak_flops["fp16"]


def test_rates_cover_the_catalogue():
    assert {device.compute_capability for device in DEVICES.values()} == set(FMA_PER_CLOCK)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_this_cpu_is_measured_once_and_pretends_nothing():
    module._this_cpu.cache_clear()
    start = time.process_time()
    cpu = this_device()
    assert time.process_time() - start < 20  # of one core; about 0.7 s on two free ones
    assert this_device() is cpu
    assert (cpu.compute_capability, cpu.sms, cpu.l2_cache) == (None, None, None)
    assert 1e9 < cpu.memory_bandwidth < 1e13
    assert 1e9 < cpu.peak_flops["fp32"] < 1e14
    assert list(cpu.peak_flops) == ["fp32"]
    with pytest.raises(ValueError, match="no known fp32 rate per clock"):
        cpu.peak_from_clock("fp32")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_this_gpu_is_what_the_driver_says():
    gpu = this_device()
    assert gpu.driver_name == torch.cuda.get_device_name()
    assert gpu.memory_bandwidth > 1e11
    assert gpu.peak_flops["fp32"] > 1e12


def test_peaks_of_nothing_say_how_to_add_them():
    with pytest.raises(ValueError, match=r"DEVICES.load\(path\)"):
        PeakFlops("new", {})["fp32"]


def test_fp64_is_half_of_fp32_or_a_64th_and_tensor_cores_double_it():
    """NVIDIA's data sheets: V100 7.8, A100 19.5 and H100 67 TFLOP/s (tensor cores), L4 0.47."""
    expected = {"V100": 7.8e12, "A100": 19.5e12, "H100": 67e12, "L4": 0.47e12}
    assert {name: DEVICES[name].double_rate for name in expected} == pytest.approx(expected, rel=0.02)


def test_the_last_level_caches_of_all_cpus_count_once(tmp_path):
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        for index, level, size in ((0, 1, 32), (3, 3, 32768)):
            folder = tmp_path / f"cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", f"{size}K"), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    (tmp_path / "cpu0/cache/index9").mkdir()  # one that says nothing
    assert last_level_cache(tmp_path) == 64 * 2**20
    assert last_level_cache(tmp_path / "none") == 0
