"""Functions for scripts of repository control, and their execution.

A script is sent to a server step by step, and the response to each step is kept as text. Names of
models are written `@m`: each script has separate models, so that scripts do not interfere. Paths
and these names are removed from the text.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from support.servers import Server
from support.waiting import eventually, until
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

# The time limit for states to settle: the real server ends a model's process within 1 to 2 s.
ASK_SECONDS = 60
# The pause before each read of the statistics. The real server counts an inference some time after
# the response, and crashed when statistics were read frequently during loads and unloads.
COUNTING_SECONDS = 0.5
# File times have a resolution of up to 10 ms. The real server misses changes within one tick after
# it has read the time. It also needs a moment after a load.
TICK_SECONDS = 0.1

VECTOR = """
    backend: "python"
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
#: This configuration as JSON.
VECTOR_JSON: dict[str, Any] = {
    "backend": "python",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
}
ALL_VERSIONS = VECTOR + "version_policy { all { } }\n"


def times(factor: int, *, initialize: str = "pass", before: str = "pass") -> str:
    """Return a model.py that multiplies by a factor; `initialize` and `before` are statements."""
    return f"""
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        {before}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * {factor}
            )])
            for request in requests
        ]
"""


BROKEN = times(1, initialize='raise RuntimeError("init no good")')
SYNTAX = "class TritonPythonModel("


def ensemble(*steps: str, tensors: tuple[str, str] = ("X", "Y"), version: int = -1) -> str:
    """Return the config of a chain of models from I to O; `tensors` are each step's tensors."""
    names = ["I", *(f"T{number}" for number in range(1, len(steps))), "O"]
    given, made = tensors
    written = "\n".join(
        f'step {{ model_name: "{step}" model_version: {version} '
        f'input_map {{ key: "{given}" value: "{names[number]}" }} '
        f'output_map {{ key: "{made}" value: "{names[number + 1]}" }} }}'
        for number, step in enumerate(steps)
    )
    return f"""
    platform: "ensemble"
    input {{ name: "I" data_type: TYPE_FP32 dims: [-1] }}
    output {{ name: "O" data_type: TYPE_FP32 dims: [-1] }}
    ensemble_scheduling {{ {written} }}
"""


# Failures of several versions are reported in the order of their times.
_FAILURES = re.compile(r"(?:version \d+ is at [A-Z]+ state: .*?;)+(?=\\n\")")


def _in_order(failures: re.Match[str]) -> str:
    return "".join(sorted(re.split(r"(?<=;)(?=version \d+ is at )", failures[0])))


class Session:
    """The execution of one script on one server: its models' folder, and steps in progress."""

    def __init__(self, server: Server, repository: Path, key: str) -> None:
        self.server = server
        self.repository = repository
        self.key = key
        self.begun: dict[str, tuple[threading.Thread, list[str]]] = {}

    def named(self, text: str) -> str:
        """Return `text` with the names of this script's models."""
        return text.replace("@", f"{self.key}_")

    def folder(self, model: str) -> Path:
        return self.repository / self.named(model)

    def stable(self, text: str) -> str:
        """Return `text` without parts that depend on the server or the run."""
        text = text.replace(str(self.repository), "REPOSITORY").replace(f"{self.key}_", "@")
        text = re.sub(r"/tmp/folder\w+", "FOLDER", text)
        text = _FAILURES.sub(_in_order, text)
        # Tracebacks of the real server's model processes have lines of Python's import system.
        return re.sub(r"\\n  <frozen importlib[^\\]*", "", text)

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """Send a request on a new connection; return the status, and type and body as text."""
        connection = http.client.HTTPConnection(self.server.http, timeout=ASK_SECONDS)
        try:
            connection.request(method, self.named(path), self.named_bytes(body), headers)
            reply = connection.getresponse()
            content = reply.read().decode("utf-8", "backslashreplace")
            return reply.status, f"{reply.getheader('Content-Type')} {content}"
        finally:
            connection.close()

    def named_bytes(self, body: bytes) -> bytes:
        """Return a body with the names of this script's models, except in base64."""
        return body.replace(b"@", self.key.encode() + b"_")

    def index(self, body: bytes = b"") -> list[dict[str, str]]:
        """Return the index's rows about this script's models."""
        _, text = self.ask("POST", "/v2/repository/index", body, {})
        rows = json.loads(text.partition(" ")[2])
        return [row for row in rows if row["name"].startswith(f"{self.key}_")]


@dataclass(frozen=True)
class Step:
    """An action or request. `play` returns the server's response, `status` is the real server's.

    `does` describes all that `play` does; a script's recording is valid for these values.
    """

    name: str
    play: Callable[[Session], str] = field(compare=False)
    does: tuple[object, ...]
    status: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Script:
    """Steps in order, on separate models."""

    name: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.name


