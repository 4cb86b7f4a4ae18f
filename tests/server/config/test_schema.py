"""The frozen configuration, read from a completed message."""

import pytest
from server.support.configs import ensemble, model_config, proto, step

from reference_server.config.schema import (
    EnsembleStep,
    WarmupData,
    WarmupInput,
    WarmupSample,
    warmup_samples,
)
from reference_server.core.metadata import TensorConfig
from reference_server.core.tensor import DataType


def test_tensors_become_a_signature():
    signature = model_config("""
        max_batch_size: 4
        input { name: "A" data_type: TYPE_STRING dims: [-1] allow_ragged_batch: true }
        input { name: "B" data_type: TYPE_FP16 dims: [4] reshape { shape: [2, 2] } optional: true }
        output { name: "C" data_type: TYPE_INT64 dims: [1] label_filename: "labels.txt" }
    """).signature
    assert (signature.name, signature.max_batch_size) == ("m", 4)
    assert signature.inputs == (
        TensorConfig("A", DataType.BYTES, (-1,), ragged=True),
        TensorConfig("B", DataType.FP16, (4,), (2, 2), optional=True),
    )
    assert signature.outputs == (TensorConfig("C", DataType.INT64, (1,), labels_file="labels.txt"),)


def test_the_steps_of_an_ensemble_are_read():
    config = model_config(ensemble(step("a", {"X": "I"}, {"Y": "O"}, version=3)))
    assert config.ensemble == (EnsembleStep("a", 3, {"X": "I"}, {"Y": "O"}),)
    assert config.is_ensemble


@pytest.mark.parametrize(
    ("text", "platform"),
    [("", "python"), (ensemble(step("a", {"X": "I"}, {"Y": "O"})), "ensemble")],
)
def test_metadata_shows_the_platform_or_else_the_backend(text, platform):
    assert model_config(text).shown_platform == platform


@pytest.mark.parametrize(
    ("max_batch_size", "shown"), [(0, (3, -1)), (4, (-1, 3, -1))], ids=["without", "with"]
)
def test_full_dims_begin_with_the_batch_dimension(max_batch_size, shown):
    signature = model_config(
        f'max_batch_size: {max_batch_size} input {{ name: "X" data_type: TYPE_FP32 dims: [3, -1] }}'
    ).signature
    assert signature.full_dims(signature.inputs[0]) == shown


def test_warmup_samples_are_read():
    text = """
        model_warmup { name: "a" batch_size: 2 count: 3
          inputs { key: "Z" value { data_type: TYPE_STRING dims: [1] random_data: true } }
          inputs { key: "X" value { data_type: TYPE_FP32 dims: [2, 3] zero_data: true } }
        }
        model_warmup { name: "b" batch_size: 1
          inputs { key: "X" value { dims: [-1] input_data_file: "data" } }
          inputs { key: "Y" value { data_type: TYPE_FP32 } }
        }
    """
    assert warmup_samples(proto(text)) == (
        WarmupSample(
            "a",
            2,
            3,
            (
                WarmupInput("X", DataType.FP32, (2, 3), WarmupData.ZEROS),
                WarmupInput("Z", DataType.BYTES, (1,), WarmupData.RANDOM),
            ),
        ),
        WarmupSample(
            "b",
            1,
            1,
            (
                WarmupInput("X", None, (-1,), WarmupData.FILE, "data"),
                WarmupInput("Y", DataType.FP32, (), WarmupData.NOTHING),
            ),
        ),
    )


def test_a_warmup_sample_without_a_batch_size_is_left_out():
    assert warmup_samples(proto('model_warmup { name: "a" count: 3 }')) == ()
