"""Cases that run alike on NVIDIA's `tritonserver` package and on ours, with comparable results.

`recorded.jsonl` has the results of the real package. `REAL_TRITONSERVER=... python cases.py`
prints such lines: run it where `import tritonserver` finds the real package, with the folder of
Triton's backends in REAL_TRITONSERVER.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import inspect
import json
import os
import queue
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Cases by name; each receives the module and a started server.
CASES: dict[str, Callable[[Any, Any], Any]] = {}

_ECHO_CONFIG = """
backend: "python"
max_batch_size: 4
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "FLOAT" data_type: TYPE_FP32 dims: [ -1 ] optional: true },
  { name: "BOOL" data_type: TYPE_BOOL dims: [ 2 ] optional: true }
]
output [
  { name: "TEXT_OUT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "FLOAT_OUT" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "BOOL_OUT" data_type: TYPE_BOOL dims: [ 2 ] },
  { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }
]
"""
_ECHO = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = {
                "id": request.request_id(), "correlation": request.correlation_id(),
                "flags": request.flags(), "parameters": json.loads(request.parameters()),
                "timeout": request.timeout(),
            }
            rows = 1
            outputs = []
            for tensor in request.inputs():
                array = tensor.as_numpy()
                rows = len(array)
                outputs.append(pb_utils.Tensor(tensor.name() + "_OUT", array))
            text = np.array([[json.dumps(seen, sort_keys=True)]] * rows, np.object_)
            outputs.append(pb_utils.Tensor("SEEN", text))
            if seen["parameters"].get("fail"):
                error = pb_utils.TritonError("failed on request", pb_utils.TritonError.NOT_FOUND)
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
_STREAM_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_STREAM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            (count,) = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()
            for n in range(count):
                tensor = pb_utils.Tensor("N", np.array([n], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_BROKEN = "raise RuntimeError('broken on purpose')\n"


def write_models(root: Path) -> Path:
    """Write the models of the cases below `root`, and return it."""
    for name, config, code in (
        ("echo", _ECHO_CONFIG, _ECHO),
        ("stream", _STREAM_CONFIG, _STREAM),
        ("broken", _STREAM_CONFIG, _BROKEN),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        (root / name / "1" / "model.py").write_text(code)
    return root


def results(ts: Any, root: Path, **options: Any) -> Iterator[tuple[str, Any]]:
    """Run all cases on one server; yield the name and the result of each."""
    options = {"model_repository": str(root), "exit_timeout": 1} | options
    mode = ts.ModelControlMode.EXPLICIT
    startup = ["echo", "stream"]
    server = ts.Server(model_control_mode=mode, startup_models=startup, **options)
    server.start(wait_until_ready=True)
    for name, case in CASES.items():
        yield name, attempt(lambda case=case: case(ts, server))
    gc.collect()  # responses hold their server, in the real package
    yield "stop", attempt(server.stop)
    yield "stop_twice", attempt(server.stop)
    yield (
        "after_stop",
        {
            name: attempt(lambda name=name: getattr(server, name)())
            for name in ("live", "ready", "models", "metadata", "metrics")
        },
    )


def attempt(call: Callable[[], Any]) -> Any:
    """Return the result of `call`, or the class and the text of its exception."""
    try:
        return call()
    except Exception as error:
        # The texts of TypeErrors name C++ functions in the real package.
        text = "" if isinstance(error, TypeError | AttributeError) else str(error.args[0])
        return {"raised": type(error).__name__, "text": text}


def case(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    CASES[function.__name__] = function
    return function


def shown(response: Any) -> dict[str, Any]:
    """Return everything in a response that does not depend on addresses."""
    outputs = {}
    for name, tensor in response.outputs.items():
        strings = tensor.data_type.name == "BYTES"
        array = tensor.to_bytes_array().astype("S") if strings else np.from_dlpack(tensor)
        outputs[name] = {
            "type": tensor.data_type.name,
            "shape": [int(size) for size in tensor.shape],
            "memory": [tensor.memory_type.name, tensor.memory_type_id, tensor.size],
            "values": np.char.decode(array, "utf-8").tolist() if strings else array.tolist(),
        }
    error = response.error
    return {
        "model": [response.model.name, response.model.version],
        "id": response.request_id,
        "parameters": response.parameters,
        "outputs": outputs,
        "error": error and [type(error).__name__, error.args[0]],
        "final": response.final,
        "label": response.classification_label,
    }


@case
def names_of_the_package(ts: Any, server: Any) -> Any:
    return {
        name: inspect.isclass(getattr(ts, name)) and issubclass(getattr(ts, name), BaseException)
        for name in sorted(_NAMES)
        if hasattr(ts, name)
    }


_NAMES = [
    "AlreadyExistsError",
    "DLDeviceType",
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceGroupKind",
    "InternalError",
    "InvalidArgumentError",
    "LogFormat",
    "MemoryBuffer",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricFormat",
    "MetricKind",
    "Model",
    "ModelBatchFlag",
    "ModelControlMode",
    "ModelTxnPropertyFlag",
    "NotFoundError",
    "Options",
    "RateLimitMode",
    "RateLimiterResource",
    "Server",
    "Tensor",
    "TritonError",
    "UnavailableError",
    "UnknownError",
    "UnsupportedError",
]


@case
def members_of_enums(ts: Any, server: Any) -> Any:
    enums = [
        "DataType",
        "InstanceGroupKind",
        "LogFormat",
        "MemoryType",
        "MetricFormat",
        "MetricKind",
        "ModelBatchFlag",
        "ModelControlMode",
        "ModelTxnPropertyFlag",
        "RateLimitMode",
    ]
    return {
        name: {key: int(value) for key, value in getattr(ts, name).__members__.items()}
        for name in enums
    }


@case
def signatures(ts: Any, server: Any) -> Any:
    methods = {
        ts.Server: "__init__ start stop load unload model models metadata live ready metrics "
        "register_model_repository unregister_model_repository poll_model_repository",
        ts.Model: "__init__ create_request infer async_infer metadata ready batch_properties "
        "transaction_properties statistics config",
        ts.Tensor: "__dlpack__ __dlpack_device__ to_string_array to_bytes_array to_host to_device "
        "from_string_array from_bytes_array from_dlpack",
        ts.MemoryBuffer: "from_dlpack",
        ts.Metric: "__init__",
    }
    return {
        f"{owner.__name__}.{name}": [
            [parameter.name, parameter.kind.name, _default(parameter.default)]
            for parameter in inspect.signature(getattr(owner, name)).parameters.values()
        ]
        for owner, listed in methods.items()
        for name in listed.split()
    }


@case
def fields_and_defaults(ts: Any, server: Any) -> Any:
    classes = ts.Options, ts.InferenceRequest, ts.InferenceResponse, ts.Tensor, ts.MemoryBuffer
    return {
        owner.__name__: [
            [
                field.name,
                _default(
                    field.default
                    if field.default_factory is dataclasses.MISSING
                    else field.default_factory()
                ),
            ]
            for field in dataclasses.fields(owner)
            if not field.name.startswith("_") and field.name != "log_callback"
        ]
        for owner in (*classes, ts.RateLimiterResource)
    }


def _default(value: Any) -> Any:
    if value in (dataclasses.MISSING, inspect.Parameter.empty):
        return "required"
    return value if isinstance(value, int | float | str | list | dict | None) else value.name


@case
def server_metadata(ts: Any, server: Any) -> Any:
    return [server.metadata(), server.live(), server.ready()]


@case
def index_of_models(ts: Any, server: Any) -> Any:
    models, ready = server.models(), server.models(exclude_not_ready=True)
    return {
        "all": [[*key, str(model), model.reason] for key, model in sorted(models.items())],
        "ready": [[*key, model.state] for key, model in sorted(ready.items())],
        "by_name": str(models["echo"]),
        "unknown": attempt(lambda: models["nothing"]),
        "unknown_version": attempt(lambda: models["echo", 7]),
    }


@case
def properties_of_models(ts: Any, server: Any) -> Any:
    answers = {}
    for name in ("echo", "stream", "broken", "nothing"):
        model = server.model(name)
        answers[name] = {
            "ready": attempt(model.ready),
            "metadata": attempt(model.metadata),
            "batch": attempt(lambda model=model: int(model.batch_properties())),
            "transaction": attempt(lambda model=model: int(model.transaction_properties())),
            "config": attempt(lambda model=model: model.config()["name"]),
            "statistics": attempt(lambda model=model: sorted(model.statistics()["model_stats"][0])),
        }
    answers["config_version"] = attempt(lambda: server.model("echo").config(config_version=2))
    return answers


@case
def plain_request(ts: Any, server: Any) -> Any:
    inputs = {
        "TEXT": [["a"], ["ß"]],
        "FLOAT": np.array([[1, 2, 3], [4, 5, 6]], np.float32),
        "BOOL": [[True, False], [False, True]],
    }
    return [shown(each) for each in server.model("echo").infer(inputs=inputs, request_id="x")]


@case
def settings_of_a_request(ts: Any, server: Any) -> Any:
    settings = {
        "parameters": {"a": 1, "b": "text", "c": True, "d": 0.5},
        "correlation_id": 7,
        "flags": 3,
        "timeout": 5_000_000,
        "priority": 0,
        "request_id": "id",
    }
    request = server.model("echo").create_request(inputs={"TEXT": [["t"]]}, **settings)
    (response,) = server.model("echo").infer(request)
    return json.loads(response.outputs["SEEN"].to_string_array()[0][0])


@case
def correlation_by_string(ts: Any, server: Any) -> Any:
    call = {"inputs": {"TEXT": [["t"]]}, "correlation_id": "sequence", "flags": 1}
    return attempt(lambda: [shown(each) for each in server.model("echo").infer(**call)])


@case
def error_of_a_response(ts: Any, server: Any) -> Any:
    call = {"inputs": {"TEXT": [["t"]]}, "parameters": {"fail": True}, "request_id": "e"}
    model = server.model("echo")
    try:
        list(model.infer(**call))
        raised = None
    except ts.TritonError as error:
        raised = [type(error).__name__, error.args[0], shown(error.args[1])]
    return [[shown(each) for each in model.infer(raise_on_error=False, **call)], raised]


@case
def decoupled_stream(ts: Any, server: Any) -> Any:
    count = np.array([3], np.int32)
    model = server.model("stream")
    responses = [shown(each) for each in model.infer(inputs={"COUNT": count}, request_id="s")]
    none = [shown(each) for each in model.infer(inputs={"COUNT": np.zeros(1, np.int32)})]
    return [responses, none]


@case
def response_queue(ts: Any, server: Any) -> Any:
    responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
    call = {"inputs": {"COUNT": np.array([2], np.int32)}, "response_queue": responses}
    iterated = list(server.model("stream").infer(**call))
    queued = [responses.get(timeout=10) for _ in range(3)]
    return [
        [each.final for each in queued],
        [one is other for one, other in zip(iterated, queued, strict=True)],
        responses.empty(),
    ]


@case
def asynchronous_requests(ts: Any, server: Any) -> Any:
    model = server.model("stream")
    count = {"COUNT": np.array([2], np.int32)}
    outside = model.async_infer(inputs=count)  # without an event loop

    async def collect() -> Any:
        responses: asyncio.Queue[Any] = asyncio.Queue()
        streams = [model.async_infer(inputs=count, response_queue=responses) for _ in range(2)]
        iterated = [await _finals(stream) for stream in streams]
        queued = [(await responses.get()).final for _ in range(6)]
        plain = [shown(each)["outputs"] async for each in model.async_infer(inputs=count)]
        return [await _finals(outside), iterated, sorted(queued), plain, responses.empty()]

    return asyncio.run(collect())


@case
def refused_requests(ts: Any, server: Any) -> Any:
    text = {"TEXT": [["t"]]}
    wrong_size = ts.Tensor.from_bytes_array([["t"]])
    wrong_size.shape = [1, 2]
    calls: dict[str, dict[str, Any]] = {
        "unknown_input": {"inputs": {"OTHER": [["t"]]}},
        "wrong_type": {"inputs": {"TEXT": [[1]]}},
        "wrong_shape": {"inputs": {"TEXT": [["t", "u"]]}},
        "wrong_rank": {"inputs": {"TEXT": ["t"]}},
        "large_batch": {"inputs": {"TEXT": [["t"]] * 5}},
        "wrong_size": {"inputs": {"TEXT": wrong_size}},
        "ragged_list": {"inputs": {"FLOAT": [[1.0], [1.0, 2.0]]}},
        "unsupported_dtype": {"inputs": {"FLOAT": np.zeros((1, 1), np.complex64)}},
        "scalar": {"inputs": {"FLOAT": 1.0}},
        "text": {"inputs": {"TEXT": "t"}},
        "no_inputs": {},
        "id_is_number": {"inputs": text, "request_id": 1},
        "priority_is_negative": {"inputs": text, "priority": -1},
        "timeout_is_float": {"inputs": text, "timeout": 1.5},
        "flags_is_text": {"inputs": text, "flags": "1"},
        "correlation_is_negative": {"inputs": text, "correlation_id": -1},
        "correlation_is_float": {"inputs": text, "correlation_id": 1.5},
        "correlation_is_long": {"inputs": text, "correlation_id": "x" * 129},
        "parameter_is_dict": {"inputs": text, "parameters": {"p": {}}},
        "parameter_is_none": {"inputs": text, "parameters": {"p": None}},
        "parameter_is_large": {"inputs": text, "parameters": {"p": 2**63}},
        "parameter_name_is_number": {"inputs": text, "parameters": {1: "x"}},
        "memory_is_unknown": {"inputs": text, "output_memory_type": "elsewhere"},
        "memory_is_gpu": {"inputs": text, "output_memory_type": "gpu"},
        "unknown_field": {"inputs": text, "nothing": 1},
    }
    model = server.model("echo")
    answers = {
        name: attempt(lambda call=call: len(list(model.infer(**call))))
        for name, call in calls.items()
    }
    for name in ("nothing", "broken"):
        other = server.model(name)
        answers[name] = attempt(lambda other=other: list(other.infer(inputs=text)))
    other = server.model("echo", 3)
    answers["version"] = attempt(lambda: list(other.infer(inputs=text)))
    answers["foreign_request"] = attempt(lambda: list(model.infer({"inputs": text})))
    return answers


async def _finals(stream: Any) -> list[bool]:
    return [each.final async for each in stream]


@case
def successes_are_counted(ts: Any, server: Any) -> Any:
    model = server.model("stream")
    # An execution is counted after its last response, but before the instance's next execution.
    list(model.infer(inputs={"COUNT": np.zeros(1, np.int32)}))
    (stats,) = model.statistics()["model_stats"]
    return [stats["name"], stats["version"], min(stats["inference_stats"]["success"]["count"], 7)]


@case
def asynchronous_queue_without_a_loop(ts: Any, server: Any) -> Any:
    call = {"inputs": {"COUNT": np.array([1], np.int32)}, "response_queue": asyncio.Queue()}
    return attempt(lambda: server.model("stream").async_infer(**call))


@case
def tensors(ts: Any, server: Any) -> Any:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    tensor = ts.Tensor.from_dlpack(array)
    texts = ts.Tensor.from_string_array([["ab", "ü"]])
    answers: dict[str, Any] = {
        "from_dlpack": [tensor.data_type.name, list(tensor.shape), tensor.size],
        "address_is_shared": tensor.data_ptr == array.ctypes.data,
        "device": [int(value) for value in _plain(tensor.__dlpack_device__())],
        "back": np.from_dlpack(tensor).tolist(),
        "shares": bool(np.shares_memory(np.from_dlpack(tensor), array)),
        "to_host_is_itself": tensor.to_host() is tensor,
        "buffer": [
            ts.MemoryBuffer.from_dlpack(array).size,
            ts.MemoryBuffer.from_dlpack(array).memory_type.name,
        ],
        "bytes": [texts.data_type.name, list(texts.shape), texts.size],
        "bytes_array": [[each.decode() for each in texts.to_bytes_array().ravel().tolist()]],
        "string_array": ts.Tensor.from_string_array(["ab"]).to_string_array().tolist(),
        "from_bytes": ts.Tensor.from_bytes_array(np.array([b"x", b"yz"]))
        .to_string_array()
        .tolist(),
        "from_objects": ts.Tensor.from_bytes_array(np.array([1, None], object)).size,
    }
    for name, call in {
        "not_bytes": lambda: tensor.to_bytes_array(),
        "bytes_of_numbers": lambda: ts.Tensor.from_bytes_array([1, 2]),
        "no_dlpack": lambda: ts.Tensor.from_dlpack("x"),
        "not_contiguous": lambda: ts.Tensor.from_dlpack(array.T),
        "buffer_without_dlpack": lambda: ts.MemoryBuffer.from_dlpack(1),
        "dlpack_of_bytes": lambda: texts.__dlpack__(),
        "stream": lambda: tensor.__dlpack__(stream=5),
        "stream_is_text": lambda: tensor.__dlpack__(stream="x"),
        "gpu": lambda: tensor.to_device("gpu"),
        "unknown_device": lambda: tensor.to_device("tpu"),
        "many_parts": lambda: tensor.to_device("cpu:0:0"),
        "bad_id": lambda: tensor.to_device("cpu:x"),
        "cpu": lambda: tensor.to_device("cpu:0") is tensor,
        "memory_type": lambda: tensor.to_device(ts.MemoryType.CPU) is tensor,
        "pair": lambda: tensor.to_device((ts.MemoryType.CPU, 0)) is tensor,
        "wrong_pair": lambda: tensor.to_device(("cpu", 0)),
    }.items():
        answers[name] = attempt(call)
    types = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
    answers["types"] = [
        ts.Tensor.from_dlpack(np.zeros(1, name)).data_type.name for name in types.split()
    ]
    return answers


def _plain(pair: Any) -> Iterator[int]:
    for value in pair:
        yield getattr(value, "value", value)


@case
def lifetimes_of_tensors(ts: Any, server: Any) -> Any:
    owner = np.ones(1000)
    before = sys.getrefcount(owner)
    tensor = ts.Tensor.from_dlpack(owner)
    held = sys.getrefcount(owner) - before
    view = np.from_dlpack(tensor)
    tensor_held = sys.getrefcount(tensor)
    del tensor
    alive = float(view.sum())
    del view
    gc.collect()
    return [held, tensor_held, alive, sys.getrefcount(owner) - before]


@case
def repository_control(ts: Any, server: Any) -> Any:
    answers: dict[str, Any] = {
        "unload": attempt(lambda: server.unload("stream", wait_until_unloaded=True)),
    }
    states = server.models()
    answers["state"] = [[*key, model.state, model.reason] for key, model in sorted(states.items())]
    answers["load"] = str(server.load("stream"))
    answers["state_after"] = server.models()["stream", 1].state
    config = json.dumps({"backend": "python", "max_batch_size": 0} | _IO)
    files = {"config": config, "file:1/model.py": _STREAM.encode()}
    for name, call in {
        "with_files": lambda: str(server.load("sent", files)),
        "unknown": lambda: server.load("nothing"),
        "unknown_parameter": lambda: server.load("echo", {"other": "x"}),
        "config_is_bytes": lambda: server.load("echo", {"config": b"{}"}),
        "file_is_text": lambda: server.load("echo", {"file:1/model.py": "x"}),
        "parameter_is_list": lambda: server.load("echo", {"config": []}),
        "name_is_number": lambda: server.load(1),
        "unload_unknown": lambda: server.unload("nothing"),
        "unload_model": lambda: server.unload(server.model("sent"), wait_until_unloaded=True),
        "unload_number": lambda: server.unload(1),
        "poll": server.poll_model_repository,
    }.items():
        answers[name] = attempt(call)
    answers["broken"] = attempt(lambda: server.load("broken"))["raised"]
    return answers


_IO = {
    "input": [{"name": "COUNT", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "N", "data_type": "TYPE_INT32", "dims": [1]}],
}


@case
def custom_metrics(ts: Any, server: Any) -> Any:
    family = ts.MetricFamily(ts.MetricKind.COUNTER, "own_total", "Counts things")
    gauges = ts.MetricFamily(ts.MetricKind.GAUGE, "own_gauge", "Measures things")
    counter = ts.Metric(family, {"a": "b"})
    gauge = ts.Metric(gauges)
    counter.increment(2)
    gauge.set_value(5)
    gauge.increment(-1)
    other_family = ts.MetricKind.GAUGE, "own_total", "x"
    return {
        "values": [counter.value, gauge.value, counter.kind.name, gauge.kind.name],
        "text": [line for line in server.metrics().splitlines() if "own_" in line],
        "decrement": attempt(lambda: counter.increment(-1)),
        "set_counter": attempt(lambda: counter.set_value(1)),
        "other_kind": attempt(lambda: _made(ts.MetricFamily(*other_family))),
        "bad_name": attempt(lambda: _made(ts.MetricFamily(ts.MetricKind.GAUGE, "a b", "x"))),
        "bad_label": attempt(lambda: _made(ts.Metric(family, {"a b": "x"}))),
        "label_is_number": attempt(lambda: ts.Metric(family, {"a": 1.5}))["raised"],
        "bad_format": attempt(lambda: server.metrics("text"))["raised"],
    }


def _made(made: Any) -> str:
    return "made"


@case
def metrics_of_models(ts: Any, server: Any) -> Any:
    lines = server.metrics().splitlines()
    return sorted({line.split("{")[0] for line in lines if line.startswith("nv_inference_")})


@case
def starting_servers(ts: Any, server: Any) -> Any:
    root = server.options.model_repository
    folder = root if isinstance(root, str) else root[0]
    answers = {}
    for name, options in {
        "id_is_number": {"server_id": 1, "model_repository": folder},
        "repository_is_number": {"model_repository": 1},
        "repository_is_none": {"model_repository": None},
        "no_repository": {},
        "missing_repository": {"model_repository": "/nowhere/at/all"},
        "mode_is_text": {"model_control_mode": "explicit", "model_repository": folder},
        "timeout_is_negative": {"exit_timeout": -1, "model_repository": folder},
        "verbose_is_text": {"log_verbose": "1", "model_repository": folder},
        "startup_is_number": {"startup_models": [1], "model_repository": folder},
        "unknown_option": {"nothing": 1},
    }.items():
        raised = attempt(lambda options=options: ts.Server(**options).start().stop())
        answers[name] = raised and raised["raised"]
    unstarted = ts.Server(model_repository=folder)
    for name in ("ready", "live", "metadata", "models", "stop", "metrics"):
        answers[name] = attempt(getattr(unstarted, name))
    answers["model"] = attempt(lambda: unstarted.model("echo"))
    answers["start_twice"] = attempt(server.start)
    return answers


def main() -> None:
    import tritonserver

    backends = os.environ["REAL_TRITONSERVER"]
    with tempfile.TemporaryDirectory() as folder:
        root = write_models(Path(folder) / "models")
        for name, result in results(tritonserver, root, backend_directory=backends):
            print(json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main()
