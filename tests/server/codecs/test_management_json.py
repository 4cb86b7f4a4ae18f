"""Management bodies over HTTP, beyond the rows of tests/recorded/test_http.py."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import management_json
from reference_server.core.errors import Code, ServerError
from reference_server.core.profiles import V2_51
from reference_server.core.telemetry import BatchStatistics, Duration, Snapshot

HANDLE = bytes(range(100, 164))
B64 = base64.b64encode(HANDLE).decode()


def test_statistics():
    snapshot = Snapshot(
        "m",
        3,
        last_inference_ms=1795190437433,
        inference_count=5,
        execution_count=2,
        success=Duration(1, 2),
        fail=Duration(3, 4),
        queue=Duration(5, 6),
        compute_input=Duration(7, 8),
        compute_infer=Duration(9, 10),
        compute_output=Duration(11, 12),
        cache_hit=Duration(13, 14),
        cache_miss=Duration(15, 16),
        batches={4: BatchStatistics(Duration(17, 18), Duration(19, 20), Duration(21, 22))},
    )
    assert management_json.statistics([snapshot]) == (
        b'{"model_stats":[{"name":"m","version":"3","last_inference":1795190437433,'
        b'"inference_count":5,"execution_count":2,"inference_stats":{'
        b'"success":{"count":1,"ns":2},"fail":{"count":3,"ns":4},"queue":{"count":5,"ns":6},'
        b'"compute_input":{"count":7,"ns":8},"compute_infer":{"count":9,"ns":10},'
        b'"compute_output":{"count":11,"ns":12},'
        b'"cache_hit":{"count":13,"ns":14},"cache_miss":{"count":15,"ns":16}},'
        b'"response_stats":{},"batch_stats":[{"batch_size":4,'
        b'"compute_input":{"count":17,"ns":18},"compute_infer":{"count":19,"ns":20},'
        b'"compute_output":{"count":21,"ns":22}}],"memory_usage":[]}]}'
    )


@given(st.lists(st.tuples(st.integers(0, 86), st.sampled_from("\n*-_=. \0é")), max_size=5))
def test_characters_outside_of_base64_are_skipped(strangers):
    text = B64.rstrip("=")
    for at, stranger in strangers:
        text = text[:at] + stranger + text[at:]
    fields = {"raw_handle": {"b64": text}, "device_id": 1, "byte_size": 64}
    body = memoryview(json.dumps(fields).encode())
    assert management_json.cuda_registration(body).raw_handle == HANDLE


@pytest.mark.parametrize(
    ("body", "ready_only"),
    [
        (b"", False), (b"{}", False), (b"[]", False), (b'{"ready":true}', True),
        (b'{"ready":false}', False),
    ],
)  # fmt: skip
def test_index_request(body, ready_only):
    assert management_json.index_request(body, V2_51) is ready_only


def test_the_index_omits_unknown_values():
    rows = [("a", None, None, ""), ("b", 1, "READY", ""), ("c", None, "UNAVAILABLE", 'x"\n')]
    assert management_json.index(rows) == (
        b'[{"name":"a"},{"name":"b","version":"1","state":"READY"},'
        b'{"name":"c","state":"UNAVAILABLE","reason":"x\\"\\n"}]'
    )
    assert management_json.index([]) == b"[]"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("aGVsbG8=", b"hello"), ("aGVsbG8", b"hello"), ("aGVs bG8=\\n", b"hello"), ("", b""),
        ("!!", b""), ("aGVsbG8!", b"hello"), ("a", b""), ("aGVsb", b"hel"),
    ],
)  # fmt: skip
def test_files_are_decoded_from_base64(text, content):
    body = f'{{"parameters":{{"file:x":"{text}","config":"c"}}}}'.encode()
    assert management_json.load_parameters(body) == {"file:x": content, "config": "c"}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"parameters":{}}', b'{"x":1}'])
def test_a_load_needs_no_parameters(body):
    assert management_json.load_parameters(body) == {}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "failed to parse"),
        (b'{"parameters":1}', "attempt to get members for non-object"),
        (b'{"parameters":{"x":1}}', "attempt to access JSON non-string as string"),
        (b'{"parameters":{"x":"1"}}', "unexpected error on creating Triton parameter"),
    ],
)
def test_malformed_load_requests_are_refused(body, said):
    with pytest.raises(ServerError, match=said):
        management_json.load_parameters(body)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"parameters":{"unload_dependents":true}}', True),
        (b'{"parameters":{"unload_dependents":false}}', False),
        (b'{"parameters":{"unload_dependents":1}}', False),
        (b'{"parameters":1}', False), (b"{", False), (b"", False),
    ],
)  # fmt: skip
def test_unexpected_unload_bodies_are_accepted(body, wanted):
    assert management_json.unload_dependents(body, V2_51) is wanted


# ------------------------------------------------------------------------- log and trace settings


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
