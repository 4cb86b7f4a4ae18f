"""Processes that are killed while a model runs on a simulated card, under either server.

The resources of a killed process are released, and the remaining processes answer.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from contract.ascend_repository import INSTANCES, STARTERS, Served, serving
from contract.test_same_repository import image
from runtime.support.services import wait_for_end
from support.waiting import until
from tritonclient.http import InferenceServerClient

pytestmark = pytest.mark.oracle

MODEL = "ge_classifier"
PICTURE = image(random.Random(5))

Start: TypeAlias = Callable[[], AbstractContextManager[Served]]


@pytest.fixture(params=STARTERS)
def start(
    request: pytest.FixtureRequest, oracle_installed: None, card_repository: Path, tmp_path: Path
) -> Start:
    """Start either server with MODEL, and with the device services of this test."""
    flags = {"model_control_mode": "explicit", "load_model": MODEL, "exit_timeout_secs": 1}
    return lambda: serving(request.param, card_repository, tmp_path, **flags)


def answers(served: Served) -> bool:
    """Return whether each instance answers: requests go to the instances in turn."""
    return all(isinstance(served.ask(PICTURE), np.ndarray) for _ in range(INSTANCES))


def test_other_instances_answer_after_a_model_process_was_killed(start: Start):
    with start() as served:
        expected = served.ask(PICTURE)
        before, instances = served.stats()["memory"]["allocated"], served.instances()
        killed = instances[f"{MODEL}_0_0"]
        os.kill(killed, signal.SIGKILL)
        wait_for_end(killed)
        until(lambda: killed not in served.instances().values(), "the end of what it had")
        found = [served.ask(PICTURE) for _ in range(2 * INSTANCES)]
        right = [answer for answer in found if isinstance(answer, np.ndarray)]
        assert right
        for answer in right:
            np.testing.assert_array_equal(answer, expected)
        for answer in found:
            if not isinstance(answer, np.ndarray):
                assert answer.message() == f"Stub process '{MODEL}_0_0' is not healthy."
        if served.is_real:
            # The real server never restarts a killed process, and never finishes its unloading.
            slots = before["device I/O"] * (INSTANCES - 1) // INSTANCES
            assert served.stats()["memory"]["allocated"] == before | {"device I/O": slots}
            with InferenceServerClient(served.server.http, network_timeout=60) as client:
                client.unload_model(MODEL)
                client.load_model(MODEL)
        until(lambda: len(served.instances()) == INSTANCES, "all instances")
        until(lambda: answers(served), "an answer of each")


def test_a_killed_server_leaves_nothing_that_hinders_the_next(start: Start):
    with start() as served:
        expected = served.ask(PICTURE)
        pid, instances = served.stats()["pid"], served.instances()
        kill(served)
        for process in instances.values():
            wait_for_end(process)
        until(lambda: not served.instances(), "the end of what they had")
        memory = served.stats()["memory"]
        assert (memory["allocated"], memory["arenas"], memory["weights"]) == ({}, 0, 0)
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "memfd:ge_runtime" not in maps
        assert "/dev/shm" not in maps
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        # The service's socket, without a listener, and its unlocked lock file remain.
        assert served.services.names() == {"npu-0.sock", "npu-0.lock", "npu-0.log"}
        with start() as again:
            np.testing.assert_array_equal(again.ask(PICTURE), expected)
            assert again.stats()["pid"] != pid
    assert served.services.names() == {"npu-0.lock", "npu-0.log", "npu-0.log.old"}


def kill(served: Served) -> None:
    """Kill the server and, for the real server, its model processes.

    A model process of the real server may otherwise wait forever for a lock of its own thread.
    """
    pid = served.server.process.pid
    if served.is_real:
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)
