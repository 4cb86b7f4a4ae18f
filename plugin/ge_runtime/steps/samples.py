"""Converts PCM samples for a graph by the settings in preprocessor_config.json of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.errors import ArtifactFault, RequestFault
from ge_runtime.specs import DType, Tensors
from ge_runtime.steps.json_files import check_fields, read_fields

EXTRACTOR: Final = "Wav2Vec2FeatureExtractor"
_EXPECTED: Final = {"feature_size": 1, "padding_side": "right"}
_HONOURED: Final = ("feature_extractor_type", "do_normalize", *_EXPECTED)
# ge_runtime pads after the normalization, and generates the mask itself.
_WITHOUT_EFFECT: Final = (
    *("padding_value", "return_attention_mask", "sampling_rate", "processor_class"),
)
_EPSILON: Final = 1e-7
"""Added to the variance, as transformers does."""
_INT16: Final = 1 / 32768


def reads_normalization(file: Path) -> bool:
    """Return whether preprocessor_config.json normalizes samples to mean 0 and variance 1.

    Raises ArtifactFault if a field has an unknown name or value.
    """
    fields = read_fields(file)
    kind = fields.get("feature_extractor_type")
    if kind != EXTRACTOR:
        raise ArtifactFault(f"{file}: found feature_extractor_type '{kind}', expected {EXTRACTOR}")
    check_fields(file, fields, _HONOURED, _WITHOUT_EFFECT, _EXPECTED)
    return bool(fields.get("do_normalize", True))


class SampleStep:
    """Converts PCM samples, INT16 [n, samples] or FP32 from -1 to 1, to a graph's input."""

    def __init__(self, output: str, dtype: DType, *, normalize: bool) -> None:
        """Set the output and its type. With `normalize`, each row gets mean 0 and variance 1."""
        self._output, self._dtype, self._normalize = output, dtype.numpy, normalize

    @classmethod
    def open(cls, args: Mapping[str, str]) -> SampleStep:
        """Return the step for the arguments of `initialize`.

        preprocessor_config.json is beside model.py. Raises ArtifactFault.
        """
        (output,) = json.loads(args["model_config"])["output"]
        file = Path(args["model_repository"], args["model_version"], "preprocessor_config.json")
        dtype = DType.of_config(output["data_type"])
        return cls(output["name"], dtype, normalize=reads_normalization(file))

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the samples of a request. Raises RequestFault if there are none."""
        samples = inputs["audio"]
        if not samples.size:
            raise RequestFault("input 'audio': found no samples, expected one or more")
        if samples.dtype == np.int16:
            samples = samples * np.float32(_INT16)
        if self._normalize:
            mean, variance = samples.mean(-1, keepdims=True), samples.var(-1, keepdims=True)
            samples = (samples - mean) / np.sqrt(variance + _EPSILON)
        return {self._output: samples.astype(self._dtype)}
