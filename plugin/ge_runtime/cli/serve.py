"""`ge-runtime serve`: configures ONNX graphs and serves them with the reference server."""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from ge_runtime.child_process import cleanup_on_termination
from ge_runtime.cli.command import Command
from ge_runtime.cli.config_pbtxt import read_model_config, read_runtime_config
from ge_runtime.cli.init import add_init_options, init_arguments, model_name, write_model
from ge_runtime.discovery.export import Export
from ge_runtime.errors import RuntimeFault
from ge_runtime.specs import DType

_DESCRIPTION: Final = """\
Configure ONNX graphs as `ge-runtime init` does, and serve them with the reference server.

A GRAPH is an .onnx file, a folder with .onnx files, or a folder that optimum, transformers or
sentence-transformers has exported. The model repository is temporary unless
--into names a folder; models that this folder already contains are served unchanged.
"""

_EPILOG: Final = """\
examples:
  ge-runtime serve model.onnx
  ge-runtime serve encoder.onnx vad.onnx --constant sr=16000 --into model_repository

Requires the reference server: pip install 'ge-runtime[serve]'.

Exit codes: the server's code, 1 no configuration was found, 2 invalid arguments or input,
3 the server is not ready after 120 s, 130 Ctrl-C before the server runs.
"""

_READY_S: Final = 120
_PAUSE_S: Final = 0.1
_PORT_MOST: Final = 2**16 - 1
_EXIT_NOT_READY: Final = 3
_SHOWN_ELEMENTS: Final = 32
"""Inputs with more elements are not written into the curl command."""
_TEXTS: Final = {"text": "Where is my parcel?", "text_pair": "It was sent on Monday."}
_SAMPLES: Final = 16000
"""Number of audio samples in the printed request."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("graphs", type=Path, nargs="+", metavar="GRAPH", help="an .onnx file or a folder")
    add("--into", type=Path, metavar="DIR", help="model repository to keep (default: temporary)")
    add_init_options(parser)
    for kind, port in _PORTS.items():
        add(
            f"--{kind}-port",
            type=_port,
            default=port,
            metavar="PORT",
            help="port of the server (default: %(default)s)",
        )


_PORTS: Final = {"http": 8000, "grpc": 8001, "metrics": 8002}


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _PORT_MOST:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected 1 to {_PORT_MOST}")
    return int(text)


def _run(given: argparse.Namespace) -> int:
    if importlib.util.find_spec("reference_server") is None:
        raise RuntimeFault(
            "found no package reference_server, expected the server; run "
            "`pip install 'ge-runtime[serve]'`"
        )
    ports = {kind: getattr(given, f"{kind}_port") for kind in _PORTS}
    _check_free(ports)
    files = [file for graph in given.graphs for file in _graphs(graph)]
    _check_names(files)
    options = init_arguments(given)
    with ExitStack() as cleanup:
        repository = given.into or Path(
            cleanup.enter_context(TemporaryDirectory(prefix="ge_runtime_serve_"))
        )
        for file in files:
            folder = repository / model_name(file)
            if folder.exists():
                print(f"{folder}: exists, served as it is")
            elif code := write_model(file, folder, options):
                return code
        return _serve(repository, [model_name(file) for file in files], ports)


COMMAND: Final = Command(
    name="serve",
    help="configure ONNX graphs and serve them",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=cleanup_on_termination()(_run),
)


def _graphs(path: Path) -> list[Path]:
    """Return `path` if it is a graph or an export, else its .onnx files. Raises RuntimeFault."""
    if path.is_file() or (path.is_dir() and Export.read(path)):
        return [path]
    files = sorted(path.glob("*.onnx"))
    if not files:
        found = "a folder without .onnx files" if path.is_dir() else "nothing"
        raise RuntimeFault(f"{path}: found {found}, expected an .onnx file or a folder of them")
    return files


def _check_names(files: Sequence[Path]) -> None:
    """Raise RuntimeFault if two graphs have the same model name."""
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(model_name(file), []).append(str(file))
    for name, paths in by_name.items():
        if len(paths) > 1:
            raise RuntimeFault(
                f"{', '.join(paths)}: found {len(paths)} graphs for the model '{name}', expected "
                "different names of files; rename them"
            )


def _check_free(ports: Mapping[str, int]) -> None:
    """Raise RuntimeFault if the server cannot use a port, before seconds are spent on graphs."""
    with ExitStack() as sockets:
        for kind, port in ports.items():
            try:
                sockets.enter_context(socket.create_server(("", port)))
            except OSError as error:
                raise RuntimeFault(
                    f"port {port}: {os.strerror(error.errno or 0)}; choose another port with "
                    f"--{kind}-port"
                ) from error


def _serve(repository: Path, models: Sequence[str], ports: Mapping[str, int]) -> int:
    """Run the server until it ends; show how to send requests once it is ready."""
    flags = [f"--{kind}-port={port}" for kind, port in ports.items()]
    server = subprocess.Popen(
        [sys.executable, "-m", "reference_server", f"--model-repository={repository}", *flags]
    )
    try:
        # Ctrl-C reaches the server from the terminal; this process waits for it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: server.terminate())
        deadline = time.monotonic() + _READY_S
        while server.poll() is None and not _is_ready(ports["http"]):
            if time.monotonic() > deadline:
                print(f"ge-runtime: not ready after {_READY_S} s; see the log", file=sys.stderr)
                return _EXIT_NOT_READY
            time.sleep(_PAUSE_S)
        if server.poll() is None:
            print("\n".join(_usage(repository, models, ports)), flush=True)
        return server.wait()
    finally:
        server.terminate()  # has no effect if the server has ended
        server.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _usage(repository: Path, models: Sequence[str], ports: Mapping[str, int]) -> list[str]:
    """Return the address of the live page, and a request of the first model."""
    name = models[0]
    example = _example_request(repository / name)
    return [
        "",
        f"Live page: http://localhost:{ports['metrics']}",
        f"Models: {', '.join(models)}",
        "",
        *_curl(name, example, ports["http"]),
        "",
        *_python(name, example, ports["grpc"]),
        "",
        "Ctrl-C stops the server.",
    ]


class _ExampleRequest(NamedTuple):
    """A small request: name, type and shape of each input, and the output to print."""

    inputs: list[tuple[str, DType, list[int]]]
    output: str
    is_sequence: bool


def _example_request(folder: Path) -> _ExampleRequest:
    model = read_model_config(folder)
    if model.get("platform") == "ensemble":
        inputs: Any = model["input"]
        outputs: Any = model["output"]
        found = [
            (
                str(own["name"]),
                DType.of_config(own["data_type"]),
                [1, *(_SAMPLES if int(dim) < 0 else int(dim) for dim in own["dims"])],
            )
            for own in inputs
        ]
        return _ExampleRequest(found, str(outputs[0]["name"]), is_sequence=False)
    config = read_runtime_config(folder)
    sizes = {
        axis: min(limit, config.axis_sizes.executed(axis, max(8, config.axis_sizes.minimums[axis])))
        for axis, limit in config.limits.items()
    }
    rows = (1,) if config.batched else ()
    shapes = [(spec.name, spec.dtype, [*rows, *spec.shape(sizes)]) for spec in config.inputs]
    return _ExampleRequest(shapes, config.outputs[0].name, is_sequence=bool(config.states.outputs))


def _curl(name: str, example: _ExampleRequest, port: int) -> list[str]:
    url = f"http://localhost:{port}/v2/models/{name}"
    if all(input_name in _TEXTS for input_name, _, _ in example.inputs):
        texts = {input_name: _TEXTS[input_name] for input_name, _, _ in example.inputs}
        return [f"curl -s {url}/generate -d '{json.dumps(texts)}'"]
    inputs = []
    for input_name, dtype, shape in example.inputs:
        count = math.prod(shape)
        if count > _SHOWN_ELEMENTS or dtype is DType.BYTES:
            return [f"curl -s {url}   # inputs and outputs"]
        data = [1 if dtype.is_integer or dtype is DType.BOOL else 0.5] * count
        tensor = {"name": input_name, "datatype": dtype.value, "shape": shape, "data": data}
        inputs.append(tensor)
    body: dict[str, object] = {"inputs": inputs}
    if example.is_sequence:
        body["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    return [f"curl -s {url}/infer -d '{json.dumps(body)}'"]


def _python(name: str, example: _ExampleRequest, port: int) -> list[str]:
    """Return a program that sends a request; its gRPC client is installed with the server."""
    lines = [
        "import numpy as np",
        "import tritonclient.grpc as triton",
        "",
        f'client = triton.InferenceServerClient("localhost:{port}")',
        "inputs = []",
    ]
    for input_name, dtype, shape in example.inputs:
        data = f"np.ones({shape}, np.{dtype.numpy})"
        if dtype is DType.BYTES:
            text = _TEXTS.get(input_name)
            item = 'open("image.jpg", "rb").read()' if text is None else f"{text!r}.encode()"
            data = f"np.array([[{item}]], object)"
        lines += [
            f'tensor = triton.InferInput("{input_name}", {shape}, "{dtype.value}")',
            f"tensor.set_data_from_numpy({data})",
            "inputs.append(tensor)",
        ]
    flags = ", sequence_id=1, sequence_start=True, sequence_end=True" if example.is_sequence else ""
    return [*lines, f'print(client.infer("{name}", inputs{flags}).as_numpy("{example.output}"))']