def script(name: str, *steps: Step) -> Script:
    return Script(name, steps)


# ------------------------------------------------------------------------------------- the files


def files(
    model: str,
    config: str | None = VECTOR,
    versions: dict[int, str | None] | None = None,
    **others: str,
) -> Step:
    """Write a model's folder or a part of it; a version without source is an empty folder."""
    wanted = {1: times(1)} if versions is None else versions

    def play(session: Session) -> str:
        time.sleep(TICK_SECONDS)
        folder = session.folder(model)
        folder.mkdir(exist_ok=True)
        if config is not None:
            (folder / "config.pbtxt").write_text(session.named(config))
        for version, source in wanted.items():
            (folder / str(version)).mkdir(exist_ok=True)
            # This file keeps the real server's model processes from writing a folder of this name,
            # which would change the model after its first load.
            (folder / str(version) / "__pycache__").touch()
            if source is not None:
                (folder / str(version) / "model.py").write_text(source)
        for path, text in others.items():
            (folder / path).write_text(text)
        return ""

    return Step(f"files of {model}", play, ("files", model, config, wanted, others))


def _change(verb: str, path: str, model: str, act: Callable[[Path], object]) -> Step:
    """Return a step that changes a path in a model's folder, or the folder."""

    def play(session: Session) -> str:
        time.sleep(TICK_SECONDS)
        act(session.folder(model) / path)
        return ""

    return Step(f"{path or 'the folder'} {verb}", play, (verb, path, model))


def is_a_file(model: str) -> Step:
    """Write a file in place of the model's folder."""
    return _change("is a file", "", model, lambda path: path.write_text("x"))


def goes(path: str = "", model: str = "@m") -> Step:
    """Remove a folder."""
    return _change("goes", path, model, shutil.rmtree)


def is_touched(path: str, model: str = "@m") -> Step:
    """Change only the time of a file."""
    return _change("is touched", path, model, Path.touch)


# ------------------------------------------------------------------------------------ the requests


def ask(method: str, path: str, status: int, body: Any = b"", **headers: str) -> Step:
    """Send one HTTP request; a body that is not bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def play(session: Session) -> str:
        found, text = session.ask(method, path, content, headers)
        return f"{found} {session.stable(text)}"

    said = content.decode("utf-8", "backslashreplace")
    does = ("ask", method, path, content, headers)
    return Step(f"{method} {path} {said}"[:120].rstrip(), play, does, status)


def load(model: str, status: int, body: Any = b"") -> Step:
    return ask("POST", f"/v2/repository/models/{model}/load", status, body)


def load_with(model: str, status: int, config: Any = None, **given: str | bytes) -> Step:
    """Load a model with parameters: `config` is JSON or its value, `given` are files."""
    parameters: dict[str, Any] = {}
    if config is not None:
        parameters["config"] = config if isinstance(config, str) else json.dumps(config)
    for path, content in given.items():
        raw = content if isinstance(content, bytes) else content.encode()
        parameters[f"file:{path}"] = base64.b64encode(raw).decode()
    step = load(model, status, {"parameters": parameters})
    return replace(step, name=f"load {model} with {', '.join(parameters)}")


def unload(model: str, status: int = 200, body: Any = b"") -> Step:
    return ask("POST", f"/v2/repository/models/{model}/unload", status, body)


DEPENDENTS = {"parameters": {"unload_dependents": True}}


def infer(model: str, status: int, tensor: str = "X") -> Step:
    """Send an inference with the value 2."""
    given = {"name": tensor, "datatype": "FP32", "shape": [1], "data": [2]}
    name, _, version = model.partition("/")
    path = f"/v2/models/{name}/versions/{version}/infer" if version else f"/v2/models/{name}/infer"
    step = ask("POST", path, status, {"inputs": [given]})
    return replace(step, name=f"infer {model}")


def get(path: str, status: int, **headers: str) -> Step:
    """Read a page of a model."""
    return ask("GET", f"/v2/models/{path}", status, **headers)


def counts(model: str, wanted: int | None = None) -> Step:
    """Read the number of inferences of version 1, until it is `wanted` unless this is None."""
    last = str([("1", wanted)])

    def play(session: Session) -> str:
        def read() -> str:
            time.sleep(COUNTING_SECONDS)
            status, text = session.ask("GET", f"/v2/models/{model}/stats", b"", {})
            if status != 200:
                return session.stable(text)
            stats = json.loads(text.partition(" ")[2])["model_stats"]
            return str([(entry["version"], entry["inference_count"]) for entry in stats])

        return read() if wanted is None else eventually(read, last)

    return Step(f"counts of {model}", play, ("counts", model))


def index(body: Any = b"") -> Step:
    """Return the index of this script's models when none is loading or unloading any more."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def play(session: Session) -> str:
        until(lambda: not any(row.get("state", "").endswith("LOADING") for row in session.index()))
        return session.stable(json.dumps(session.index(content)))

    return Step(f"index {content.decode()}".rstrip(), play, ("index", content))


