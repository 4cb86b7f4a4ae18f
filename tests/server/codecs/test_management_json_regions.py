"""Registrations of regions as JSON, their first fault, and the JSON of the status."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_server.codecs import management_json
from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import CudaRegion, SystemRegion

HANDLE = bytes(range(100, 164))
B64 = base64.b64encode(HANDLE).decode()
INVALID, INTERNAL = Code.INVALID_ARG, Code.INTERNAL
NO_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NO_STRING = "attempt to access JSON non-string as string"


def body(fields):
    return memoryview(json.dumps(fields).encode())


def fault(read, fields):
    with pytest.raises(ServerError) as caught:
        read(body(fields))
    return caught.value.code, caught.value.message


def test_a_system_registration():
    fields = {"key": "/k", "byte_size": 2**64 - 1, "offset": 4096, "other": []}
    assert management_json.system_registration(body(fields)) == ("/k", 2**64 - 1, 4096)


def test_an_offset_may_be_left_out():
    assert management_json.system_registration(body({"key": "k", "byte_size": 1})) == ("k", 1, 0)


def test_a_key_ends_with_its_first_nul():
    assert management_json.system_registration(body({"key": "k\0l", "byte_size": 1})).key == "k"


SYSTEM_FAULTS = {
    "no object": ([], INVALID, "Shared memory register request has no 'key' field"),
    "no key": ({"byte_size": 1}, INVALID, "Shared memory register request has no 'key' field"),
    "no size": ({"key": "k"}, INVALID, "Shared memory register request has no 'byte_size' field"),
    "key a number": ({"key": 1, "offset": "x", "byte_size": "x"}, INTERNAL, NO_STRING),
    "offset text": ({"key": "k", "offset": "0"}, INTERNAL, NO_UINT),
    "size negative": ({"key": "k", "byte_size": -1}, INTERNAL, NO_UINT),
}


@pytest.mark.parametrize(("fields", "code", "said"), SYSTEM_FAULTS.values(), ids=SYSTEM_FAULTS)
def test_a_fault_of_a_system_registration(fields, code, said):
    assert fault(management_json.system_registration, fields) == (code, said)


def cuda(**changes):
    return {"raw_handle": {"b64": B64}, "device_id": 1, "byte_size": 64} | changes


def test_a_cuda_registration():
    assert management_json.cuda_registration(body(cuda())) == (HANDLE, 1, 64)


@given(st.lists(st.tuples(st.integers(0, 86), st.sampled_from("\n*-_=. \0é")), max_size=5))
def test_characters_outside_of_base64_are_skipped(strangers):
    text = B64.rstrip("=")
    for at, stranger in strangers:
        text = text[:at] + stranger + text[at:]
    assert (
        management_json.cuda_registration(body(cuda(raw_handle={"b64": text}))).raw_handle == HANDLE
    )


BAD_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
MISSING = "attempt to access non-existing object member"
CUDA_FAULTS = {
    "no object": (5, INVALID, "Shared memory register request has no 'raw_handle' field"),
    "handle text": (cuda(raw_handle=B64), INTERNAL, f"{MISSING} 'b64'"),
    "b64 a number": (cuda(raw_handle={"b64": 1}, byte_size="x"), INTERNAL, NO_STRING),
    "no size": ({"raw_handle": {"b64": ""}}, INTERNAL, f"{MISSING} 'byte_size'"),
    "device text": (cuda(raw_handle={"b64": ""}, device_id="0"), INTERNAL, NO_UINT),
    **{
        f"handle of {len(text)} letters": (cuda(raw_handle={"b64": text}), INVALID, BAD_HANDLE)
        for text in ("", "A", B64[:84], B64[:85], B64 + "A" * 4, B64 * 2)
    },
}


@pytest.mark.parametrize(("fields", "code", "said"), CUDA_FAULTS.values(), ids=CUDA_FAULTS)
def test_a_fault_of_a_cuda_registration(fields, code, said):
    assert fault(management_json.cuda_registration, fields) == (code, said)


def test_status():
    regions = [SystemRegion('a"', "/k", 0, 64), SystemRegion("b", "l", 4096, 2**40)]
    assert management_json.system_status(regions) == (
        b'[{"name":"a\\"","key":"/k","offset":0,"byte_size":64},'
        b'{"name":"b","key":"l","offset":4096,"byte_size":1099511627776}]'
    )
    assert management_json.cuda_status([CudaRegion("c", 1, 64)]) == (
        b'[{"name":"c","device_id":1,"byte_size":64}]'
    )


def test_the_status_without_regions():
    assert management_json.system_status([]) == management_json.cuda_status([]) == b"[]"
