"""A load that changes only `instance_group`: the loaded version continues with other instances.

Both servers must add and remove the same number of instances, but may remove different ones.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from support.servers import COMPLETE, ROOT, Flag, Server, start_reference_server, start_tritonserver
from support.waiting import until

#: Notes what happens to its instances, and keeps a request while its file is there.
SOURCE = """
import os
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        self.folder = Path(args["model_repository"]).parents[1] / "notes" / args["model_name"]
        if (self.folder / "fails").exists():
            raise RuntimeError("no more of these")
        self.note("initialize")

    def note(self, what):
        notes = os.open(self.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(notes, f"{what} {self.name}\\n".encode())
        os.close(notes)

    def execute(self, requests):
        for request in requests:
            self.note(f"execute {request.request_id()}")
            while (self.folder / f"hold-{request.request_id()}").exists():
                time.sleep(0.01)
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def finalize(self):
        self.note("finalize")
"""
_PATIENT = "max_sequence_idle_microseconds: 60000000"
SCHEDULERS = {
    "direct": "",
    "batching": "dynamic_batching { }",
    "ordered": "dynamic_batching { preserve_ordering: true }",
    "rows": f"sequence_batching {{ direct {{ }} {_PATIENT} }}",
    "oldest": f"sequence_batching {{ oldest {{ max_candidate_sequences: 1 }} {_PATIENT} }}",
}


class Play:
    """One model on one server, whose groups change while requests arrive."""

    def __init__(self, server: Server, top: Path, model: str) -> None:
        self.client = triton.InferenceServerClient(server.grpc)
        self.model = model
        self.notes = top / "notes" / model
        self.config = top / "repository" / model / "config.pbtxt"
        self._calls: dict[str, triton.CallContext] = {}
        self._answers: dict[str, Any] = {}

    def group(self, groups: str) -> str:
        """Load the model with these groups; return the error."""
        self.config.write_text(
            f"""backend: "python" max_batch_size: 1
            input {{ name: "X" data_type: TYPE_FP32 dims: [-1] }}
            output {{ name: "Y" data_type: TYPE_FP32 dims: [-1] }}
            {SCHEDULERS[self.model]} {groups}"""
        )
        try:
            self.client.load_model(self.model)
        except triton.InferenceServerException as error:
            return str(error.message())
        return ""

    def send(self, id: str, *, hold: bool = False, **sequence: Any) -> None:
        """Send a request, which the model keeps if it is to be held."""
        if hold:
            (self.notes / f"hold-{id}").touch()
        tensor = triton.InferInput("X", (1, 1), "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.float32))

        def note(result: Any, error: Any) -> None:
            self._answers[id] = error or result

        self._calls[id] = self.client.async_infer(
            self.model, [tensor], note, request_id=id, **sequence
        )

    def begun(self, *ids: str) -> None:
        """Wait until these requests are executed or have been."""
        until(lambda: set(ids) <= {id for what, id, *_ in self.log() if what == "execute"})

    def go(self, *ids: str) -> None:
        """Let these requests end, and check that they succeed."""
        for id in ids:
            (self.notes / f"hold-{id}").unlink()
        self.answered(*ids)

    def answered(self, *ids: str) -> None:
        """Wait until these requests succeed without being released."""
        until(lambda: set(ids) <= self._answers.keys())
        assert all(isinstance(self._answers[id], triton.InferResult) for id in ids), self._answers

    def log(self) -> list[list[str]]:
        """Return the recorded events as words."""
        path = self.notes / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def counts(self) -> dict[str, int]:
        """Return the numbers of initialized and of finalized instances."""
        return Counter(what for what, *_ in self.log() if what != "execute")

    def counted(self) -> int:
        """Return the number of successful requests from the server's statistics."""
        statistics = self.client.get_inference_statistics(self.model)
        return int(statistics.model_stats[0].inference_count)

    def come_to(self, initialized: int, finalized: int) -> None:
        """Wait until these numbers of instances have been initialized and finalized."""
        wanted = {"initialize": initialized, "finalize": finalized}
        until(lambda: self.counts() == {key: n for key, n in wanted.items() if n})


@contextlib.contextmanager
def playing(start: Any, top: Path, **flags: Flag) -> Iterator[dict[str, Play]]:
    """Run a server with all these models, none of which is loaded."""
    for model in SCHEDULERS:
        folder = top / "repository" / model / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(SOURCE)
        (top / "notes" / model).mkdir(parents=True)
    if start is start_tritonserver:
        # Or the first load would write these files, and the second one find that files are new.
        python = ROOT / ".oracle" / "venv" / "bin" / "python"
        sources = sorted((top / "repository").glob("*/1/model.py"))
        subprocess.run([python, "-m", "py_compile", *sources], check=True)
    with start(top / "repository", model_control_mode="explicit", **COMPLETE, **flags) as server:
        plays = {model: Play(server, top, model) for model in SCHEDULERS}
        yield plays
        for play in plays.values():
            play.client.close()


STARTS = [
    pytest.param(start_tritonserver, marks=pytest.mark.oracle, id="tritonserver"),
    pytest.param(start_reference_server, id="reference server"),
]


@pytest.fixture(scope="module", params=STARTS)
def plays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Play]]:
    if request.param is start_tritonserver:
        request.getfixturevalue("oracle_installed")
    top = tmp_path_factory.mktemp("groups")
    with playing(request.param, top) as made:
        yield made


