"""PCM samples become the values that Wav2Vec2FeatureExtractor makes."""

import json

import numpy as np
import pytest
from runtime.support.exports import SAMPLES, random

from ge_runtime.errors import ArtifactFault, RequestFault
from ge_runtime.specs import DType
from ge_runtime.steps.samples import SampleStep, reads_normalization


@pytest.fixture
def read(tmp_path):
    def read(fields):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
        return reads_normalization(tmp_path / "preprocessor_config.json")

    return read


def test_each_row_gets_mean_0_and_variance_1():
    audio = random(2, 500) * np.array([[1], [30]], np.float32) + 3
    found = SampleStep("x", DType.FP32, normalize=True)({"audio": audio})["x"]
    for row, given in zip(found, audio, strict=True):
        expected = (given - given.mean()) / np.sqrt(given.var() + 1e-7)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)
    assert found.dtype == np.float32


def test_integers_are_scaled():
    audio = np.array([[-32768, 0, 16384]], np.int16)
    found = SampleStep("x", DType.FP32, normalize=False)({"audio": audio})["x"]
    assert found.tolist() == [[-1.0, 0.0, 0.5]]


def test_no_samples_are_the_fault_of_the_request():
    with pytest.raises(RequestFault, match="input 'audio': found no samples"):
        SampleStep("x", DType.FP32, normalize=True)({"audio": np.zeros((1, 0), np.float32)})


def test_normalization_is_read(read):
    assert read(SAMPLES)
    assert not read({**SAMPLES, "do_normalize": False, "processor_class": "Wav2Vec2Processor"})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "'WhisperFeatureExtractor'"),
        ({"feature_size": 80}, "'feature_size' with 80"),
        ({"padding_side": "left"}, "'padding_side' with 'left'"),
        ({"dither": 0.5}, "'dither' with 0.5"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(read, change, found):
    with pytest.raises(ArtifactFault, match=rf"preprocessor_config\.json: found .*{found}"):
        read({**SAMPLES, **change})
