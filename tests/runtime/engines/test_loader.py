import pytest
from runtime.support.graphs import ENCODER

from ge_runtime.engines.artifact import find_artifact
from ge_runtime.engines.backend import open_engine
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.torch import TorchEngine


@pytest.mark.parametrize(("name", "engine"), [("onnxruntime", OnnxEngine), ("torch", TorchEngine)])
def test_artifact_opens_in_the_engine_it_was_chosen_for(version_dir, name, engine):
    artifact = find_artifact(version_dir(ENCODER, name), "auto")
    opened = open_engine(artifact, threads=1, outputs=["embedding"])
    assert isinstance(opened, engine)
    opened.close()
