"""A decoder that streams tokens, in the server of this process."""

import json
import threading

import numpy as np
import pytest
from runtime.support.axis_graphs import saved
from runtime.support.decoders import Expected, decoder_config
from runtime.support.triton import InferenceRequest, PbUtils, Tensor, TritonError

from ge_runtime.adapters.generation import GenerationModel, graph_config
from ge_runtime.cli.config_pbtxt import read_runtime_config
from ge_runtime.errors import RuntimeFault
from model_factory.decoder_graph import decoder_model
from reference_server.testing import open_repository

SOURCE = """
import triton_python_backend_utils as pb_utils
from ge_runtime.adapters.generation import GenerationModel


class TritonPythonModel:
    def initialize(self, args):
        self.model = GenerationModel(args, pb_utils)

    def execute(self, requests):
        return self.model.execute(requests)

    def is_ready(self):
        return self.model.is_ready()

    def finalize(self):
        self.model.close()
"""
OPTIONS = {"max_tokens": "INT32", "temperature": "FP32", "seed": "INT64", "stop_token": "INT64"}


def streaming_config(**more):
    """Return the configuration of a model that streams tokens, as Triton's JSON."""
    # 88 tokens at most: the graph has 96 positions.
    own = decoder_config({"limit.past": "80", "generate.logits": "FP32[tokens, 31]"})
    del own["parameters"]["axes.logits"]
    own["parameters"]["default.max_tokens"] = {"string_value": "4"}
    del own["sequence_batching"]
    options = [
        {"name": name, "data_type": f"TYPE_{kind}", "dims": [1], "optional": True}
        for name, kind in OPTIONS.items()
    ]
    return {
        **own,
        "backend": "python",
        "max_batch_size": 0,
        "input": [*own["input"], *options],
        "output": [{"name": "token", "data_type": "TYPE_INT64", "dims": [1]}],
        "model_transaction_policy": {"decoupled": True},
        **more,
    }


def as_text(config):
    """Return a configuration as config.pbtxt."""
    kept = {key: value for key, value in config.items() if key not in ("parameters", "name")}
    kept["input"] = [
        {key: value for key, value in own.items() if key != "allow_ragged_batch"}
        for own in kept["input"]
    ]
    lines = [f"{key}: {_value(value)}" for key, value in kept.items()]
    lines += [
        f'parameters {{ key: "{key}" value {{ string_value: "{own["string_value"]}" }} }}'
        for key, own in config["parameters"].items()
    ]
    return "\n".join(lines)


def _value(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + " ".join(f"{key}: {_value(own)}" for key, own in value.items()) + " }"
    if isinstance(value, list):
        return "[ " + ", ".join(map(_value, value)) + " ]"
    return value if str(value).startswith("TYPE_") else json.dumps(value)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    version_dir = saved(decoder_model(), folder / "decoder")
    (version_dir / "model.py").write_text(SOURCE)
    (version_dir.parent / "config.pbtxt").write_text(as_text(streaming_config()))
    with open_repository(folder) as repository:
        yield repository


@pytest.fixture(scope="module")
def greedy():
    """Return a function: token ids, number -> the tokens of largest logits."""
    expected = Expected(decoder_model())

    def tokens(ids, count):
        for _ in range(count):
            ids = [*ids, int(expected.logits(ids)[-1].argmax())]
        return ids[-count:]

    return tokens


def stream(repository, **body):
    reply = repository.http("POST", "/v2/models/decoder/generate_stream", json.dumps(body).encode())
    lines = reply.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def tokens_of(events):
    return [event["token"] for event in events]


def test_tokens_are_streamed_with_the_defaults_and_options_of_a_request(repository, greedy):
    assert tokens_of(stream(repository, input_ids=[1, 2, 3])) == greedy([1, 2, 3], 4)
    long = [own % 31 for own in range(20)]
    assert tokens_of(stream(repository, input_ids=long, max_tokens=9)) == greedy(long, 9)
    (first, second, *_) = greedy([5], 4)
    stopped = stream(repository, input_ids=[5], max_tokens=9, stop_token=second)
    assert tokens_of(stopped) == [first, second]
    drawn = [stream(repository, input_ids=[5], temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_streams_of_several_clients_have_the_tokens_of_each_alone(repository, greedy):
    model = repository.model("decoder")
    own = [model.stream({"input_ids": [at, 7], "max_tokens": [6 + at]}) for at in range(6)]
    for at, responses in enumerate(own):
        found = [int(response.outputs["token"][0]) for response in responses]
        assert found == greedy([at, 7], 6 + at)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"input_ids": [1] * 89}, "input 'input_ids': found 89 tokens, expected 1 to 88"),
        ({"input_ids": [1], "temperature": -1.0}, "input 'temperature': found -1.0, expected"),
        ({"input_ids": [99]}, "input 'input_ids': found 99"),
    ],
)
def test_a_faulty_request_gets_an_error_and_frees_its_states(repository, body, error):
    (event,) = stream(repository, **body)
    assert error in event["error"]


