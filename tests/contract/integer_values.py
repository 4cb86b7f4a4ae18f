"""Every integer that a client or a configuration can set, with many values.

    PYTHONPATH=.:tests python -m contract.integer_values            record new fields
    PYTHONPATH=.:tests python -m contract.integer_values PATTERN    record some fields again

The recording has the answers by field and value. `tests/recorded/test_integers.py` compares the
reference server's answers with it.
"""

from __future__ import annotations

import functools
import http.client
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from contract.grpc_casebook import GrpcCall, Unsigned, call, floats, infer, output, tensor
from contract.integer_configs import EDGES, HOLE, JSON_VALUES, config_fields, posted
from contract.probes import write_probes
from contract.recordings import FOLDER
from contract.test_model_api import write as write_model_api
from google.protobuf.message import Message
from support.in_process import InProcessServer
from support.servers import Flag, Server, revive, start_tritonserver
from tritonclient.grpc import service_pb2 as pb

RECORDING = FOLDER / "integers.json"
FLAGS: dict[str, Flag] = {
    "allow_metrics": False,
    "disable_auto_complete_config": None,
    "model_control_mode": "explicit",
    "load_model": ["mirror", "types", "labelled", "asks", "echoes"],
}
#: The recorded answer if a value crashes the real server, or is never answered.
ENDS = "no answer"
CODE_VALUES = (
    *("2**31", "2**32", "2**63 - 1", "2**63", "2**64 - 1", "2**64", "-1", "-2**63", "-2**63 - 1"),
    *("0", "3", "True", "1.0", "1.5", "'3'", "None", "np.int64(3)", "np.int64(-1)", "np.int32(3)"),
    *("np.uint64(2**63)", "np.uint8(3)", "np.bool_(True)", "np.float32(1)", "np.array(3)", "3j"),
)

_MIRROR_INPUT = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2]}
_REQUEST_FIELDS = ("sequence_id", "sequence_start", "priority", "timeout", "other", "headers",
                   "binary_data_output", "triton_x")  # fmt: skip
_TENSOR_FIELDS = ("binary_data_size", "shared_memory_offset", "shared_memory_byte_size",
                  "shared_memory_region", "other")  # fmt: skip
_TYPES = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


# ------------------------------------------------------------------------------------------ HTTP


def _json(body: Mapping[str, Any]) -> str:
    """Return JSON in which the hole (the replaced value) has no quotes."""
    return json.dumps(body).replace(f'"{HOLE}"', HOLE)


#: Values of a shape. For larger ones, the real server crashes or never answers.
_SHAPES = tuple(value for value in JSON_VALUES if len(value) < 10 or value.startswith("-"))


