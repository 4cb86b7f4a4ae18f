"""Prepared tensors decoded from the JPEG files of requests."""

import numpy as np
import pytest
from runtime.devices.test_jpeg import gradient, jpeg

from ge_runtime.adapters.jpeg_inputs import JpegInputs
from ge_runtime.config import JpegPicture
from ge_runtime.devices.jpeg import PillowDecoder
from ge_runtime.errors import RequestFault

FILE, DARK = jpeg(gradient(16, 24)), jpeg(np.zeros((16, 24)))


@pytest.fixture(scope="module")
def inputs():
    return JpegInputs({"image": JpegPicture("file", 16, 24, 1)}, PillowDecoder())


def request(*files):
    return {"file": np.array(files, object)[:, None]}


def test_each_row_is_decoded_from_its_file(inputs):
    (made,) = inputs.prepare([request(FILE, DARK)])
    assert made["image"].shape == (2, 16, 24, 1)
    assert made["image"].dtype == np.uint8
    np.testing.assert_allclose(made["image"][0, ..., 0], gradient(16, 24), atol=4)
    assert made["image"][1].max() <= 2


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ((FILE, b"none"), "input 'file', row 1: found 4 bytes that are not a JPEG file"),
        ((b"none",), "input 'file': found 4 bytes that are not a JPEG file"),
    ],
)
def test_an_invalid_file_is_the_fault_of_its_request_alone(inputs, files, text):
    fault, made = inputs.prepare([request(*files), request(DARK)])
    assert isinstance(fault, RequestFault)
    assert str(fault).startswith(text)
    assert made["image"].shape == (1, 16, 24, 1)
