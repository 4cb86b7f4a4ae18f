"""The settings of the log: read, change and refuse."""

import pytest

from reference_server.gateway.log_and_trace_settings import LogSettings
from reference_server.options import LogOptions


@pytest.fixture
def applied():
    return []


@pytest.fixture
def settings(applied):
    return LogSettings(LogOptions(), applied.append)


def test_the_file_is_read(applied):
    assert LogSettings(LogOptions(file="f"), applied.append).read()["log_file"] == "f"


def test_each_change_is_applied(settings, applied):
    settings.update({"log_info": False, "log_format": "ISO8601"})
    assert applied == [LogOptions(info=False), LogOptions(info=False, iso8601=True)]


def test_unchanged_settings_are_not_applied(settings, applied):
    settings.update({"log_info": True, "other": 1})
    assert applied == []