def _http_fields() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the path and the body of each field of HTTP."""
    infer_path = "/v2/models/mirror/infer"
    for name in _REQUEST_FIELDS:
        body = _json({"parameters": {name: HOLE}, "inputs": [_MIRROR_INPUT]})
        yield f"infer {name}", infer_path, body
        body = _json({"parameters": {"sequence_id": 5, name: HOLE}, "X": [1, 2]})
        yield f"generate {name}", "/v2/models/mirror/generate", body
    for name in _TENSOR_FIELDS:
        one = {**_MIRROR_INPUT, "parameters": {name: HOLE}}
        yield f"input {name}", infer_path, _json({"inputs": [one]})
        pair = {"shared_memory_region": "nowhere", "shared_memory_byte_size": 8, name: HOLE}
        one = {"name": "X", "datatype": "FP32", "shape": [2], "parameters": pair}
        yield f"shared input {name}", infer_path, _json({"inputs": [one]})
    for name in (*_TENSOR_FIELDS, "binary_data", "classification"):
        wanted = [{"name": "Y", "parameters": {name: HOLE}}]
        one = {**_MIRROR_INPUT, "shape": [1, 2]}
        body = _json({"inputs": [one], "outputs": wanted})
        yield f"output {name}", "/v2/models/labelled/infer", body
    for shape in (HOLE, [HOLE], [1, HOLE], [HOLE, 0]):
        body = _json({"inputs": [{**_MIRROR_INPUT, "shape": shape}]})
        yield f"shape {json.dumps(shape)}", infer_path, body
    for kind in _TYPES:
        one = {"name": kind, "datatype": kind, "shape": [1], "data": [HOLE]}
        yield f"data of {kind}", "/v2/models/types/infer", _json({"inputs": [one]})
        yield f"generate {kind}", "/v2/models/types/generate", _json({kind: HOLE})
    for name in ("trace_rate", "trace_count", "log_frequency", "trace_level"):
        yield f"trace {name}", "/v2/models/mirror/trace/setting", _json({name: HOLE})
    for name in ("offset", "byte_size"):
        place = {"key": "/nowhere", "offset": 0, "byte_size": 8, name: HOLE}
        yield f"region {name}", "/v2/systemsharedmemory/region/r/register", _json(place)
    for name in ("device_id", "byte_size"):
        place = {"raw_handle": {"b64": "QQ=="}, "device_id": 0, "byte_size": 8, name: HOLE}
        yield f"CUDA region {name}", "/v2/cudasharedmemory/region/r/register", _json(place)
    yield "index ready", "/v2/repository/index", _json({"ready": HOLE})
    control = "/v2/repository/models/missing/"
    for name in ("config", "file:1/model.py", "other"):
        yield f"load {name}", f"{control}load", _json({"parameters": {name: HOLE}})
    body = _json({"parameters": {"unload_dependents": HOLE}})
    yield "unload unload_dependents", f"{control}unload", body
    yield "log_verbose_level", "/v2/logging", _json({"log_verbose_level": HOLE})


def _over_http(path: str, body: str, server: Any, value: str) -> str:
    answer = posted(server, path, body.replace(HOLE, value))
    return answer[:3] if path.endswith("/index") and answer.startswith("200") else answer


# ------------------------------------------------------------------------------------------ gRPC

_X = tensor("X", "FP32", [2])
_DATA = floats(1, 2)
#: The values that a parameter of gRPC can have.
_PARAMETERS: dict[str, object] = {
    **{f"int64 {value}": value for value in (0, 3, -1, 2**31, 2**32, 2**63 - 1, -(2**63))},
    **{f"uint64 {value}": Unsigned(value) for value in (0, 3, 2**63 - 1, 2**63, 2**64 - 1)},
    **{f"double {value}": value for value in (3.0, 1.5, 2.0**63, -(2.0**63), 2.0**64)},
    **{f"bool {value}": value for value in (True, False)},
    **{f"string {value!r}": value for value in ("3", "-1", str(2**63), "")},
}
_INTEGERS = {str(value): value for value in (0, 3, -1, 2**31, 2**32, 2**63 - 1, -(2**63))}
_UNSIGNED = {str(value): value for value in (0, 3, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)}
_TEXTS = {value: value for value in (*EDGES, "0", "3", "+3", " 3", "3 ", "0x3", "03", "1.0", "x")}


def _traced(name: str, value: str) -> Message:
    setting = pb.TraceSettingRequest.SettingValue(value=[value])
    return pb.TraceSettingRequest(model_name="mirror", settings={name: setting})


def _grpc_fields() -> Iterator[tuple[str, Mapping[str, Any], Callable[[Any], GrpcCall]]]:
    """Yield the name, the values and the call of each field of gRPC."""

    def field(name: str, values: Mapping[str, Any], method: str, made: Callable[[Any], Message]):
        return f"gRPC {name}", values, lambda value: call(method, made(value))

    for key in (*_REQUEST_FIELDS, "sequence_end", "triton_enable_empty_final_response"):
        yield field(
            f"infer {key}",
            _PARAMETERS,
            "ModelInfer",
            lambda value, key=key: infer("mirror", _X, raw=[_DATA], given={key: value}),
        )
    for key in (*_TENSOR_FIELDS, "classification"):
        yield field(
            f"input {key}",
            _PARAMETERS,
            "ModelInfer",
            lambda value, key=key: infer(
                "mirror", tensor("X", "FP32", [2], **{key: value}), raw=[_DATA]
            ),
        )
        yield field(
            f"output {key}",
            _PARAMETERS,
            "ModelInfer",
            lambda value, key=key: infer(
                "labelled",
                tensor("X", "FP32", [1, 2]),
                raw=[_DATA],
                outputs=[output("Y", **{key: value})],
            ),
        )
    for before in ([], [1], [0]):
        yield field(
            f"shape after {before}",
            _INTEGERS,
            "ModelInfer",
            lambda value, before=before: infer(
                "mirror", tensor("X", "FP32", [*before, value]), raw=[_DATA]
            ),
        )
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        made = getattr(pb, f"{method}Request")
        yield field(
            f"{method} version",
            _TEXTS,
            method,
            lambda value, made=made: made(name="mirror", version=value),
        )
    yield field(
        "infer version",
        _TEXTS,
        "ModelInfer",
        lambda value: infer(f"mirror/{value}", _X, raw=[_DATA]),
    )
    for name in ("trace_rate", "trace_count", "log_frequency"):
        yield field(name, _TEXTS, "TraceSetting", lambda value, name=name: _traced(name, value))
    for name in ("offset", "byte_size"):
        yield field(
            f"region {name}",
            _UNSIGNED,
            "SystemSharedMemoryRegister",
            lambda value, name=name: pb.SystemSharedMemoryRegisterRequest(
                **{"name": "r", "key": "/nowhere", "byte_size": 8, name: value}
            ),
        )
    for name, values in (("device_id", _INTEGERS), ("byte_size", _UNSIGNED)):
        yield field(
            f"CUDA region {name}",
            values,
            "CudaSharedMemoryRegister",
            lambda value, name=name: pb.CudaSharedMemoryRegisterRequest(
                **{"name": "r", "raw_handle": b"A", "byte_size": 8, name: value}
            ),
        )


def _over_grpc(
    made: Callable[[Any], GrpcCall], values: Mapping[str, Any], server: Any, value: str
) -> str:
    with grpc.insecure_channel(server.grpc) as channel:
        outcome = made(values[value]).put(channel)
    if outcome.messages and isinstance(outcome.messages[0], pb.ModelStatisticsResponse):
        return outcome.code  # the statistics depend on earlier requests
    return str(outcome)


# --------------------------------------------------------------------------------- pb_utils

#: Code for the probe `asks`, in which `V` is the value.
CALLS = {
    "timeout": "seen(timeout=V)",
    "correlation_id": "seen(correlation_id=V)",
    "flags": "seen(flags=V)",
    "model_version": "to('echoes', numbers(1), model_version=V) and 'accepted'",
    "executed version": "show(to('echoes', numbers(1), outputs=['OUT'], model_version=V).exec())",
    "parameters": "seen(parameters={'a': V})",
    "set_flags": "(lambda r: (r.set_flags(V), r.flags()))(echo(1))",
    "device": "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, V) and 'accepted'",
    "read timeout": "echo(1, timeout=V).timeout()",
    "read correlation_id": "echo(1, correlation_id=V).correlation_id()",
    "read parameters": "echo(1, parameters={'a': V}).parameters()",
    "is_model_ready": "pb_utils.is_model_ready('echoes', V)",
    "error code": "pb_utils.TritonError('e', V) and 'accepted'",
    "shape": "pb_utils.Tensor('X', np.full(2, V)).shape()",
    "element": "pb_utils.Tensor('X', np.array([V], np.int64)).as_numpy().tolist()",
    "max_batch_size": "(lambda c: (c.set_max_batch_size(V), c.as_dict()))"
    '(pb_utils.ModelConfig(\'{"name": "m", "max_batch_size": 0}\'))',
    "dims": "(lambda c: (c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [V]}), "
    'c.as_dict()))(pb_utils.ModelConfig(\'{"name": "m", "input": []}\'))',
}


def _called(field: str, server: Any, value: str) -> str:
    code = f"R = refusal(lambda V={value}: {CALLS[field]})"
    one = {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}
    answer = posted(server, "/v2/models/asks/infer", json.dumps({"inputs": [one]}))
    content = json.loads(answer[4:])
    text = content["outputs"][0]["data"][0] if "outputs" in content else content["error"]
    # NumPy 2 prints scalars with their types; the real server needs NumPy 1.26.
    text = re.sub(r"np\.(?:\w+\(([\w.-]+)\)|(True)_)", r"\1\2", text).replace("bool_'", "bool'")
    # If pybind11 refuses a value, only the exception's class is compared (see argument_matrix.py).
    return re.sub(
        r"^(TypeError|RuntimeError|OverflowError|ValueError): .*", r"\1", text, flags=re.S
    )


# --------------------------------------------------------------------------------- all fields


@dataclass(frozen=True)
class Field:
    """A field, its values, and a function that returns a server's answer to one of them."""

    name: str
    values: tuple[str, ...]
    ask: Callable[[Any, str], str]