class Sender:
    """A response sender whose client disappears after some steps."""

    def __init__(self, steps=10**9):
        self.left, self.sent, self.ended = steps, [], threading.Event()

    def is_cancelled(self):
        self.left -= 1
        return self.left < 0

    def send(self, response, flags):
        self.sent.append((response, flags))
        if flags:
            self.ended.set()


def started(version_dir, senders):
    """Return a model that has a stream for each sender."""
    args = {
        "model_config": json.dumps(streaming_config()),
        "model_instance_name": "decoder_0",
        "model_repository": str(version_dir.parent),
        "model_version": version_dir.name,
        "model_name": "decoder",
    }
    model = GenerationModel(args, PbUtils())
    for sender in senders:
        inputs = [Tensor("input_ids", np.array([3, 4])), Tensor("max_tokens", np.array([70]))]
        request = InferenceRequest(inputs, ["token"])
        request._sender = sender
        model.execute([request])
    return model


def test_a_client_that_disappears_frees_its_blocks_within_a_step(tmp_path):
    gone, others = Sender(steps=3), [Sender(), Sender()]
    model = started(saved(decoder_model(), tmp_path), [gone, *others])
    assert gone.ended.wait(30)
    response, flags = gone.sent[-1]
    assert (response.error().code(), flags) == (TritonError.CANCELLED, 1)
    assert len(gone.sent) == 4  # a token in each of three steps, and the error
    for sender in others:
        assert sender.ended.wait(30)
        assert len(sender.sent) == 70
    assert model._runtime.gauges()["state_blocks_used"] == 0
    assert model._runtime.counts().departed == 1
    model.close()


def test_an_unloaded_model_ends_all_streams(tmp_path):
    senders = [Sender() for _ in range(6)]
    model = started(saved(decoder_model(), tmp_path), senders)
    model.close()
    for sender in senders:
        response, flags = sender.sent[-1]
        assert flags == 1
        assert len(sender.sent) == 70 or response.error().code() is TritonError.UNAVAILABLE


def test_commands_read_the_configuration_of_the_graph(tmp_path):
    (tmp_path / "config.pbtxt").write_text(as_text(streaming_config()))
    config = read_runtime_config(tmp_path)
    assert [spec.name for spec in config.outputs] == ["logits"]
    assert [spec.name for spec in config.inputs] == ["input_ids"]
    assert config.rows == 8


def with_parameter(key, text):
    own = streaming_config()["parameters"]
    return {"parameters": {**own, key: {"string_value": text}}}


def option(kind, size=1):
    return {"name": "top_k", "data_type": f"TYPE_{kind}", "dims": [size]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model_transaction_policy": {}}, "decoupled: False; expected one, and"),
        ({"output": []}, "output: found 0 output(s); expected one with integers"),
        ({"parameters": {"generate.logits": {"string_value": "31"}}}, "found '31'; expected"),
        (with_parameter("rows", "many"), "parameter 'rows': found 'many'; expected a number"),
        (with_parameter("rows", "-1"), "parameter 'rows': found -1; expected at least 1"),
        (with_parameter("default.top_k", "x"), "'default.top_k': found 'x'; expected a number"),
        (with_parameter("default.seed", "-2"), "input 'seed': found -2, expected at least 0"),
        ({"input": [option("FP32")]}, "input 'top_k': found FP32 of dims [1]; expected a number"),
        ({"input": [option("INT32", 2)]}, "input 'top_k': found INT32 of dims [2]; expected"),
    ],
)
def test_faults_of_the_configuration(change, error):
    with pytest.raises(RuntimeFault) as raised:
        graph_config(streaming_config(**change))
    assert error in str(raised.value)
