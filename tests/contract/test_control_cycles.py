"""After many loads and unloads over HTTP, the reference server holds no further resources."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from contract.control_scripts import (
    VECTOR,
    VECTOR_JSON,
    Session,
    ensemble,
    load,
    load_with,
    times,
    unload,
)
from server.support.model_folders import write_model
from support.servers import Flag, Server, start_reference_server
from support.waiting import eventually

pytestmark = pytest.mark.slow

WARM_UP = 10
STEADY_SECONDS = 0.5

#: Tells how many modules the server's process has imported.
CENSUS = """
    import sys
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            count = np.float32([len(sys.modules)])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", count)]) for _ in requests]
"""
#: Sends each input twice, the second time from a thread of its own.
SENDING = """
    import threading
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                answer = pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])
                sender.send(answer)
                threading.Thread(target=sender.send, args=(answer, FINAL)).start()
"""
#: Models with code, by name: what their configurations say beside their tensors.
SETTINGS = {
    "s_decoupled": "model_transaction_policy { decoupled: true }",
    "s_sequence": "sequence_batching { oldest { max_candidate_sequences: 4 } } max_batch_size: 4",
    "s_cached": "response_cache { enable: true }",
    "s_part": "dynamic_batching { } max_batch_size: 4 instance_group { count: 2 }",
    "s_process": 'parameters { key: "EXECUTION_HOST" value { string_value: "process" } }',
}
CHAIN = ensemble("s_part", "s_part") + "max_batch_size: 4\n"


class Belongings(NamedTuple):
    """The resources of a server."""

    threads: int
    files: int
    folders: int
    children: int
    modules: float

    def within(self, most: Belongings) -> bool:
        """Return whether no resource exceeds that in `most`."""
        return all(here <= there for here, there in zip(self, most, strict=True))


def children_of(process: str) -> int:
    """Return the number of child processes of a process, including dead ones."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may have ended
            _, _, after_name = status.read_text().rpartition(") ")
            count += after_name.split()[1] == process
    return count


class Cycled:
    """A server whose models are loaded and unloaded."""

    def __init__(self, server: Server, repository: Path, temporary: Path) -> None:
        self.session = Session(server, repository, "s")
        self._process = Path(f"/proc/{server.process.pid}")
        self._temporary = temporary
        self.infer("s_census")  # it is there for good

    def infer(self, model: str, shape: tuple[int, ...] = (2,), **parameters: object) -> list[float]:
        tensor = {"name": "X", "datatype": "FP32", "shape": shape, "data": [1, 2]}
        if model == "s_whole":
            tensor["name"] = "I"
        content = self.ask(f"{model}/infer", {"inputs": [tensor], "parameters": parameters})
        numbers: list[float] = json.loads(content)["outputs"][0]["data"]
        return numbers

    def ask(self, path: str, document: object) -> str:
        """Send a request, and return the body of its successful response."""
        body = json.dumps(document).encode()
        status, text = self.session.ask("POST", f"/v2/models/{path}", body, {})
        assert status == 200, text
        return text.partition(" ")[2]

    def belongings(self) -> Belongings:
        """Return the server's current resources."""
        modules = self.infer("s_census")[0]
        threads, files, folders = (
            sum(1 for _ in folder.iterdir())
            for folder in (self._process / "task", self._process / "fd", self._temporary)
        )
        return Belongings(threads, files, folders, children_of(self._process.name), modules)

    def settled(self) -> Belongings:
        """Return the resources once they are steady: all unloaded models have been freed."""
        found, since = self.belongings(), time.monotonic()
        while time.monotonic() - since < STEADY_SECONDS:
            time.sleep(0.05)
            before, found = found, self.belongings()
            if found != before:
                since = time.monotonic()
        return found

    def settled_at(self, most: Belongings) -> Belongings:
        """Wait until the resources are within a limit, or for the patience of `eventually`."""
        found = self.belongings()

        def within() -> bool:
            nonlocal found
            found = self.belongings()
            return found.within(most)

        eventually(within, True)
        return found

    def resident_kib(self) -> int:
        """Return the resident memory of the process in KiB."""
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def play(self, *steps) -> None:
        """Play steps of repository control, all of which must succeed."""
        for step in steps:
            assert step.play(self.session).startswith("200 ")

    def cycle(self, once: Callable[[], None], times: int, growth_mib: int) -> None:
        """Call `once` many times; check that resources are unchanged, except for some memory."""
        for _ in range(min(WARM_UP, times // 2)):
            once()
        before, memory = self.settled(), self.resident_kib()
        for _ in range(times):
            once()
        # At the first measurement, something may not have been released yet.
        assert (after := self.settled_at(before)).within(before), (before, after)
        assert self.resident_kib() - memory < growth_mib * 1024


@pytest.fixture(scope="module")
def cycled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cycled]:
    """Run a server with a model of each kind, of which only the counting one is loaded."""
    folder = tmp_path_factory.mktemp("cycles")
    temporary, repository = folder / "temporary", folder / "models"
    temporary.mkdir()
    write_model(repository, "s_m")
    write_model(repository, "s_census", VECTOR, CENSUS)
    for name, settings in SETTINGS.items():
        source = SENDING if name == "s_decoupled" else times(2)
        write_model(repository, name, VECTOR + settings, source)
    write_model(repository, "s_whole", CHAIN, None)
    flags: dict[str, Flag] = {
        "model_control_mode": "explicit",
        "load_model": "s_census",
        "cache_config": "local,size=1048576",
        "allow_grpc": False,
        "allow_metrics": False,
        "log_info": False,
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TMPDIR", str(temporary))
        with start_reference_server(repository, **flags) as server:
            yield Cycled(server, repository, temporary)


def test_models_of_the_repository_and_of_requests(cycled: Cycled):
    def once() -> None:
        cycled.play(
            load("@m", 200),
            load_with("@v", 200, VECTOR_JSON, **{"1/model.py": times(2)}),
            unload("@m"),
            unload("@v"),
        )

    # Modules, configurations and instances of two models take about 200 KiB: keeping them would
    # add 18 MiB.
    cycled.cycle(once, 90, growth_mib=8)


def test_models_of_each_kind_that_have_answered(cycled: Cycled):
    def once() -> None:
        cycled.play(
            *(load(f"@{name}", 200) for name in ("decoupled", "sequence", "cached", "whole"))
        )
        assert cycled.ask("s_decoupled/generate_stream", {"X": [1, 2]}).count("data: ") == 2
        for flag in ("sequence_start", "sequence_end"):
            sequence = {"sequence_id": 1, flag: True}
            assert cycled.infer("s_sequence", (1, 2), **sequence) == [2, 4]
        for _ in range(2):
            assert cycled.infer("s_cached") == [2, 4]
        assert cycled.infer("s_whole", (1, 2)) == [4, 8]
        cycled.play(*(unload(f"@{name}") for name in ("decoupled", "sequence", "cached", "whole")))
        cycled.play(unload("@part"))

    cycled.cycle(once, 20, growth_mib=8)


def test_models_in_processes(cycled: Cycled):
    def once() -> None:
        cycled.play(load("@process", 200))
        assert cycled.infer("s_process") == [2, 4]
        cycled.play(unload("@process"))

    cycled.cycle(once, 4, growth_mib=4)
