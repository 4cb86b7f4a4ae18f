"""The integers of configurations, as config.pbtxt and as JSON of a load request."""

from __future__ import annotations

import functools
import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

#: Values for fields of configurations. One field of each type has all values, others have few.
_LIMITS = ("-1", "0", "2147483648", "4294967296", "9223372036854775807", "18446744073709551615")
_EACH_TYPE = ("max_batch_size", "dims", "latest", "delay", "model_version", "default level")
#: The hole, i.e. the replaced value in a template; no other value has these digits.
HOLE = "77"
_ANSWER_SECONDS = 60
EDGES = ("2147483648", "4294967296", "9223372036854775807", "9223372036854775808",
          "18446744073709551615", "18446744073709551616", "-1", "-9223372036854775808",
          "-9223372036854775809")  # fmt: skip
JSON_VALUES = (*EDGES, "0", "-0", "3", "true", "false", "null", "1.0", "1.5", "1e3", "1e400",
               '"3"', '"-1"', '"9223372036854775808"', '"x"', '""', "[3]", "{}")  # fmt: skip
TEXT_VALUES = (*EDGES, "0", "3", "0x7", "010", "08", "1.0", "1e3", '"3"', "true", "")
#: Other forms of JSON are compared in `repository_scripts.py`.
_CONFIG_VALUES = tuple(value for value in JSON_VALUES if value not in ("null", "[3]"))


def posted(server: Any, path: str, body: str | None = None, method: str = "POST") -> str:
    """Send a request to a server; return the status and the body."""
    connection = _connection(server)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return f"{reply.status} {reply.read().decode('utf-8', 'backslashreplace')}"
    finally:
        connection.close()


