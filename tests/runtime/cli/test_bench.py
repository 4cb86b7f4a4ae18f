"""`ge-runtime bench`: on the CPU, and with phases on the simulated card."""

import json

import pytest
from runtime.cli.test_build import GEARS, ON_CARD, environment  # noqa: F401
from runtime.support.configs import ENCODER_CONFIG
from runtime.support.graphs import ENCODER, write

from ge_runtime import cli
from ge_runtime.cli.bench import Bounds, summary

PHASES = ("H2D_latency", "NPU_compute_time", "D2H_latency")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "encoder"
    write(ENCODER, "onnxruntime", folder / "1")
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + GEARS + ON_CARD)
    return folder


def run(*arguments):
    return cli.main([*map(str, arguments)])


@pytest.mark.brute_force
def test_gears_on_a_card_are_timed_with_phases(folder, capsys):
    assert run("build", folder) == 0
    capsys.readouterr()
    assert run("bench", folder, "--loop", "3", "--warmup-count", "0", "--format", "json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["device"], report["hardware"]) == ("npu:0", "AscendSimulator")
    assert [each["gear"] for each in report["gears"]] == [
        {"batch": rows, "tokens": tokens} for rows in (1, 8) for tokens in (8, 32)
    ]
    for each in report["gears"]:
        assert each["count"] == 3
        assert all(each[name]["min"] > 0 for name in ("latency", *PHASES))
        mean_ms = each["NPU_compute_time"]["mean"]
        assert each["throughput"] == pytest.approx(1000 * each["batchsize"] / mean_ms)
    assert run("bench", folder, "--loop", "1") == 0
    printed = capsys.readouterr().out
    assert "on npu:0, AscendSimulator, 1 execution(s) of each gear" in printed
    lines = [line.split() for line in printed.splitlines()]
    columns = {name: {len(line) for line in lines if line[:1] == [name]} for name in PHASES}
    copied = columns["H2D_latency"]
    assert columns == {  # only what is computed has a rate
        "H2D_latency": copied,
        "NPU_compute_time": {1 + count for count in copied},
        "D2H_latency": copied,
    }
    assert printed.count("NPU_compute_time") == 4


def test_other_devices_have_no_phases(folder, capsys):
    (folder / "config.pbtxt").write_text(ENCODER_CONFIG + GEARS)
    assert run("bench", folder, "--loop", "2", "--format", "json") == 0
    gears = json.loads(capsys.readouterr().out)["gears"]
    assert len(gears) == 4
    for each in gears:
        assert each["latency"]["median"] > 0
        assert "throughput" not in each
        assert not {*PHASES} & each.keys()


def test_only_the_first_execution_starts_after_the_time_limit():
    ticks = iter((0.0, 1.0, 2.0, 3.0))
    assert list(Bounds(9, 0, 2.5).rounds(9, lambda: next(ticks))) == [0, 1, 2]
    assert list(Bounds(9, 0, 0.0).rounds(9, lambda: 1.0)) == [0]


def test_times_are_milliseconds():
    assert summary([0.001, 0.003]) == pytest.approx(
        {
            "min": 1.0,
            "max": 3.0,
            "mean": 2.0,
            "median": 2.0,
            "percentile(90%)": 2.8,
            "percentile(99%)": 2.98,
        }
    )
