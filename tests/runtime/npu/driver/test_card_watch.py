"""The status of a card: readiness before a request fails, and gauges."""

import json
import logging

import numpy as np
import pytest
from runtime.npu.driver.test_om_serving import on_card, right
from runtime.support.configs import encoder_config
from runtime.support.triton import PbUtils

import ge_runtime.npu.driver.card as watch
from ascend_simulator import current
from ascend_simulator.codes import DeviceStatus
from ge_runtime import Runtime
from ge_runtime.adapters.triton import GraphModel
from ge_runtime.npu.driver.cann_values import NOT_SUPPORTED, DriverFault
from ge_runtime.npu.driver.card import PROCESS_CARDS, CardWatch
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.engines.ascend_backend import AscendBackend

pytestmark = pytest.mark.brute_force

ABNORMAL = DeviceStatus.ACL_RT_DEVICE_STATUS_ABNORMAL
NORMAL = DeviceStatus.ACL_RT_DEVICE_STATUS_NORMAL


@pytest.fixture
def runtime(encoder_dir, monkeypatch):
    monkeypatch.setattr(watch, "INTERVAL_S", 0.0)
    runtime = Runtime.open(encoder_dir, on_card(encoder_config()), instance_name="encoder_0")
    yield runtime
    runtime.close()


def test_a_card_that_says_it_is_abnormal_makes_its_models_not_ready(runtime, caplog):
    assert runtime.is_ready()
    current().device_status = ABNORMAL
    with caplog.at_level(logging.WARNING):
        assert not runtime.is_ready()
        assert not runtime.is_ready()
    assert runtime.gauges()["device_unwell"] == 1
    (reported,) = [line for line in caplog.messages if "abnormal" in line]
    assert reported == "npu:0: the device reports an abnormal state; its models are not ready"
    assert right(runtime)  # nothing is refused: only it is asked no more
    current().device_status = NORMAL
    with caplog.at_level(logging.WARNING):
        assert runtime.is_ready()
    assert "npu:0: healthy again" in caplog.messages
    assert runtime.gauges()["device_unwell"] == 0


def test_gauges_go_out_when_readiness_changes_though_no_request_comes(encoder_dir, monkeypatch):
    monkeypatch.setattr(watch, "INTERVAL_S", 0.0)
    args = {
        "model_config": json.dumps(on_card(encoder_config())),
        "model_instance_name": "encoder_0",
        "model_repository": str(encoder_dir.parent),
        "model_version": encoder_dir.name,
        "model_name": "encoder",
    }
    model, noted = GraphModel(args, PbUtils()), []
    monkeypatch.setattr(model._metrics, "note", lambda: noted.append("note"))
    assert model.is_ready()
    assert noted == []
    current().device_status = ABNORMAL
    assert not model.is_ready()
    assert not model.is_ready()
    assert len(noted) == 1
    current().device_status = NORMAL
    assert model.is_ready()
    assert len(noted) == 2
    model.close()


def test_a_card_that_is_lost_is_found_before_a_request(runtime, machine):
    machine.arm("call@1=lost")
    assert not runtime.is_ready()
    assert PROCESS_CARDS.health(0).lost is not None
    assert runtime.gauges() == {**runtime.gauges(), "device_unwell": 1}
    calls = machine.report.calls
    assert not runtime.is_ready()  # of a lost card nothing is asked
    assert machine.report.calls == calls


def test_memory_and_load_are_gauges(runtime, machine):
    reported = runtime.gauges()
    assert reported["device_total_bytes"] == 32 * 2**30
    assert reported["device_free_bytes"] <= reported["device_total_bytes"] - machine.used("device")
    assert reported["device_cube_percent"] == 0
    assert reported["device_memory_percent"] == 0
    assert (
        not {"device_vector_percent", "device_aicpu_percent"} & reported.keys()
    )  # -1: not reported


def test_it_is_asked_now_and_then(machine, encoder_dir):
    card = PROCESS_CARDS.acquire(0)
    now = [10.0]
    asked = CardWatch(card, lambda: now[0])
    for seconds, times in ((0.0, 1), (0.9, 1), (0.2, 2), (5.0, 3)):
        now[0] += seconds
        assert asked.status().fault == ""
        assert machine.report.calls["rt.query_device_status"] == times
    PROCESS_CARDS.release(card)


@pytest.mark.parametrize("lacks", ["query_device_status", "get_device_utilization_rate"])
def test_releases_and_chips_without_status_functions(machine, monkeypatch, lacks):
    card = PROCESS_CARDS.acquire(0)
    driver = card.driver
    with card.current():
        monkeypatch.delattr(driver._rt, lacks)
        assert driver.is_healthy(0)
        assert (driver.utilization(0) == {}) == (lacks == "get_device_utilization_rate")
        monkeypatch.setattr(driver._rt, lacks, lambda device: (0, NOT_SUPPORTED), raising=False)
        assert driver.is_healthy(0)
        assert (driver.utilization(0) == {}) == (lacks == "get_device_utilization_rate")
        monkeypatch.setattr(driver._rt, lacks, lambda device: (0, 507899), raising=False)
        with pytest.raises(DriverFault, match="507899"):
            (driver.is_healthy if lacks.startswith("query") else driver.utilization)(0)
    PROCESS_CARDS.release(card)


def test_percentages_are_found_by_what_they_are_of():
    class Rt:
        @staticmethod
        def get_device_utilization_rate(device):
            reported = {"cubeUtilization": 40, "vector": -1, "aicpu_utilization": 7, "memory": 101}
            return reported, 0

    driver = PyAclDriver(type("Acl", (), {"rt": Rt, "mdl": None, "get_recent_err_msg": None}))
    assert driver.utilization(0) == {"cube": 40, "aicpu": 7}
    assert np.all([isinstance(value, int) for value in driver.utilization(0).values()])


def test_a_second_close_does_not_release_the_card_again(machine):
    one, other = AscendBackend(0), AscendBackend(0)
    one.close()
    one.close()
    assert other.telemetry()["device_total_bytes"] == 32 * 2**30
    assert PROCESS_CARDS._users[0] == 1
    other.close()
