"""Calls that change a server, over gRPC: repository control, restrictions, cancellation.

Each script runs against both servers, which are started for it in explicit mode, each on a folder
of its own, and everything that is answered must be alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from contract.grpc_casebook import GrpcCall, Outcome, call, floats, infer, tensor
from contract.probes import write_probes
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from support.waiting import eventually, until
from tritonclient.grpc import service_pb2 as pb

pytestmark = pytest.mark.oracle

PROBES = ("vector", "batched", "chain", "fails_to_start", "misspelt", "versions")
KEY = "triton-grpc-protocol-adm"
CONFIG = """{"backend": "python", "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]}"""
Held = pb.ModelRepositoryParameter


def start(kind: Callable[..., Iterator[Server]], folder: Path) -> Iterator[Server]:
    repository = folder / "repository"
    write_probes(repository, *PROBES)
    with kind(
        repository,
        ready_path="/v2/health/live",
        allow_metrics=False,
        model_control_mode="explicit",
        **COMPLETE,
        trace_config=f"triton,file={folder / 'trace.json'}",
        grpc_restricted_protocol=["statistics,trace:adm=secret", "logging:other=x"],
    ) as server:
        yield server


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each server."""
    return {name: tmp_path_factory.mktemp(name) for name in ("real", "ours")}


@pytest.fixture(scope="module")
def triton(oracle_installed: None, folders: dict[str, Path]) -> Iterator[Server]:
    """The real server, in explicit mode, without models."""
    yield from start(start_tritonserver, folders["real"])


@pytest.fixture(scope="module")
def reference(folders: dict[str, Path]) -> Iterator[Server]:
    """The reference server, in explicit mode, without models."""
    yield from start(start_reference_server, folders["ours"])


def load(model: str, **parameters: Held) -> GrpcCall:
    return call(
        "RepositoryModelLoad",
        pb.RepositoryModelLoadRequest(model_name=model, parameters=parameters),
    )


def unload(model: str, **parameters: Held) -> GrpcCall:
    return call(
        "RepositoryModelUnload",
        pb.RepositoryModelUnloadRequest(model_name=model, parameters=parameters),
    )


def index(*, ready: bool = False) -> GrpcCall:
    return call("RepositoryIndex", pb.RepositoryIndexRequest(ready=ready))


def ready(model: str) -> GrpcCall:
    return call("ModelReady", pb.ModelReadyRequest(name=model))


def ask(model: str, name: str = "X", shape: tuple[int, ...] = (2,)) -> GrpcCall:
    x = tensor(name, "FP32", shape)
    return call("ModelInfer", infer(model, x, raw=[floats(*range(max(shape)))]))


def statistics(**metadata: str) -> GrpcCall:
    return call("ModelStatistics", pb.ModelStatisticsRequest(name="nobody"), **metadata)


WITH_CONFIG = {"config": Held(string_param=CONFIG)}
WITH_FILE = WITH_CONFIG | {
    "file:7/model.py": Held(
        bytes_param=(Path(__file__).parent / "probe_models" / "identity.py").read_bytes()
    )
}
DEPENDENTS = {"unload_dependents": Held(bool_param=True)}

SCRIPTS = {
    "nothing is loaded": [index(), index(ready=True), ready("vector"), ask("vector")],
    "a model is loaded and unloaded": [
        *(load("vector"), ready("vector"), ask("vector"), load("vector"), index()),
        *(unload("vector"), unload("vector"), ready("vector"), ask("vector"), index()),
    ],
    "an ensemble takes its model along": [
        *(load("chain"), ready("batched"), ask("chain", "IN", (1, 4)), index()),
        *(unload("chain", **DEPENDENTS), ready("chain"), ready("batched"), index()),
    ],
    "an ensemble leaves its model": [
        *(load("chain"), unload("chain"), ready("batched"), unload("batched"), index()),
    ],
    "a model takes its ensemble along": [load("chain"), unload("batched"), ready("chain")],
    "versions": [load("versions"), ask("versions", shape=(1,)), unload("versions"), index()],
    "models that do not load": [
        *(load("fails_to_start"), load("misspelt"), load("nobody"), load(""), load("../x")),
        *(load("a/b"), index()),
    ],
    "a configuration is brought along": [
        *(load("vector", **WITH_CONFIG), ask("vector"), load("vector"), unload("vector")),
        load("vector", config=Held(string_param="{")),
        load("vector", config=Held(string_param="")),
    ],
    "a model is brought along": [
        *(load("brought", **WITH_FILE), ask("brought"), index(ready=True), unload("brought")),
        load("brought"),
    ],
    "nothing is unloaded": [unload("nobody"), unload(""), index()],
    "restricted": [
        *(statistics(), statistics(**{KEY: "x"}), statistics(**{KEY: "secret"})),
        *(call("TraceSetting", b""), call("TraceSetting", b"", **{KEY: "secret"})),
        call("LogSettings", b""),
        call("LogSettings", b"", **{KEY: "secret"}),
        call("ServerLive", b""),
    ],
}  # fmt: skip


def settled(channel: grpc.Channel) -> None:
    """Wait until nothing is loaded or unloaded any more; unloading goes on after its answer."""

    def busy() -> list[str]:
        models = index().put(channel).messages[0].models
        return [model.name for model in models if model.state in ("LOADING", "UNLOADING")]

    assert eventually(busy, []) == []


def play(server: Server, calls: list[GrpcCall]) -> list[Outcome]:
    """Make the calls, each when the ones before have settled; leaves nothing loaded."""
    outcomes = []
    with grpc.insecure_channel(server.grpc) as channel:
        for one in calls:
            outcomes.append(comparable(one.put(channel)))
            settled(channel)
        for model in index(ready=True).put(channel).messages[0].models:
            unload(model.name).put(channel)
            settled(channel)
    return outcomes


def comparable(outcome: Outcome) -> Outcome:
    """Forget the folder that each server has for itself."""
    messages = []
    for message in outcome.messages:
        for model in getattr(message, "models", ()):
            model.reason = _anywhere(model.reason)
        if isinstance(message, pb.TraceSettingResponse):
            message.settings["trace_file"].Clear()
        messages.append(message)
    return replace(outcome, details=_anywhere(outcome.details), messages=tuple(messages))


def _anywhere(text: str) -> str:
    return re.sub(r"/\S*/repository/", "/repository/", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_servers_answer_alike(name: str, triton: Server, reference: Server):
    real, ours = (play(server, SCRIPTS[name]) for server in (triton, reference))
    assert list(map(str, ours)) == list(map(str, real))
    assert ours == real


def test_both_servers_trace_alike(triton: Server, reference: Server, folders: dict[str, Path]):
    real, ours = (
        traced(server, folders[name]) for name, server in (("real", triton), ("ours", reference))
    )
    assert ours == real


def traced(server: Server, folder: Path) -> dict[int, set[str]]:
    """Traces of three requests, the second of which is refused, from the file: names by id."""
    settings = pb.TraceSettingRequest()
    for name, value in {
        "trace_level": "TIMESTAMPS",
        "trace_rate": "1",
        "log_frequency": "1",
    }.items():
        settings.settings[name].value.append(value)
    refused = infer("vector", tensor("X", "FP32", (2,)), raw=[b"x"])
    streamed = call("ModelStreamInfer", *ask("vector").requests)

    def files() -> list[Path]:
        return [*folder.glob("trace.json.*")]

    with grpc.insecure_channel(server.grpc) as channel:
        load("vector").put(channel)
        call("TraceSetting", settings, **{KEY: "secret"}).put(channel)
        for one in (ask("vector"), call("ModelInfer", refused), streamed):
            one.put(channel)
        until(lambda: sum(file.read_text().endswith("]") for file in files()) >= 2)
        settings.settings["trace_level"].value[:] = ["OFF"]
        call("TraceSetting", settings, **{KEY: "secret"}).put(channel)
        unload("vector").put(channel)
        settled(channel)
    names: dict[int, set[str]] = {}
    for file in files():
        for element in json.loads(file.read_text()):
            told = names.setdefault(element["id"], set())
            told.update(stamp["name"] for stamp in element.get("timestamps", ()))
    return names
