"""Completing configurations: defaults, the backend, and auto-completion by the model."""

import json

import pytest
from google.protobuf import json_format
from server.support.configs import completed, ensemble, proto, step

from reference_server.config.check import check_polled
from reference_server.config.complete import adopt_auto_completed, complete
from reference_server.core.errors import ServerError

X = 'input { name: "X" data_type: TYPE_FP32 dims: [1] }'
Z = {"name": "Z", "data_type": "TYPE_INT32", "dims": ["2"]}


def value(config, path):
    """Return the part of a configuration at a dotted path, as JSON."""
    found = json_format.MessageToDict(config, preserving_proto_field_name=True)
    for key in path.split("."):
        found = found[int(key)] if key.isdigit() else found[key]
    return found


# ------------------------------------------------------------------------------------- defaults


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        ("", "name", "m"),
        ('name: "given"', "name", "given"),
        ("", "version_policy", {"latest": {"num_versions": 1}}),
        ("version_policy { all { } }", "version_policy", {"all": {}}),
        (
            "version_policy { specific { versions: [2] } }",
            "version_policy.specific.versions",
            ["2"],
        ),
        ("", "default_model_filename", "model.py"),
        ('default_model_filename: "other.py"', "default_model_filename", "other.py"),
        ("", "instance_group", [{"name": "m", "count": 1, "kind": "KIND_CPU"}]),
        ("instance_group { }", "instance_group.0.name", "m_0"),
        ('instance_group { name: "g" }', "instance_group.0.name", "g"),
        ("instance_group { } instance_group { }", "instance_group.1.name", "m_1"),
        ("instance_group { count: 3 }", "instance_group.0.count", 3),
        ("instance_group { count: 0 }", "instance_group.0.count", 1),
        ("instance_group { count: -1 }", "instance_group.0.count", 1),
        ("instance_group { kind: KIND_MODEL }", "instance_group.0.kind", "KIND_MODEL"),
        ("", "optimization.input_pinned_memory.enable", True),
        ("", "optimization.output_pinned_memory.enable", True),
        (
            "optimization { priority: PRIORITY_MAX }",
            "optimization.output_pinned_memory.enable",
            True,
        ),
        (
            "max_batch_size: 8 dynamic_batching { }",
            "dynamic_batching.preferred_batch_size",
            [8],
        ),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4] }",
            "dynamic_batching.preferred_batch_size",
            [2, 4],
        ),
    ],
)
def test_default(given, path, expected):
    assert value(completed(given), path) == expected


@pytest.mark.parametrize("field", ["input_pinned_memory", "output_pinned_memory"])
def test_pinned_memory_that_was_switched_off_stays_off(field):
    config = completed(f"optimization {{ {field} {{ enable: false }} }}")
    assert not getattr(config.optimization, field).enable


@pytest.mark.parametrize("given", ["dynamic_batching { }", "max_batch_size: 8"])
def test_preferred_sizes_stay_empty_without_a_batch_or_a_batcher(given):
    assert not completed(given).dynamic_batching.preferred_batch_size


# --------------------------------------------------------------------------------------- backend


@pytest.mark.parametrize(
    ("given", "files", "backend"),
    [
        pytest.param("", ["1/model.py"], "python", id="a model.py"),
        pytest.param("", ["7/model.py"], "python", id="in any version"),
        pytest.param("", ["model.py"], "", id="not in a version"),
        pytest.param("", [], "", id="nothing"),
        pytest.param('backend: "other"', ["1/model.py"], "other", id="another backend"),
        pytest.param('platform: "other"', ["1/model.py"], "", id="another platform"),
        pytest.param("", ["1/model.onnx"], "onnxruntime", id="ONNX"),
        pytest.param("", ["1/model.onnx", "1/model.py"], "onnxruntime", id="ONNX first"),
        pytest.param("", ["1/model.plan"], "tensorrt", id="TensorRT"),
        pytest.param("", ["1/model.pt"], "pytorch", id="torch"),
        pytest.param("", ["1/model.savedmodel"], "tensorflow", id="TensorFlow"),
        pytest.param("", ["1/model.xml", "1/model.bin"], "openvino", id="OpenVINO"),
        pytest.param("", ["1/other.py"], "", id="another file"),
    ],
)
def test_the_backend_is_derived_from_the_files(tmp_path, given, files, backend):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    config = proto(given)
    complete(config, tmp_path)
    assert config.backend == backend
    if backend in ("python", ""):
        assert config.default_model_filename == ("model.py" if backend else "")


def test_without_files_the_backend_follows_from_the_folder_name(tmp_path):
    config = proto("")
    complete(config, tmp_path / "digits.ge")
    assert (config.backend, config.default_model_filename) == ("ge", "model.ge")


# ------------------------------------------------------------------------------------- ensembles