@pytest.fixture(params=SCHEDULERS)
def play(request: pytest.FixtureRequest, plays: dict[str, Play]) -> Iterator[Play]:
    """Return the model with one instance and without recorded events."""
    found = plays[request.param]
    (found.notes / "log").unlink(missing_ok=True)
    assert found.group("instance_group { count: 1 }") == ""
    yield found
    found.client.unload_model(found.model)
    until(lambda: 'state: "READY"' not in str(found.client.get_model_repository_index()))


def begin(play: Play, number: int) -> dict[str, Any]:
    """Return the settings of the first request of a sequence that continues."""
    return sequence(play, number, sequence_end=False)


def end(play: Play, *numbers: int) -> None:
    """End these sequences, if the model has sequences."""
    for number in numbers:
        if last := sequence(play, number, sequence_start=False):
            play.send(f"end-{number}", **last)
            play.answered(f"end-{number}")


def sequence(play: Play, id: int, **flags: bool) -> dict[str, Any]:
    """Return the settings of a request of a sequence, if the model has sequences."""
    if "sequence" not in SCHEDULERS[play.model]:
        return {}
    return {"sequence_id": id, "sequence_start": True, "sequence_end": True} | flags


def test_instances_come_while_others_execute_and_take_over_what_waits(play: Play):
    play.send("runs", hold=True, **begin(play, 1))
    play.begun("runs")
    if not sequence(play, 2):
        play.send("waits")
    assert play.group("instance_group { count: 3 }") == ""
    if sequence(play, 2):
        # The real server leaves a sequence in the backlog until another one ends.
        play.send("waits", **begin(play, 2))
    if play.model == "ordered":  # executed, and kept back
        play.begun("waits")
    else:
        play.answered("waits")
    play.go("runs")
    play.answered("waits")
    end(play, 1, 2)
    assert play.counts() == {"initialize": 3}
    names = [words[-1] for words in play.log() if words[0] == "initialize"]
    assert sorted(names) == [f"{play.model}_0_{number}" for number in range(3)]


def test_an_instance_leaves_when_it_is_idle(play: Play):
    assert play.group("instance_group { count: 2 }") == ""
    play.send("one", hold=True, **begin(play, 1))
    play.send("two", hold=True, **begin(play, 2))
    play.begun("one", "two")
    with ThreadPoolExecutor() as pool:
        # The real server answers when those that leave are idle.
        changed = pool.submit(play.group, "instance_group { count: 1 }")
        play.go("one", "two")
        assert changed.result() == ""
    end(play, 1, 2)
    assert play.counts()["initialize"] == 2
    play.send("three", **sequence(play, 3))
    play.answered("three")
    # The real server counts a request when it has been answered.
    until(lambda: play.counted() >= (5 if sequence(play, 1) else 3))
    assert play.counted() == (5 if sequence(play, 1) else 3)


def test_a_sequence_goes_on_with_the_instance_that_is_to_leave(play: Play):
    if "sequence" not in SCHEDULERS[play.model]:
        pytest.skip("without sequences any instance will do")
    assert play.group("instance_group { count: 2 }") == ""
    for id in (1, 2):
        play.send(f"first-{id}", **sequence(play, id, sequence_end=False))
        play.answered(f"first-{id}")
    assert play.group("instance_group { count: 1 }") == ""
    for id in (1, 2):
        play.send(f"second-{id}", **sequence(play, id, sequence_start=False))
        play.answered(f"second-{id}")
    assert play.counts()["initialize"] == 2
    executed = {id: name for what, id, *rest in play.log() if what == "execute" for name in rest}
    assert executed["first-1"] == executed["second-1"] != executed["first-2"]
    assert executed["first-2"] == executed["second-2"]


