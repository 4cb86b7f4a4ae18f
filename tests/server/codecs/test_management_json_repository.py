"""Bodies of repository control over HTTP."""

import pytest

from reference_server.codecs import management_json
from reference_server.core.errors import ServerError
from reference_server.core.profiles import V2_51


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
