"""A configuration is written only if its answers are those of the graph, alone and together."""

from __future__ import annotations

import io
import sys

import numpy as np
import onnx
import pytest
from runtime.discovery.test_experiments import chosen, parameters, stateful
from runtime.support.axis_graphs import valid

from ge_runtime.cli.config_pbtxt import parse
from ge_runtime.cli.init import Progress
from ge_runtime.cli.proving import proven
from ge_runtime.discovery.configuration import Parameter
from ge_runtime.discovery.decoders import decide_decoder
from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.proof import prove
from ge_runtime.discovery.sample import read_sample
from ge_runtime.discovery.study import Study
from ge_runtime.errors import RuntimeFault
from model_factory.decoder_graph import decoder_model


@pytest.fixture
def opened(tmp_path):
    """Return a function that saves a graph as a model, and returns its derivation and folder."""

    def save(model, sample=None):
        folder = tmp_path / "model"
        (folder / "1").mkdir(parents=True)
        onnx.save(model, folder / "1" / "model.onnx")
        graph = Graph(folder / "1" / "model.onnx", threads=1)
        given = {} if sample is None else read_sample(sample, graph.inputs)
        return Discovery(graph, 16, sample=given), folder

    return save


def test_states_are_compared_in_sequences(opened):
    configuration, proof = proven(*opened(stateful()), "graph.onnx")
    assert parameters(configuration) == {"state.state": "state_out"}
    assert proof.requests == 6
    assert proof.executions == 3  # two sequences of three steps


def test_a_sample_is_used_in_the_proof(opened, tmp_path):
    file = tmp_path / "sample.npz"
    np.savez(file, codes=np.array([5, 77, 3]), x=np.ones((1, 6), np.float32))
    configuration, proof = proven(*opened(chosen(), file), "graph.onnx")
    assert configuration.max_batch_size == 0
    assert proof.distance == 0


def test_a_wrong_size_of_an_output_is_refused(opened):
    discovery, folder = opened(valid())
    found = discovery.configuration()
    found.parameters = [
        Parameter(own.key, "(samples - 4) // 2" if own.key == "axes.sums" else own.value, "")
        for own in found.parameters
    ]
    with pytest.raises(RuntimeFault):
        prove(discovery.study, folder / "1", {"name": "model", **parse(found.text("graph.onnx"))})


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [(True, "\r\x1b[K... rows\r\x1b[K... axes\r\x1b[K"), (False, "... rows\n... axes\n")],
)
def test_progress_rewrites_one_line_on_a_terminal(terminal, shown, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress()
    progress("rows")
    progress("axes")
    progress.end()
    assert stream.getvalue() == shown


def test_a_decoder_is_proven_with_states_that_grow(opened):
    configuration, proof = proven(*opened(decoder_model()), "graph.onnx")
    found = parameters(configuration)
    assert configuration.max_batch_size == 16
    assert configuration.keeps_states
    assert found.pop("range.input_ids") == "0..30"
    # The graph has 96 positions.
    assert (found.pop("limit.past"), found.pop("limit.tokens")) == ("72", "24")
    assert found == {
        "axes.input_ids": "tokens",
        "axes.logits": "tokens",
        "mask.attention_mask": "past + tokens",
        "positions.position_ids": "tokens",
        "limit.total.tokens": "24",
        **{
            f"state.past_key_values.{layer}.{part}": f"present.{layer}.{part}"
            for layer in range(2)
            for part in ("key", "value")
        },
    }
    assert proof.requests == 6
    assert proof.distance < 1e-6


def test_states_that_do_not_continue_a_decoder_are_not_kept(opened):
    model = decoder_model()
    # The second state of a layer is the first: two executions differ from one of all tokens.
    (value,) = [node for node in model.graph.node if node.output[0] == "present.0.value"]
    value.input[0] = "past_key_values.0.key"
    discovery, _ = opened(model)
    assert decide_decoder(Study(discovery.graph), 16) is None
