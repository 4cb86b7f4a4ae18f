"""Tests of the backend settings, the choice of a host, restarts, and completion in a process."""

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.backends import kit

from reference_server.backends.hosts import Host, PythonHosts, python_settings
from reference_server.backends.process_host.instance import Backoff, ProcessInstance
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.errors import ServerError
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
from reference_server.observability.metric_registry import MetricRegistry

pytestmark = pytest.mark.brute_force

COMPLETES = """
    import os

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            {}
            config.set_max_batch_size(os.getpid())
            return config
"""


def hosts(**given: str) -> PythonHosts:
    return PythonHosts(given, SystemClock(), MetricRegistry())


def made(tmp_path: Path, chosen: str = "", **given: str) -> object:
    spec = kit.spec(tmp_path / "m" / "1" / "model.py")
    return hosts(**given).instance(spec, NO_CALLS, chosen, Health())


def completed(tmp_path: Path, line: str = "", **given: str) -> dict[str, object]:
    file = kit.model_file(tmp_path, COMPLETES.format(line))
    text = hosts(**given).auto_complete(file, file.parent, "m", {"max_batch_size": 0}, "")
    return json.loads(text)


def test_the_backends_setting_or_the_models_own_decides(tmp_path):
    assert isinstance(made(tmp_path), InlineInstance)
    assert isinstance(made(tmp_path, host="process"), ProcessInstance)
    assert isinstance(made(tmp_path, "process"), ProcessInstance)
    assert isinstance(made(tmp_path, "inline", host="process"), InlineInstance)


def test_wrong_settings_are_refused_with_the_first_model(tmp_path):
    wrong = {"thread-pool-size": "0"}
    with pytest.raises(ServerError, match="thread-pool-size can't be less than 1"):
        made(tmp_path, **wrong)
    with pytest.raises(ServerError, match="thread-pool-size can't be less than 1"):
        completed(tmp_path, **wrong)


def test_processes_need_linux(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(made(tmp_path), InlineInstance)
    with pytest.raises(ServerError, match=r"^host: found process on .*; expected inline"):
        made(tmp_path, "process")


def test_a_model_completes_its_configuration_where_it_will_run(tmp_path):
    inline = completed(tmp_path)
    process = completed(tmp_path, host="process")
    assert inline.pop("max_batch_size") == os.getpid()
    assert process.pop("max_batch_size") != os.getpid()
    assert process == inline


def test_a_process_that_ends_while_it_completes_is_an_error(tmp_path):
    with pytest.raises(ServerError) as caught:
        completed(tmp_path, "os._exit(4)", host="process")
    assert caught.value.described() == (
        "Internal: Stub process 'm' exited with code 4 while it completed the configuration."
    )


def test_the_settings_are_read():
    settings = python_settings(
        {"host": "process", "stub-restart": "false", "stub-execution-timeout-seconds": "7"}
    )
    assert settings.host is Host.PROCESS
    assert not settings.supervision.restarts
    assert settings.supervision.execution_limit_s == 7


@pytest.mark.parametrize("host", Host)
def test_a_models_own_choice_counts_more_than_the_servers(host):
    assert python_settings({"host": "process"}).host_of(host.value) is host
    assert python_settings({"host": "inline"}).host_of(host.value) is host


@pytest.mark.parametrize(
    "given",
    [
        {"unknown": "5"},
        {"shm-default-byte-size": "1048576"},
        {"shm-growth-byte-size": "1"},
        {"stub-timeout-seconds": "1.5"},
        {"stub-timeout-seconds": " 7"},
        {"thread-pool-size": "1"},
        {"shm_message_queue_size": "0"},
        {"shm-region-prefix-name": "x"},
    ],
)
def test_settings_of_tritons_processes_have_no_effect(given):
    assert python_settings(given) == python_settings({})


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"shm-default-byte-size": "5"}, "shm-default-byte-size can't be smaller than 4 MiBs"),
        ({"shm-default-byte-size": "5x"}, "shm-default-byte-size can't be smaller than 4 MiBs"),
        (
            {"shm-growth-byte-size": "0"},
            "shm-growth-byte-size can't be smaller than or equal to zero.",
        ),
        (
            {"stub-timeout-seconds": "0"},
            "stub-timeout-seconds can't be smaller than or equal to zero.",
        ),
        ({"thread-pool-size": "0"}, "thread-pool-size can't be less than 1."),
        ({"shm_message_queue_size": "x"}, "stol"),
        ({"stub-timeout-seconds": "9" * 19}, "stol"),
        ({"host": "moon"}, "Incorrect value for host: 'moon', expected one of inline, process"),
        (
            {"stub-restart": "1"},
            "Incorrect value for stub-restart: '1', expected one of true, false",
        ),
        (
            {"stub-execution-timeout-seconds": "-1"},
            "stub-execution-timeout-seconds can't be smaller than zero.",
        ),
    ],
)
def test_wrong_values_are_refused(given, refusal):
    with pytest.raises(ServerError) as caught:
        python_settings(given)
    assert caught.value.described() == f"Invalid argument: {refusal}"


def test_an_unknown_host_of_a_model_is_refused():
    with pytest.raises(ServerError, match="Incorrect value for EXECUTION_HOST: 'moon'"):
        python_settings({}).host_of("moon")


S = 1_000_000_000


def test_each_pause_is_twice_as_long_up_to_a_limit():
    backoff = Backoff(first_s=1, limit_s=5)
    assert [backoff.ended(0) // S for _ in range(5)] == [1, 2, 4, 5, 5]


def test_a_long_run_resets_the_delay():
    backoff = Backoff(first_s=1, limit_s=5)
    backoff.ended(0)
    backoff.ended(0)
    backoff.started(10 * S)
    assert backoff.ended(15 * S + 1) == S


def test_a_short_run_does_not_reset_the_delay():
    backoff = Backoff(first_s=1, limit_s=5)
    backoff.ended(0)
    backoff.started(10 * S)
    assert backoff.ended(15 * S) == 2 * S


def test_a_failed_start_does_not_reset_the_delay():
    backoff = Backoff(first_s=1, limit_s=5)
    backoff.started(0)
    assert backoff.ended(1) == S
    assert backoff.ended(60 * S) == 2 * S


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=12))
def test_pauses_stay_within_their_bounds(story):
    backoff = Backoff(first_s=1, limit_s=5)
    now = 0
    for starts, lasts_s in story:
        if starts:
            backoff.started(now)
        now += lasts_s * S
        assert S <= backoff.ended(now) <= 5 * S
