"""Processes that number the machine's devices each in a way of its own."""

import pytest
from runtime.support.services import held_service

from ge_runtime.errors import ServiceFault
from ge_runtime.service.client import ServiceBackend
from ge_runtime.service.visible import meant_by


@pytest.mark.parametrize(
    ("device", "environment", "meant"),
    [
        ("cpu", {"CUDA_VISIBLE_DEVICES": "1"}, ""),
        ("cuda:2", {}, "2"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3, 1"}, "3"),
        (
            "cuda:1",
            {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "ASCEND_RT_VISIBLE_DEVICES": "5"},
            "GPU-b",
        ),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, "6"),
        ("npu:2", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, ""),
    ],
)
def test_number_is_that_of_the_environment(device, environment, meant):
    assert meant_by(device, environment) == meant


def test_client_for_which_a_number_is_another_card_is_refused(services, monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    with held_service(services.path, device="npu:0"):
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
        with pytest.raises(ServiceFault) as raised:
            ServiceBackend("npu:0", "of another server")
        assert str(raised.value) == (
            "the device service refuses: found npu:0 to mean the machine's device '1', expected "
            "'0' as where this service was started: ASCEND_RT_VISIBLE_DEVICES differs, and "
            "XDG_RUNTIME_DIR can give each a service of its own"
        )
        monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
        ServiceBackend("npu:0", "of a server that has all").close()
