"""Tests of the model NAME, without a server: run `pytest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_server.testing import Code, ServerError

MODEL = Path(__file__).parent / "model_repository" / "NAME"


def test_each_value_is_squared(triton_model):
    response = triton_model(MODEL).infer({"X": [[1, -2, 3]]})
    assert response.outputs["Y"].tolist() == [[1, 4, 9]]


def test_an_empty_request_is_refused(triton_model):
    with pytest.raises(ServerError, match="X is empty") as caught:
        triton_model(MODEL).infer({"X": [[]]})
    assert caught.value.code is Code.INVALID_ARG