def test_an_ensemble_gets_a_policy_and_no_instances():
    config = completed(ensemble(step("a", {"X": "I"}, {"Y": "O"})))
    assert value(config, "model_transaction_policy") == {}
    assert value(config, "version_policy") == {"latest": {"num_versions": 1}}
    assert not config.HasField("optimization")
    assert (config.backend, config.default_model_filename, len(config.instance_group)) == (
        "",
        "",
        0,
    )


# ------------------------------------------------------------------------------ auto-completion


def adopted(given, completion):
    config = completed(given)
    adopt_auto_completed(config, json.dumps(completion))
    return config


def test_completed_tensors_and_batch_size_are_used():
    completion = {"max_batch_size": 4, "dynamic_batching": {}, "input": [Z], "output": [Z, Z]}
    config = adopted(X, completion | {"name": "other", "backend": "b", "instance_group": [{}]})
    expected = completed(X)
    del expected.input[:]
    for field, count in ((expected.input, 1), (expected.output, 2)):
        for _ in range(count):
            field.add(name="Z", data_type="TYPE_INT32", dims=[2])
    expected.max_batch_size = 4
    expected.dynamic_batching.preferred_batch_size.append(4)
    assert config == expected


def test_a_batcher_in_the_file_wins_over_a_completed_one():
    config = adopted(
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 5 }",
        {"max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": 7}},
    )
    assert config.dynamic_batching.max_queue_delay_microseconds == 5


@pytest.mark.parametrize(
    ("given", "completion"),
    [
        (X, {"model_transaction_policy": {"decoupled": True}}),
        ("model_transaction_policy { decoupled: true }", {"max_batch_size": 1}),
    ],
)
def test_the_completed_decoupled_policy_is_used_or_else_that_of_the_file(given, completion):
    assert adopted(given, completion).model_transaction_policy.decoupled


@pytest.mark.parametrize(
    "completion",
    [{"max_batch_sise": 1}, {"max_batch_size": "eight"}, {"input": [{"data_type": "TYPE_X"}]}],
)
def test_an_invalid_completion_changes_nothing(completion):
    assert adopted(X, {"output": [Z], **completion}) == completed(X)


KINDS = {
    # As in tritonserver 2.51: backend, platform, file name, instances on the CPU.
    'backend: "onnxruntime"': ("onnxruntime", "onnxruntime_onnx", "model.onnx", 2),
    'platform: "onnxruntime_onnx"': ("onnxruntime", "onnxruntime_onnx", "model.onnx", 2),
    'default_model_filename: "model.onnx"': ("onnxruntime", "onnxruntime_onnx", "model.onnx", 2),
    'backend: "onnxruntime" default_model_filename: "x.onnx"': (
        "onnxruntime",
        "onnxruntime_onnx",
        "x.onnx",
        2,
    ),
    'backend: "onnxruntime" instance_group { count: 1 }': (
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
        1,
    ),
    'backend: "pytorch"': ("pytorch", "pytorch_libtorch", "model.pt", 1),
    'platform: "pytorch_libtorch"': ("pytorch", "pytorch_libtorch", "model.pt", 1),
    'default_model_filename: "model.pt"': ("pytorch", "pytorch_libtorch", "model.pt", 1),
    'backend: "tensorrt"': ("tensorrt", "tensorrt_plan", "model.plan", 1),
    'platform: "tensorrt_plan"': ("tensorrt", "tensorrt_plan", "model.plan", 1),
    'platform: "tensorflow_graphdef"': (
        "tensorflow",
        "tensorflow_graphdef",
        "model.graphdef",
        2,
    ),
    'platform: "tensorflow_savedmodel"': (
        "tensorflow",
        "tensorflow_savedmodel",
        "model.savedmodel",
        2,
    ),
    'backend: "openvino"': ("openvino", "", "model.xml", 1),
    'backend: "dali"': ("dali", "", "", 1),
}


@pytest.mark.parametrize(("text", "expected"), KINDS.items(), ids=KINDS)
def test_backend_platform_and_file_determine_each_other(tmp_path, text, expected):
    config = proto(text)
    complete(config, tmp_path / "m")
    shown = config.backend, config.platform, config.default_model_filename
    assert (*shown, config.instance_group[0].count) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backend: "tensorflow"', "unexpected 'platform' and 'backend' pair, got:, tensorflow"),
        (
            'backend: "onnxruntime" platform: "pytorch_libtorch"',
            "unexpected 'platform' and 'backend' pair, got:pytorch_libtorch, onnxruntime",
        ),
        ('default_model_filename: "net.onnx"', "unexpected platform type '' for m"),
        ('platform: "torch_aoti"', "unexpected platform type 'torch_aoti' for m"),
    ],
)
def test_a_model_without_a_backend_is_refused(tmp_path, text, said):
    config = proto(text)
    complete(config, tmp_path / "m")
    with pytest.raises(ServerError) as caught:
        check_polled(config)
    assert caught.value.message == said
