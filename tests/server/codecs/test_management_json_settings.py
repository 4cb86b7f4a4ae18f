"""Log and trace settings as JSON: their changes, order and faults."""

import pytest

from reference_server.codecs import management_json
from reference_server.core.errors import Code, ServerError


def read_until_refused(changes):
    """Return the changes before the error, and the error."""
    read = []
    try:
        for change in changes:
            read.append(change)  # noqa: PERF402 (the refusal comes on the way)
    except ServerError as error:
        return read, error
    raise AssertionError(f"not refused: {read}")


def log(text):
    return management_json.read_log_settings(memoryview(text.encode()))


def trace(text):
    return management_json.read_trace_settings(memoryview(text.encode()))


def test_log_settings_are_encoded():
    assert management_json.encode_log_settings({"log_file": "é", "log_info": True, "n": 5}) == (
        '{"log_file":"é","log_info":true,"n":5}'.encode()
    )


def test_trace_levels_are_a_list_and_the_rest_are_strings():
    settings = {"trace_level": ["A", "B"], "trace_rate": ("5",)}
    assert management_json.encode_trace_settings(settings) == (
        b'{"trace_level":["A","B"],"trace_rate":"5"}'
    )


@pytest.mark.parametrize("text", ["{}", "[]", "null", '"x"', '{"other":[]}', '{"log_info":null}'])
def test_missing_settings_are_not_changed(text):
    assert list(log(text)) == []


def test_log_changes_are_in_tritons_order():
    text = '{"log_format":"default","log_verbose_level":2,"log_info":false}'
    assert list(log(text)) == [
        ("log_info", False),
        ("log_verbose_level", 2),
        ("log_format", "default"),
    ]


def test_changes_before_a_fault_are_read():
    read, error = read_until_refused(log('{"log_error":1,"log_info":false}'))
    assert read == [("log_info", False)]
    assert (error.code, error.message) == (
        Code.INTERNAL,
        "attempt to access JSON non-boolean as boolean",
    )


@pytest.mark.parametrize("value", ['"f"', "1", "[]"])
def test_any_log_file_is_a_change(value):
    assert next(log(f'{{"log_file":{value}}}')) == ("log_file", "")


def test_an_unknown_log_format_is_unavailable():
    _, error = read_until_refused(log('{"log_format":"x"}'))
    assert (error.code, error.message) == (
        Code.UNAVAILABLE,
        "invalid argument for --log_format, got: x",
    )


def test_trace_changes_are_in_tritons_order_and_null_resets():
    text = (
        '{"log_frequency":"1","trace_count":"2","trace_rate":null,"trace_level":["A"],'
        '"trace_file":null}'
    )
    assert list(trace(text)) == [
        ("trace_file", None),
        ("trace_level", ["A"]),
        ("trace_rate", None),
        ("trace_count", ["2"]),
        ("log_frequency", ["1"]),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"trace_level":"A"}', "attempt to access JSON non-array as array"),
        ('{"trace_level":[1]}', "attempt to access JSON non-string as string"),
        ('{"trace_rate":1}', "attempt to access JSON non-string as string"),
        ('{"trace_count":"-2"}', "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    ],
)
def test_faults_of_trace_settings(text, message):
    read, error = read_until_refused(trace(text))
    assert (read, error.message) == ([], message)


@pytest.mark.parametrize("count", ["-1", "x", "-99999999999"])
def test_the_codec_accepts_other_counts(count):
    assert list(trace(f'{{"trace_count":"{count}"}}')) == [("trace_count", [count])]
