"""The backend's settings: which host, and how processes are looked after."""

import pytest

from reference_server.backends.hosts import Host, python_settings
from reference_server.core.errors import ServerError


def test_models_run_inline_if_nothing_is_said():
    settings = python_settings({})
    assert settings.host_of("") is Host.INLINE
    assert settings.supervision.restarts
    assert settings.supervision.execution_limit_s is None


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
def test_what_only_tritons_processes_need_changes_nothing(given):
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


def test_a_model_cannot_choose_what_there_is_not():
    with pytest.raises(ServerError, match="Incorrect value for EXECUTION_HOST: 'moon'"):
        python_settings({}).host_of("moon")
