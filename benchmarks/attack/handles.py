"""Forged handles of rows that stay in the device service.

While an ensemble is busy, clients hold valid handles of their own rows, whose results they know.
They send valid, already read and made-up handles, alone and mixed in one request.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format
from runtime.support.graphs import ENCODER, encode, write
from runtime.support.resident import SCORES, giver, taker, write_scores
from tritonclient.grpc.model_config_pb2 import ModelConfig

from benchmarks.attack import ROOT, Defect
from benchmarks.attack.ground import Ground, models, service_folder
from benchmarks.attack.restarts import Load, service
from ge_runtime.npu.service.channel import Channel, PeerGone
from ge_runtime.npu.service.protocol import VERSION

_CLIENTS = 3
_KEPT = 4
"""Unread rows per client, few enough to leave room for other clients."""
_WORDS = 4
_ENSEMBLE = """
name: "kept_pair"
platform: "ensemble"
max_batch_size: 8
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
        { name: "lengths" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [
  { model_name: "encoder" model_version: -1
    input_map [ { key: "input_ids" value: "input_ids" }, { key: "lengths" value: "lengths" } ]
    output_map { key: "embedding" value: "embedding" } },
  { model_name: "scores" model_version: -1
    input_map { key: "embedding" value: "embedding" }
    output_map { key: "scores" value: "scores" } } ] }
"""


@contextlib.contextmanager
def with_handles() -> Iterator[Path]:
    """A repository with an ensemble whose intermediate tensor stays in the device service."""
    with models() as folder, service_folder(), tempfile.TemporaryDirectory() as scratch:
        artifacts = write_scores(Path(scratch)) / "model.onnx"
        _add(folder, giver({"resident_rows": "64"}), write(ENCODER, "onnxruntime", folder))
        _add(folder, taker(), artifacts)
        (folder / "kept_pair" / "1").mkdir(parents=True)
        (folder / "kept_pair" / "config.pbtxt").write_text(_ENSEMBLE)
        yield folder


def _add(repository: Path, config: dict[str, object], artifact: Path) -> None:
    """Add a model of ge_runtime to the repository. Moves the artifact."""
    version = repository / str(config["name"]) / "1"
    version.mkdir(parents=True)
    shutil.copy(ROOT / "model_repository" / "text_encoder" / "1" / "model.py", version)
    shutil.move(artifact, version / "model.onnx")
    parsed = json_format.ParseDict({**config, "backend": "python"}, ModelConfig())
    (version.parent / "config.pbtxt").write_text(text_format.MessageToString(parsed))


def handles_forged(ground: Ground) -> str:
    """Handles from other clients: valid, already read, changed or mixed, and direct messages."""
    pid = service()
    whole: tuple[bytes, dict[str, str]] = (
        json.dumps({"inputs": _tokens([1, 2, 3])}).encode(),
        {},
    )
    bystander = Load(ground.server.http, "kept_pair", whole)
    counts = Counter[str]()
    faults: list[Exception] = []
    with bystander.running():
        clients = [
            _Client(ground.server.http, random.Random(ground.dice.random()), counts)
            for _ in range(_CLIENTS)
        ]

        def forge(client: _Client) -> None:
            try:
                for _ in ground.over():
                    client.step()
            except Exception as error:
                faults.append(error)
            finally:
                client.close()

        threads = [threading.Thread(target=forge, args=(each,)) for each in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]
    missed = bystander.counts["lost"] + bystander.counts["refused"]
    if missed or service() != pid:
        raise Defect(f"{missed} ensemble responses wrong or missing, or the service restarted")
    summary = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    return f"{summary}; {bystander.counts['answered']:,} ensemble responses"


class _Client:
    """A client that owns some rows and forges handles of other clients' rows."""

    def __init__(self, address: str, dice: random.Random, counts: Counter[str]) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._dice = dice
        self._counts = counts
        self._own: list[tuple[list[int], np.ndarray]] = []
        """Unread handles with the scores of their rows."""
        self._stale: list[list[int]] = [[0] * _WORDS]

    def close(self) -> None:
        self._connection.close()

    def step(self) -> None:
        """Create a row while there are few; otherwise attack once."""
        if len(self._own) < _KEPT:
            row = [self._dice.randrange(1, 30) for _ in range(self._dice.randint(1, 9))]
            status, answer = self._ask("encoder", _tokens(row))
            if status == http.client.OK:
                self._own.append((answer[0]["data"], (encode([row]) @ SCORES)[0]))
            return
        attack = self._dice.choice((self._good, self._bad, self._bad, self._mixed, self._release))
        attack()

    def _good(self) -> None:
        handle, scores = self._own.pop(self._dice.randrange(len(self._own)))
        status, answer = self._ask("scores", _handles([handle]))
        self._stale.append(handle)
        # An error is allowed: the service may have evicted the row to make room.
        if status == http.client.OK and not np.allclose(answer[0]["data"], scores, rtol=1e-4):
            raise Defect(f"valid handle: received {answer[0]['data']}, expected {scores}")
        self._counts["good"] += status == http.client.OK

    def _bad(self) -> None:
        self._refused([self._forged()])

    def _mixed(self) -> None:
        handle, _ = self._own.pop()
        rows = [handle, self._forged()]
        self._dice.shuffle(rows)
        self._refused(rows)
        self._stale.append(handle)  # the failed request released it
        self._refused([handle])

    def _refused(self, handles: Sequence[list[int]]) -> None:
        status, answer = self._ask("scores", _handles(handles))
        if status == http.client.OK:
            raise Defect(f"invalid handles {handles} accepted: {answer}")
        if status not in (http.client.BAD_REQUEST, http.client.SERVICE_UNAVAILABLE):
            raise Defect(
                f"invalid handles {handles}: status {status}, expected 400 or 503: {answer}"
            )
        self._counts["refused"] += 1

    def _release(self) -> None:
        """Send forged handles to the service itself, which must not release rows of others."""
        address = os.environ["XDG_RUNTIME_DIR"] + "/ge_runtime/cpu.sock"
        channel = Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            channel.connect(address, lambda: None)
            hello = {"role": "client", "name": "forger", "weight": 1.0, "priority": 0}
            channel.send_json({"version": VERSION, **hello})
            channel.receive_json(lambda: None)
            handles = np.array([self._forged() for _ in range(64)], np.uint64)
            channel.send_json({"do": "let_go", "handles": handles.tobytes().hex()})
            if "ok" not in channel.receive_json(lambda: None)[0]:
                raise Defect("release of forged handles: the service reports an error")
            self._counts["released"] += 1
        except PeerGone as gone:
            raise Defect("release of forged handles: the service closed the connection") from gone
        finally:
            channel.close()

    def _forged(self) -> list[int]:
        return forged(self._dice, [handle for handle, _ in self._own], self._stale)

    def _ask(self, model: str, inputs: Sequence[dict[str, object]]) -> tuple[int, Any]:
        path, body = f"/v2/models/{model}/infer", json.dumps({"inputs": inputs})
        self._connection.request("POST", path, body)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        return response.status, answer.get("outputs", answer)