def state(model: str, wanted: str) -> Step:
    """Wait until the index has the wanted state of the model's first version."""

    def play(session: Session) -> str:
        def rows() -> list[dict[str, str]]:
            return [row for row in session.index() if row["name"] == session.named(model)]

        until(lambda: [row.get("state") for row in rows()[:1]] == [wanted])
        return session.stable(json.dumps(rows()))

    return Step(f"{model} becomes {wanted}", play, ("becomes", model, wanted))


def appears(path: str, model: str = "@m") -> Step:
    """Wait until a file is in a model's folder."""

    def play(session: Session) -> str:
        until((session.folder(model) / path).exists)
        return ""

    return Step(f"{path} of {model} appears", play, ("appears", path, model))


def gone(model: str) -> Step:
    """Wait until the log reports that the model, which was loaded once, has been unloaded."""

    def play(session: Session) -> str:
        told = f"successfully unloaded '{session.named(model)}' version 1"
        until(lambda: told in session.server.log)
        return ""

    return Step(f"{model} has gone", play, ("gone", model))


def at_last(step: Step, wanted: str) -> Step:
    """Repeat a step until its response contains the wanted text."""

    def play(session: Session) -> str:
        said = ""

        def says() -> bool:
            nonlocal said
            said = step.play(session)
            return wanted in said

        until(says)
        return said

    return replace(step, name=f"{step} at last", play=play, does=("at last", wanted, *step.does))


def told(step: Step, session: Session) -> str:
    """Return the server's response to a step, or the error, which the step's test will show."""
    try:
        return step.play(session)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def begin(step: Step) -> Step:
    """Begin a step without waiting for its end."""

    def play(session: Session) -> str:
        said: list[str] = []
        thread = threading.Thread(target=lambda: said.append(told(step, session)), daemon=True)
        session.begun[step.name] = thread, said
        thread.start()
        return ""

    return Step(f"begin {step}", play, ("begin", *step.does))


def end(step: Step) -> Step:
    """Wait for the end of a step that was begun, and return its result."""

    def play(session: Session) -> str:
        thread, said = session.begun[step.name]
        thread.join()
        return said[0]

    return Step(f"end {step}", play, ("end", step.name), step.status)


# ------------------------------------------------------------------------------------------- gRPC


def parameter(**value: Any) -> pb.ModelRepositoryParameter:
    """Return a parameter, e.g. with `string_param="x"`."""
    return pb.ModelRepositoryParameter(**value)


def call(rpc: str, request: Any, code: str = "OK", **metadata: str) -> Step:
    """Call a method; names of models in the request are written as `@m`, too."""

    def play(session: Session) -> str:
        named = type(request).FromString(request.SerializeToString())
        if "model_name" in named.DESCRIPTOR.fields_by_name:
            named.model_name = session.named(request.model_name)
        with grpc.insecure_channel(session.server.grpc) as channel:
            method = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), rpc)
            try:
                reply = method(named, metadata=tuple(metadata.items()), timeout=ASK_SECONDS)
            except grpc.RpcError as error:
                return session.stable(f"{error.code().name} {error.details()}")
        if rpc == "RepositoryIndex":
            own = [model for model in reply.models if model.name.startswith(f"{session.key}_")]
            reply = pb.RepositoryIndexResponse(models=own)
        return session.stable(f"OK {reply}")

    said = " ".join(str(request).split())
    does = ("call", rpc, request.SerializeToString(deterministic=True), metadata)
    return Step(f"{rpc} {said} {metadata or ''}"[:120].rstrip() + f" {code}", play, does)


class Broke(Exception):
    """A server crashed or does not answer; the text has the step and the server's log."""


def play_all(
    scripts: list[Script], server: Server, repository: Path, at_once: int
) -> dict[str, tuple[str, ...]]:
    """Play several scripts at a time; return the responses by script. Raises Broke."""
    said: dict[str, list[str]] = {}
    broke: list[str] = []

    def play(number: int, one: Script) -> None:
        session = Session(server, repository, f"s{number}")
        transcript = said.setdefault(one.name, [])
        for step in one.steps:
            if broke:
                return
            transcript.append(told(step, session))
            if "TimeoutError" in transcript[-1] or server.process.poll() is not None:
                broke.append(f"{one.name}: {step}: {transcript[-1]}")

    waiting = list(enumerate(scripts))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number, one = waiting.pop(0)
            play(number, one)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broke:
        raise Broke("\n".join((*broke, server.log)))
    return {script: tuple(transcript) for script, transcript in said.items()}
