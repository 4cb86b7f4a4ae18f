"""voice_activity's graph: what it remembers, and how well it tells speech from other sounds."""

import re

import numpy as np
import onnxruntime
import pytest
from support.servers import ROOT

from model_factory.published import SILERO_VAD, WHEEL_CACHE, read_member
from model_factory.voice_accuracy import evaluate, probabilities
from model_factory.voice_speech import read_speech

GRAPH = ROOT / "model_repository" / "voice_activity" / "1" / "model.onnx"


@pytest.mark.slow
def test_sounds_are_told_apart_as_well_as_the_documentation_says():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    section = page.split("\n## Speech in a stream\n")[1]
    table = dict(re.findall(r"^\| `(\w+)` \| (\d.*?) \|$", section, re.M))
    scores = evaluate(GRAPH.read_bytes())
    assert {s.name: f"{s.right / s.chunks:.3f} ({s.right} of {s.chunks})" for s in scores} == table


def test_the_end_of_each_chunk_is_seen_with_the_next_as_by_the_published_graph():
    samples = read_speech()["british"][: 512 * 30]
    published = read_member(
        WHEEL_CACHE / SILERO_VAD.file, "silero_vad/data/silero_vad_16k_op15.onnx"
    )
    session = onnxruntime.InferenceSession(published, providers=["CPUExecutionProvider"])
    state, expected = np.zeros((2, 1, 128), np.float32), []
    before = np.concatenate([np.zeros(64, np.float32), samples])
    for start in range(0, len(samples), 512):
        inputs = {"input": before[None, start : start + 576], "state": state, "sr": np.array(16000)}
        probability, state = session.run(None, inputs)
        expected.append(probability.item())
    np.testing.assert_allclose(probabilities(GRAPH.read_bytes(), samples), expected, atol=1e-5)