def test_names_do_not_matter_and_other_settings_do(plays: dict[str, Play]):
    play = plays["direct"]
    (play.notes / "log").unlink(missing_ok=True)
    changes = [
        ("instance_group { count: 2 }", 2, 0),
        ("instance_group { count: 2 kind: KIND_CPU }", 2, 0),
        ('instance_group { name: "other" count: 3 }', 3, 0),
        ('instance_group { name: "a" } instance_group { name: "b" kind: KIND_MODEL }', 4, 2),
        ("instance_group { count: 1 kind: KIND_MODEL }", 4, 3),
        ("instance_group { count: 1 rate_limiter { priority: 2 } }", 5, 4),
        ('instance_group { count: 1 host_policy: "x" }', 6, 5),
    ]
    for groups, initialized, finalized in changes:
        assert play.group(groups) == ""
        # A load that removes instances is answered when they are finalized.
        assert play.counts().get("finalize", 0) == finalized
        play.send(f"after-{initialized}-{finalized}")
        play.answered(f"after-{initialized}-{finalized}")
        play.come_to(initialized, finalized)
    shown = play.client.get_model_config("direct").config.instance_group
    assert [(group.name, group.count, group.host_policy) for group in shown] == [
        ("direct_0", 1, "x")
    ]
    play.client.unload_model("direct")
    play.come_to(6, 6)


def test_versions_that_are_wanted_as_before_go_on(plays: dict[str, Play]):
    play = plays["direct"]
    (play.notes / "log").unlink(missing_ok=True)
    second = play.config.parent / "2"
    shutil.copytree(play.config.parent / "1", second)
    try:
        for policy, initialized, finalized in [
            ("all { }", 2, 0),
            ("specific { versions: [1, 2] }", 2, 0),
            ("latest { num_versions: 1 }", 2, 1),
            ("all { }", 3, 1),
        ]:
            assert play.group(f"version_policy {{ {policy} }}") == ""
            play.come_to(initialized, finalized)
        play.client.unload_model("direct")
        play.come_to(3, 3)
    finally:
        shutil.rmtree(second)


def test_groups_that_are_no_use_leave_the_old_ones_serving(play: Play):
    refused = play.group("instance_group { kind: KIND_GPU }")
    (play.notes / "fails").touch()
    failed = play.group("instance_group { count: 2 }")
    (play.notes / "fails").unlink()
    assert refused == (
        f"load failed for model '{play.model}': version 1 is at READY state: Invalid argument: "
        f"instance group {play.model}_0 of model {play.model} has kind KIND_GPU but no GPUs are "
        "available;\n"
    )
    assert re.match(
        f"load failed for model '{play.model}': version 1 is at READY state: "
        "Internal: RuntimeError: no more of these\n",
        failed,
    )
    play.send("after", **sequence(play, 1))
    play.answered("after")
    assert play.counts() == {"initialize": 1}
    assert play.group("instance_group { count: 2 }") == ""
    assert play.counts() == {"initialize": 2}


@pytest.mark.parametrize("start", STARTS)
def test_the_rate_limiter_knows_who_comes_and_leaves(
    request: pytest.FixtureRequest, tmp_path: Path, start: Any
):
    if start is start_tritonserver:
        request.getfixturevalue("oracle_installed")
    resources = (
        "instance_group {{ count: {} rate_limiter {{ resources {{ name: 'R' count: {} }} }} }}"
    )
    flags: dict[str, Flag] = {"rate_limit": "execution_count", "rate_limit_resource": "R:2"}
    with playing(start, tmp_path, **flags) as made:
        for model in ("direct", "batching", "oldest"):
            play = made[model]
            assert play.group(resources.format(1, 2)) == ""
            play.send("runs", hold=True, **begin(play, 1))
            play.begun("runs")
            assert "Resource count for" in play.group(resources.format(1, 3))
            # The real server has initialized the instance that it then refuses.
            initialized = play.counts()["initialize"]
            with ThreadPoolExecutor() as pool:
                changed = pool.submit(play.group, resources.format(2, 1))
                play.go("runs")
                assert changed.result() == ""
            play.send("waits", **begin(play, 2))
            play.answered("waits")
            end(play, 1, 2)
            play.send("one", hold=True, **begin(play, 3))
            play.send("two", hold=True, **begin(play, 4))
            play.begun("one", "two")
            play.go("one", "two")
            end(play, 3, 4)
            assert play.counts()["initialize"] == initialized + 2
