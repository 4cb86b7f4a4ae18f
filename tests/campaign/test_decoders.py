"""Decoders of untrusted bytes: valid, damaged and formerly harmful inputs.

The campaign fuzzes the same functions, guided by coverage; here the inputs are always the same.
"""

import random

import pytest
from support.mutations import mutated

from campaign.decoders import TARGETS, Defect, expect, seeds
from campaign.reducing import kept

EACH = 200


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_makes_a_decoder_raise(name):
    good, dice = seeds(name), random.Random(1)
    assert good
    for data in (*kept(name), *good, *(mutated(dice.choice(good), dice) for _ in range(EACH))):
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name} of {data!r}") from error


def test_a_defect_is_raised():
    expect(True, "nothing")
    with pytest.raises(Defect, match="something"):
        expect(False, "something")


def test_a_reader_that_differs_is_noticed(monkeypatch):
    monkeypatch.setattr("campaign.decoders.rapid_json.loads", lambda data: [])
    with pytest.raises(Defect, match="exactly as"):
        TARGETS["json_document"](b"{}")


def test_an_unexpected_error_is_noticed_although_it_is_answered(monkeypatch):
    def broken(*arguments, **more):
        raise KeyError("unforeseen")

    monkeypatch.setattr("reference_server.codecs.infer_json.json_length", broken)
    monkeypatch.setattr("reference_server.codecs.rapid_json.loads", broken)
    body = b'{"inputs":[]}'
    with pytest.raises(KeyError, match="unforeseen"):
        TARGETS["http"](
            b"POST /v2/models/vector/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