def forged(
    dice: random.Random, own: Sequence[Sequence[int]], stale: Sequence[Sequence[int]]
) -> list[int]:
    """Return an invalid handle: already read, random, changed or crossed; never one of `own`."""
    while True:
        match dice.randrange(4):
            case 0:
                made = list(dice.choice(stale))
            case 1:
                made = [dice.getrandbits(64) for _ in range(_WORDS)]
            case 2:
                made = _changed(dice, dice.choice(own or stale))
            case _:
                made = _crossed(dice, own or stale)
        if made not in [list(each) for each in own]:
            return made


def _changed(dice: random.Random, handle: Sequence[int]) -> list[int]:
    """Flip one to three bits, preferably bits that select a place or a store."""
    made = list(handle)
    for _ in range(dice.randint(1, 3)):
        made[dice.randrange(_WORDS)] ^= 1 << dice.choice((0, 1, 2, 31, 32, 33, 63))
    return made


def _crossed(dice: random.Random, handles: Sequence[Sequence[int]]) -> list[int]:
    """Combine the place of one handle with the key of another handle."""
    return [*dice.choice(handles)[:2], *dice.choice(handles)[2:]]


def _tokens(row: Sequence[int]) -> list[dict[str, object]]:
    size = len(row)
    ids: dict[str, object] = {
        "name": "input_ids",
        "datatype": "INT64",
        "shape": [1, size],
        "data": list(row),
    }
    return [ids, {"name": "lengths", "datatype": "INT32", "shape": [1, 1], "data": [size]}]


def _handles(rows: Sequence[Sequence[int]]) -> list[dict[str, object]]:
    shape = [len(rows), _WORDS]
    data = [word for row in rows for word in row]
    return [{"name": "embedding", "datatype": "UINT64", "shape": shape, "data": data}]