def fields(folder: Path) -> list[Field]:
    """Return all fields; `folder` is the repository of the servers."""
    found = [
        Field(
            name,
            _SHAPES if name.startswith("shape") else JSON_VALUES,
            functools.partial(_over_http, path, body),
        )
        for name, path, body in _http_fields()
    ]
    found += [
        Field(name, tuple(values), functools.partial(_over_grpc, made, values))
        for name, values, made in _grpc_fields()
    ]
    found += [Field(*each) for each in config_fields(folder)]
    for field in CALLS:
        found.append(Field(f"call {field}", CODE_VALUES, functools.partial(_called, field)))
    return found


def write(folder: Path) -> None:
    """Write the repository of the servers."""
    write_probes(folder, "mirror", "types", "labelled")
    write_model_api(folder, "asks", "echoes")


Answers = dict[str, dict[str, str]]
#: Replaces long values in recorded answers.
_VALUE = "VALUE"
_LONG = 4


def read() -> Answers:
    """Return the recorded answers by field and value."""
    if not RECORDING.exists():
        return {}
    table: dict[str, dict[str, list[str]]] = json.loads(RECORDING.read_text(encoding="utf-8"))
    return {
        name: {
            value: answer.replace(_VALUE, value)
            for answer, values in groups.items()
            for value in values
        }
        for name, groups in table.items()
    }


