"""Valid and invalid values of `jpeg.<prepared tensor>`."""

import pytest
from runtime.support.configs import model_config, tensor
from runtime.support.parsing import assert_fault, parse

FIELD = "parameter 'jpeg.image': found "


def config(prepared="UINT8[8,6,3]", jpeg="file", dims=(1,), kind="STRING", **more):
    parameters = {"prepared.image": prepared, "jpeg.image": jpeg, **more.pop("parameters", {})}
    return model_config(
        [tensor("file", kind, list(dims))], [tensor("made", "FP32", [1])], parameters, **more
    )


def test_axes_of_decoded_images_stand_for_their_limits():
    limits = {"limit.height": "8", "limit.width": "6", "mask.mask": "height,width"}
    own = parse(config("UINT8[height,width,3]", parameters=limits))
    assert own.jpeg["image"] == ("file", 8, 6, 3)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (config(jpeg="fil"), "no input 'fil', expected one of: file"),
        (config(kind="UINT8"), "input 'file' UINT8[1], expected BYTES[1]: one file"),
        (config(dims=(2,)), "input 'file' BYTES[2], expected BYTES[1]: one file"),
        (config("UINT8[3,8,6]"), "'image' UINT8[3,8,6], expected UINT8[height,width,1], or of 3"),
        (config("FP32[8,6,3]"), "'image' FP32[8,6,3], expected UINT8[height,width,1], or of 3"),
    ],
)
def test_a_tensor_that_is_not_an_image_is_refused(given, text):
    assert_fault(given, FIELD + text)


def test_only_prepared_tensors_are_decoded():
    given = config(parameters={"jpeg.imag": "file"})
    assert_fault(given, "parameter 'jpeg.imag': found ")


def test_all_prepared_tensors_are_decoded_or_none():
    given = config(parameters={"prepared.mask": "FP32[1]"})
    expected = "all prepared tensors from JPEG files, or none"
    assert_fault(given, f"parameter 'prepared.mask': found no 'jpeg.mask', expected {expected}")


def test_requests_must_have_rows():
    given = config(batch=0, parameters={"rows": "4"})
    assert_fault(given, f"{FIELD}max_batch_size 0, expected 1 or more: an image for each row")
