"""The condition of the service's device at its clients: readiness and gauges."""

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, encode
from runtime.support.services import QUICK, HeldBackend, held_service
from support.waiting import until

from ge_runtime import Runtime
from ge_runtime.engines.backend import HostBackend
from ge_runtime.npu.service.backend import ServiceBackend

CONFIG = encoder_config({"placement": "service"})


def request(*row):
    return {"input_ids": np.array([row]), "lengths": np.array([[len(row)]], np.int32)}


class ToldBackend(HeldBackend):
    """A device that reports the condition that the test sets."""

    reported = ""

    def fault(self):
        return self.reported

    def telemetry(self):
        return {"device_unwell": float(bool(self.reported)), "device_free_bytes": 5.0}


@pytest.fixture
def device(services):
    device = ToldBackend()
    with held_service(services.path, backend=device):
        yield device


def test_clients_learn_now_and_then_how_their_device_is(device):
    client = ServiceBackend("held", "client", timeouts=QUICK)
    assert client.fault() == ""
    device.reported = "held: the device reports an abnormal state"
    until(lambda: client.fault() == device.reported, "the news")
    assert client.telemetry() == {"device_unwell": 1.0, "device_free_bytes": 5.0}
    device.reported = ""
    until(lambda: client.fault() == "", "the good news")
    client.close()


def test_a_device_that_is_unwell_as_its_client_comes_is_known_at_once(device):
    device.reported = "held: it does not answer as it should"
    client = ServiceBackend("held", "client")
    assert client.fault() == device.reported
    client.close()


class ToldHost(HostBackend):
    """The CPU, which is ill."""

    def fault(self):
        return "it is ill"

    def telemetry(self):
        return {"device_unwell": 1.0}


def test_models_are_not_ready_while_the_service_reports_a_fault(services, version_dir):
    with held_service(services.path, device="cpu", backend=ToldHost("cpu")):
        runtime = Runtime.open(version_dir(ENCODER), CONFIG, instance_name="encoder_0")
        assert not runtime.is_ready()
        assert runtime.gauges()["device_unwell"] == 1
        (answer,) = runtime.infer([request(2)])  # nothing is refused: only it is asked no more
        np.testing.assert_allclose(answer["embedding"], encode([[2]]), rtol=1e-5)
        runtime.close()
