"""Lost devices: the error for all users, and the log."""

import pytest

from ge_runtime.devices import DeviceHealth
from ge_runtime.errors import EngineLost


def test_a_lost_device_stays_lost_of_what_was_found_first_and_is_logged_once(caplog):
    health = DeviceHealth()
    health.ensure_available()
    first, second = health.mark_lost("npu:0: gone"), health.mark_lost("npu:0: what follows")
    assert str(first) == str(second) == str(health.lost)
    with pytest.raises(EngineLost, match="npu:0: gone; "):
        health.ensure_available()
    assert [record.getMessage() for record in caplog.records] == [str(first)]
