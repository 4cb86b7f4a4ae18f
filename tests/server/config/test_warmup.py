"""Warm-up samples as a configuration names them."""

from server.support.configs import proto

from reference_server.config.schema import Filling, WarmupInput, WarmupSample, warmup_samples
from reference_server.core.dtypes import DataType


def test_samples_are_read():
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
                WarmupInput("X", DataType.FP32, (2, 3), Filling.ZEROS),
                WarmupInput("Z", DataType.BYTES, (1,), Filling.RANDOM),
            ),
        ),
        WarmupSample(
            "b",
            1,
            1,
            (
                WarmupInput("X", None, (-1,), Filling.FILE, "data"),
                WarmupInput("Y", DataType.FP32, (), Filling.NOTHING),
            ),
        ),
    )


def test_a_sample_of_no_batch_size_is_left_out():
    assert warmup_samples(proto('model_warmup { name: "a" count: 3 }')) == ()