def _connection(server: Any) -> http.client.HTTPConnection:
    if not server.http.startswith("unix:"):
        return http.client.HTTPConnection(server.http, timeout=_ANSWER_SECONDS)
    connection = http.client.HTTPConnection("localhost", timeout=_ANSWER_SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(server.http.removeprefix("unix:"))
    return connection


_TENSORS = """input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }"""
_BATCHED = f"{_TENSORS} max_batch_size: 4"
_SEQUENCE = f"{_TENSORS} sequence_batching {{"
_CONTROL = 'control_input { name: "C" control { kind: CONTROL_SEQUENCE_START'
_WARM = f'{_BATCHED} model_warmup {{ name: "w"'
#: The configurations by field. A comment `large` means that large values need as much memory.
CONFIGS: dict[str, str] = {
    "max_batch_size": f"{_TENSORS} max_batch_size: 77",
    "dims": _TENSORS.replace("[1]", "[77]", 1),
    "dims of an output": _TENSORS[::-1].replace("]1[", "]77[", 1)[::-1],
    "reshape": _TENSORS.replace("[1]", "[1] reshape { shape: [77] }", 1),
    "dims and reshape": _TENSORS.replace("[1]", "[2, 77] reshape { shape: [77, 2] }", 1),
    "latest": f"{_TENSORS} version_policy {{ latest {{ num_versions: 77 }} }}",
    "specific": f"{_TENSORS} version_policy {{ specific {{ versions: [1, 77] }} }}",
    "count": f"{_TENSORS} instance_group {{ kind: KIND_CPU count: 77 }} # large",
    "gpus": f"{_TENSORS} instance_group {{ kind: KIND_GPU gpus: [77] }}",
    "secondary device": f"""{_TENSORS} instance_group {{ kind: KIND_CPU
        secondary_devices {{ kind: KIND_NVDLA device_id: 77 }} }}""",
    "rate priority": f"""{_TENSORS} instance_group {{ kind: KIND_CPU
        rate_limiter {{ priority: 77 }} }}""",
    "resources": f"""{_TENSORS} instance_group {{ kind: KIND_CPU
        rate_limiter {{ resources {{ name: "R" count: 77 }} }} }}""",
    "preferred": f"{_BATCHED} dynamic_batching {{ preferred_batch_size: [77] }}",
    "delay": f"{_BATCHED} dynamic_batching {{ max_queue_delay_microseconds: 77 }}",
    "levels": f"""{_BATCHED} dynamic_batching {{ priority_levels: 77
        default_priority_level: 1 }} # large""",
    "default level": f"""{_BATCHED} dynamic_batching {{ priority_levels: 5
        default_priority_level: 77 }}""",
    "queue size": f"""{_BATCHED} dynamic_batching {{
        default_queue_policy {{ max_queue_size: 77 }} }}""",
    "queue timeout": f"""{_BATCHED} dynamic_batching {{
        default_queue_policy {{ default_timeout_microseconds: 77 }} }}""",
    "idle": f"{_SEQUENCE} max_sequence_idle_microseconds: 77 }}",
    "direct delay": f"{_SEQUENCE} direct {{ max_queue_delay_microseconds: 77 }} }}",
    "candidates": f"{_SEQUENCE} oldest {{ max_candidate_sequences: 77 }} }} # large",
    "oldest delay": f"""{_SEQUENCE} oldest {{ max_candidate_sequences: 4
        max_queue_delay_microseconds: 77 }} }}""",
    "oldest preferred": f"""{_BATCHED} sequence_batching {{ oldest {{
        max_candidate_sequences: 4 preferred_batch_size: [77] }} }}""",
    "control": f"{_SEQUENCE} {_CONTROL} int32_false_true: [0, 77] }} }} }}",
    "state dims": f"""{_SEQUENCE} state {{ input_name: "I" output_name: "O"
        data_type: TYPE_FP32 dims: [77] }} }} # large""",
    "initial state": f"""{_SEQUENCE} state {{ input_name: "I" output_name: "O"
        data_type: TYPE_FP32 dims: [-1] initial_state {{ name: "s" data_type: TYPE_FP32
        dims: [77] zero_data: true }} }} }} # large""",
    "warm-up batch": f'''{_WARM} batch_size: 77 inputs {{ key: "X" value {{ data_type: TYPE_FP32
        dims: [1] zero_data: true }} }} }} # large''',
    "warm-up count": f'''{_WARM} batch_size: 1 count: 77 inputs {{ key: "X" value {{
        data_type: TYPE_FP32 dims: [1] zero_data: true }} }} }} # large''',
    "warm-up dims": f'''{_WARM} batch_size: 1 inputs {{ key: "X" value {{ data_type: TYPE_FP32
        dims: [77] zero_data: true }} }} }} # large''',
    "graph level": f"{_TENSORS} optimization {{ graph {{ level: 77 }} }}",
    "threshold": f"{_TENSORS} optimization {{ gather_kernel_buffer_threshold: 77 }}",
    "graph batch": f"""{_TENSORS} optimization {{ cuda {{
        graph_spec {{ batch_size: 77 }} }} }}""",
    "graph dims": f"""{_TENSORS} optimization {{ cuda {{ graph_spec {{ batch_size: 1
        input {{ key: "X" value {{ dim: [77] }} }} }} }} }}""",
    "model_version": """platform: "ensemble" input { name: "X" data_type: TYPE_FP32 dims: [-1] }
        output { name: "Y" data_type: TYPE_STRING dims: [1] } ensemble_scheduling {
        step { model_name: "mirror" model_version: 77 input_map { key: "X" value: "X" }
        output_map { key: "facts" value: "Y" } } }""",
}  # fmt: skip
_LARGEST = 1000
_SILENT = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def _text(field: str) -> str:
    text = CONFIGS[field].replace("# large", "")
    return text if "platform" in text else f'backend: "python" {text}'


def _as_json(field: str) -> str:
    """Return the configuration as JSON, with the hole without quotes."""
    message = text_format.Parse(_text(field), ModelConfig())
    document = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(document).replace(f'"{HOLE}"', HOLE)


def _path(value: Any) -> list[Any] | None:
    """Return the keys that lead to the hole."""
    if value in (HOLE, int(HOLE)):
        return []
    members = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else members:
        if (found := _path(item)) is not None:
            return [key, *found]
    return None


def _is_small(field: str, value: str) -> bool:
    if "# large" not in CONFIGS[field] or value.startswith("-"):
        return True
    numbers = re.findall(r"\d+", value)
    return "e" not in value and all(int(number) <= _LARGEST for number in numbers)


def _loaded(field: str, in_json: bool, folder: Path, server: Any, value: str) -> str:
    """Load a new model with the value; return the error, or the value in its configuration."""
    names = _CONFIG_VALUES if in_json else TEXT_VALUES
    model = f"{field.replace(' ', '_')}_{'json' if in_json else 'text'}_{names.index(value)}"
    version = folder / model / "1"
    version.mkdir(parents=True, exist_ok=True)
    if "platform" not in CONFIGS[field]:
        (version / "model.py").write_text(_SILENT)
    body = None
    file = folder / model / "config.pbtxt"
    if in_json:
        file.write_text(_text(field).replace(HOLE, "1"))
        config = _as_json(field).replace(HOLE, value)
        body = json.dumps({"parameters": {"config": config}})
    else:
        file.write_text(_text(field).replace(HOLE, value))
    answer = posted(server, f"/v2/repository/models/{model}/load", body)
    if answer.startswith("200"):
        path = _path(json.loads(_as_json(field)))
        assert path is not None
        config = json.loads(posted(server, f"/v2/models/{model}/config", method="GET")[4:])
        answer = f"200 {functools.reduce(_item, path, config)}"
        posted(server, f"/v2/repository/models/{model}/unload")
    return answer.replace(str(folder), "REPOSITORY").replace(model, "MODEL")


def _item(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (KeyError, IndexError, TypeError):
        return "default"


Ask = Callable[[Any, str], str]


def config_fields(folder: Path) -> Iterator[tuple[str, tuple[str, ...], Ask]]:
    """Yield the name, the values and the request of each field; `folder` is the repository."""
    for field in CONFIGS:
        for kind, in_json, values in (("text", False, TEXT_VALUES), ("JSON", True, _CONFIG_VALUES)):
            used = values if field in _EACH_TYPE else _LIMITS
            small = tuple(value for value in used if _is_small(field, value))
            yield f"{kind} {field}", small, functools.partial(_loaded, field, in_json, folder)
