"""The settings of the log: read, change and refuse."""

import pytest

from reference_server.core.errors import Code, ServerError
from reference_server.gateway.log_and_trace_settings import LogSettings
from reference_server.options import LogOptions

START = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture
def applied():
    return []


@pytest.fixture
def settings(applied):
    return LogSettings(LogOptions(), applied.append)


def test_all_settings_are_read_in_tritons_order(settings):
    assert list(settings.read().items()) == list(START.items())


def test_the_file_is_read(applied):
    assert LogSettings(LogOptions(file="f"), applied.append).read()["log_file"] == "f"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("log_info", False, False),
        ("log_warning", False, False),
        ("log_error", False, False),
        ("log_verbose_level", 3, 3),
        ("log_verbose_level", 2**31, 0),
        ("log_verbose_level", 2**32 - 1, 0),
        ("log_verbose_level", 2**32 + 1, 1),
        ("log_format", "ISO8601", "ISO8601"),
        ("other", 5, None),
    ],
)
def test_a_setting_is_changed_and_returned(settings, name, value, kept):
    assert settings.update({name: value}) == settings.read()
    assert settings.read() == START | ({} if kept is None else {name: kept})


def test_each_change_is_applied(settings, applied):
    settings.update({"log_info": False, "log_format": "ISO8601"})
    assert applied == [LogOptions(info=False), LogOptions(info=False, iso8601=True)]


def test_unchanged_settings_are_not_applied(settings, applied):
    settings.update({"log_info": True, "other": 1})
    assert applied == []


@pytest.mark.parametrize(
    ("name", "value", "code", "text"),
    [
        (
            "log_file",
            "f",
            Code.UNSUPPORTED,
            "log file location can not be updated through network protocol",
        ),
        ("log_info", 1, Code.INVALID_ARG, "expect boolean for 'log_info'"),
        ("log_error", "true", Code.INVALID_ARG, "expect boolean for 'log_error'"),
        ("log_verbose_level", True, Code.INVALID_ARG, "expect int32 for 'log_verbose_level'"),
        ("log_verbose_level", "1", Code.INVALID_ARG, "expect int32 for 'log_verbose_level'"),
        ("log_format", 1, Code.INVALID_ARG, "expect string for 'log_format'"),
        ("log_format", "x", Code.INVALID_ARG, "invalid argument for log_format, got: x"),
    ],
)
def test_changes_before_an_invalid_one_are_kept(settings, name, value, code, text):
    with pytest.raises(ServerError) as caught:
        settings.update([("log_warning", False), (name, value), ("log_verbose_level", 9)])
    assert (caught.value.code, caught.value.message) == (code, text)
    assert settings.read() == START | {"log_warning": False}
