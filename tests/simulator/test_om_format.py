"""The simulated .om file: a round trip returns the same data, and damage is refused."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.support.driving import ok
from simulator.support.models import rows_om, texts_om

from ascend_simulator.codes import Code, Refused
from ascend_simulator.models import om

DAMAGED = {Code.GE_EXEC_MODEL_DATA_SIZE_INVALID, Code.PARSE_MODEL}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a file."""
    return Path(rows_om(tmp_path_factory.mktemp("om"))).read_bytes()


def refusal(data):
    with pytest.raises(Refused) as caught:
        om.parse(data)
    return caught.value.code


def test_what_was_written_is_read(tmp_path, whole):
    found = om.parse(whole)
    assert om.serialize(found.manifest, found.graph) == whole
    found = om.read(texts_om(tmp_path))
    assert om.parse(om.serialize(found.manifest, found.graph)) == found


def test_equal_content_has_an_equal_digest_and_other_content_another(tmp_path, whole):
    assert om.parse(whole).digest == om.parse(bytes(whole)).digest
    assert om.read(rows_om(tmp_path, "1,2")).digest != om.parse(whole).digest


@pytest.mark.brute_force
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_that_lost_bytes_is_refused_wherever_it_ends(whole, data):
    end = data.draw(st.integers(0, len(whole) - 1))
    assert refusal(whole[:end]) == Code.GE_EXEC_MODEL_DATA_SIZE_INVALID


@pytest.mark.brute_force
@settings(max_examples=60, deadline=None)
@given(tail=st.binary(min_size=1, max_size=64))
def test_a_file_with_more_bytes_is_refused(whole, tail):
    assert refusal(whole + tail) == Code.GE_EXEC_MODEL_DATA_SIZE_INVALID


@pytest.mark.brute_force
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_with_changed_bytes_is_refused_wherever_they_are(whole, data):
    damaged = bytearray(whole)
    for place in data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        damaged[place] ^= data.draw(st.integers(1, 255))
    assert refusal(bytes(damaged)) in DAMAGED


def test_every_bit_of_the_header_counts(whole):
    for place in range(64):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            assert refusal(bytes(damaged)) in DAMAGED


@pytest.mark.brute_force
@settings(max_examples=60, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_refused(noise):
    assert refusal(noise) in DAMAGED
    assert refusal(om.MAGIC + noise) in DAMAGED


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": None},
        {"shapes": 3},
        {"shapes": [{"gear": [1]}]},
        {"outputs": [{"name": "y"}]},
        {"unknown": 1},
    ],
)
def test_an_invalid_manifest_is_refused_despite_a_valid_digest(whole, change):
    found = om.parse(whole)
    right = json.loads(whole[64 : whole.index(found.graph)])
    text = json.dumps({**right, **change}).encode()
    head = struct.pack("<8sIIQ8x", om.MAGIC, om.VERSION, len(text), len(found.graph))
    body = text + found.graph
    assert refusal(head + hashlib.sha256(head + body).digest() + body) == Code.PARSE_MODEL


def test_another_version_is_refused_by_name(whole):
    newer = whole[:8] + (9).to_bytes(4, "little") + whole[12:]
    with pytest.raises(Refused, match=f"format version 9, expected {om.VERSION}") as caught:
        om.parse(newer)
    assert caught.value.code == Code.PARSE_MODEL


@pytest.mark.parametrize("name", ["missing.om", "", "folder"])
def test_a_file_that_cannot_be_read_is_refused(acl, tmp_path, name):
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / name)
    code = Code.GE_EXEC_MODEL_PATH_INVALID
    assert acl.mdl.query_size(path) == (0, 0, code)
    assert path in acl.get_recent_err_msg()
    assert acl.mdl.load_from_file(path) == (0, code)
    assert acl.mdl.load_from_file_with_mem(path, 0, 0, 0, 0) == (0, code)


def test_query_and_load_return_documented_codes_for_damage(acl, tmp_path, whole):
    short, changed = tmp_path / "short.om", tmp_path / "changed.om"
    short.write_bytes(whole[:-1])
    changed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for path, code in [(short, Code.GE_EXEC_MODEL_DATA_SIZE_INVALID), (changed, Code.PARSE_MODEL)]:
        assert acl.mdl.query_size(str(path)) == (0, 0, code)
        assert acl.mdl.load_from_file(str(path)) == (0, code)
        desc = acl.mdl.create_desc()
        assert acl.mdl.get_desc_from_file(desc, str(path)) == code
        ok(acl.mdl.destroy_desc(desc))
