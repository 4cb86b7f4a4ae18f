"""The choice of a host, and auto-completion in a process of its own."""

import os
import sys
from pathlib import Path

import pytest
from server.backends import kit

from reference_server.backends.hosts import PythonHosts
from reference_server.backends.process_host.instance import ProcessInstance
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.backends.python_host.inline import InlineInstance
from reference_server.core.errors import ServerError
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
from reference_server.observability.metric_registry import MetricRegistry

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
    return hosts(**given).auto_complete(file, "m", {"max_batch_size": 0}, "")


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
    with pytest.raises(ServerError, match="on Linux alone; use host=inline"):
        made(tmp_path, "process")


def test_a_model_completes_its_configuration_where_it_will_run(tmp_path):
    inline = completed(tmp_path)
    process = completed(tmp_path, host="process")
    assert inline.pop("max_batch_size") == os.getpid()
    assert process.pop("max_batch_size") != os.getpid()
    assert process == inline


@pytest.mark.parametrize("host", ["inline", "process"])
def test_an_exception_has_the_same_text_on_both_hosts(tmp_path, host):
    with pytest.raises(ServerError) as caught:
        completed(tmp_path, "raise ValueError('auto no good')", host=host)
    assert caught.value.described() == (
        "Internal: ValueError: auto no good\n\nAt:\n"
        f"  {tmp_path}/m/1/model.py(7): auto_complete_config\n"
    )


def test_a_process_that_ends_while_it_completes_is_an_error(tmp_path):
    with pytest.raises(ServerError) as caught:
        completed(tmp_path, "os._exit(4)", host="process")
    assert caught.value.described() == (
        "Internal: Stub process 'm' exited with code 4 while it completed the configuration."
    )