def _save(answers: Answers) -> None:
    table: dict[str, dict[str, list[str]]] = {}
    for name, by_value in answers.items():
        groups = table.setdefault(name, {})
        for value, answer in by_value.items():
            text = answer.replace(value, _VALUE) if len(value) >= _LONG else answer
            groups.setdefault(text, []).append(value)
    lines = (f"{json.dumps(name)}: {json.dumps(groups)}" for name, groups in table.items())
    RECORDING.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def answers(server: Server | InProcessServer, field: Field) -> dict[str, str]:
    """Return a server's answers to all values of a field."""
    return {value: field.ask(server, value) for value in field.values}


def _recorded(server: Server, field: Field) -> dict[str, str]:
    """Return the real server's answers; start it again after a value that crashes it."""
    found = {}
    for value in field.values:
        try:
            found[value] = field.ask(server, value)
        except (OSError, http.client.HTTPException) as error:
            found[value] = ENDS
            print(field.name, value, repr(error), flush=True)
            if isinstance(error, TimeoutError):
                server.process.kill()
            if not revive(after_failure=True):
                raise
    return found


def _main(pattern: str) -> None:
    kept = read()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "repository"
        folder.mkdir()
        write(folder)
        known = {field.name: field for field in fields(folder)}
        with start_tritonserver(folder, **FLAGS) as server:
            for name, field in known.items():
                if re.search(pattern, name) if pattern else name not in kept:
                    kept[name] = _recorded(server, field)
                    _save({each: kept[each] for each in known if each in kept})


if __name__ == "__main__":
    _main(sys.argv[1] if len(sys.argv) > 1 else "")
