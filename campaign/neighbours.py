"""What processes beside the server do: a model's process that lies, rude clients of the service."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contract.wire import ConnectionEnded, read_reply
from support.mutations import mutated

from benchmarks.bystanders import connected
from benchmarks.restarts import Load, service
from benchmarks.service import SIDE, service_folder
from benchmarks.service_server import as_sent, write
from campaign.clients import inference
from campaign.defects import Defect
from campaign.ground import Ground, models
from ge_runtime.npu.service.channel import Channel, PeerGone
from ge_runtime.npu.service.protocol import (
    HEADER_BYTES,
    VERSION,
    Kind,
    framed,
    pack_json,
    pack_layout,
    pack_run,
)
from ge_runtime.npu.service.shared_memory import sealed_file

# ----------------------------------------------------------------------- a process that lies

#: Sends what it is given over its own connection (as an event, or as what came of a job, by the
#: first byte), then answers as if nothing had been.
LIAR = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        # As the process host starts it: see `_BOOT` there.
        self.ends = [*map(int, open("/proc/self/cmdline").read().split(chr(0))[5:7])]

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(one, "LIE").as_numpy() for one in requests]
        for lie in given:
            if lie.size:
                os.write(self.ends[lie[0] % 2], lie[1:].tobytes())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LIE", lie)]) for lie in given]
"""
LIAR_CONFIG = """
backend: "python"
input { name: "LIE" data_type: TYPE_UINT8 dims: [-1] }
output { name: "LIE" data_type: TYPE_UINT8 dims: [-1] }
instance_group { count: 4 kind: KIND_CPU }
"""
#: What such a process may say, if at the right time, and with other numbers. Nothing that lets a
#: request wait for ever, as every model may: it can have it given again and again.
_SAID = (
    '[0,[],"executed",[[["liar",1,"",[["LIE","UINT8",[4],0,4]],[],null,true,false]],0,0,[],false]]',
    '["response",0,["liar",1,"",[["LIE","UINT8",[4],0,4]],[["a",1]],null,true,false]]',
    '["call",1,"infer",[["m",1,"",[],0,0,0,1,0,0,false],{},0,false,false,[]],null,null]',
    '["call",2,"hold","a_name","what it is","COUNTER"]',
    '["call",3,"move",4,"increment",1.5]',
    '["call",4,"unload","nobody",false]',
    '["log","reference_server.x",20,"model.py",1,"a text",1.5]',
    '[0,[],"failed","INTERNAL","a text"]',
    '["readiness",true]',
    '[0,[64],"done",null]',
    '["free",[0,64]]',
    '["collected"]',
)
_ANSWER_S = 45.0
"""More than the longest pause before a process is started again, and its start."""


@contextlib.contextmanager
def with_liar() -> Iterator[Path]:
    """The repository, and a model that lies."""
    with models() as folder:
        (folder / "liar" / "1").mkdir(parents=True)
        (folder / "liar" / "1" / "model.py").write_text(LIAR)
        (folder / "liar" / "config.pbtxt").write_text(LIAR_CONFIG)
        yield folder


def model_processes_lie(ground: Ground) -> str:
    """Junk, and messages with bytes changed, from processes of a model of its own."""
    end = time.monotonic() + ground.seconds
    seeds = [ground.dice.random() for _ in range(4)]
    counts: list[tuple[int, int]] = []
    faults: list[Exception] = []

    def tell(dice: random.Random) -> None:
        answered = failed = 0
        try:
            while time.monotonic() < end:
                right = _told(ground, _lie(dice))
                answered, failed = answered + right, failed + (not right)
            until = time.monotonic() + _ANSWER_S
            while not _told(ground, b""):  # what others' lies have cost
                if time.monotonic() > until:
                    raise Defect("a model that lies no more is not served again")
        except Exception as error:
            faults.append(error)
        counts.append((answered, failed))

    _beside([partial(tell, random.Random(seed)) for seed in seeds])
    if faults:
        raise faults[0]
    answered, failed = (sum(column) for column in zip(*counts, strict=True))
    return f"{answered} answered, {failed} refused"


def _lie(dice: random.Random) -> bytes:
    """What is no message, or another than was asked for; and nothing that is left half said.

    In front a byte that chooses over which socket it goes.
    """
    text = dice.choice(_SAID).encode()
    data = dice.choice([None, b"", bytes(16)])
    match dice.randrange(4):
        case 0:
            lie = dice.randbytes(dice.randint(1, 200))
        case 1:
            lie = _framed(text, data)
        case 2:
            lie = _framed(mutated(text, dice), data)
        case _:
            lie = mutated(_framed(text, data), dice)
    at = 0
    while at < len(lie):
        # Half a message ends its process after a minute, which the tests play with less.
        if len(lie) - at < _LENGTHS.size:
            lie = lie[:at] + _framed(b"junk")
            break
        text_length, data_length = _LENGTHS.unpack_from(lie, at)
        whole = at + _LENGTHS.size + text_length + max(0, data_length)
        if whole > len(lie):
            lie = lie[:at] + _framed(b"junk")
            break
        at = whole
    return dice.randbytes(1) + (lie or _framed(b"junk"))


#: Before each message of the process host's channels.
_LENGTHS = struct.Struct("<Ii")


def _framed(text: bytes, data: bytes | None = None) -> bytes:
    lengths = _LENGTHS.pack(len(text), -1 if data is None else len(data))
    return lengths + text + (data or b"")


def _told(ground: Ground, lie: bytes) -> bool:
    """Have the model tell this; whether it answered. Raises Defect if nothing came back."""
    given = {"binary_data_size": len(lie)}
    tensor = {"name": "LIE", "datatype": "UINT8", "shape": [len(lie)], "parameters": given}
    with connected(ground.server.http) as client, client.makefile("rb") as stream:
        client.settimeout(_ANSWER_S)
        client.sendall(inference("liar", tensor, lie))
        try:
            return bool(read_reply(stream).status == 200)
        except (TimeoutError, ConnectionEnded) as error:
            raise Defect(f"no answer to who told {lie!r}: {error!r}") from error


def _beside(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ------------------------------------------------------------- rude clients of the device service

_FLOOD = 600
"""Connections at once: more than one process may have."""
_SETTLED_S = 20.0
"""The service gives a connection ten seconds to say who it is."""


@contextlib.contextmanager
def with_service() -> Iterator[Path]:
    """The repository, a model that executes in a device service, and a folder for that."""
    with models() as folder, service_folder(), tempfile.TemporaryDirectory() as scratch:
        write(folder, "image", Path(scratch))
        shutil.rmtree(folder / "image_local")
        yield folder


def service_clients_rude(ground: Ground) -> str:
    """Junk, floods, silence, deafness and bad memory for the device service of a busy model."""
    pid = service()
    before = _held_by(pid)
    image = as_sent({"image": np.ones((1, 3, SIDE, SIDE), np.float32)})
    bystander = Load(ground.server.http, "image_service", image)
    counts = Counter[str]()
    with contextlib.ExitStack() as kept, bystander.running():
        rude = _Rude(ground, kept)
        attacks = (rude.junk, rude.control, rude.memory, rude.runs, rude.flood, rude.silence)
        for _ in ground.over():
            attack = ground.dice.choice(attacks)
            with contextlib.suppress(PeerGone):  # it is sent away, which is what it is there for
                attack()
            counts[attack.__name__] += 1
    missed = bystander.counts["lost"] + bystander.counts["refused"]
    if missed or service() != pid:
        raise Defect(f"{missed} wrong or missing answers of its model, or another service")
    end = time.monotonic() + _SETTLED_S
    while (held := _held_by(pid)) > before + 4:
        if time.monotonic() > end:
            raise Defect(f"the service has {held} descriptors and threads, and had {before}")
        time.sleep(0.25)
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{said}; {bystander.counts['answered']:,} answers of its model"


def _held_by(pid: int) -> int:
    """The descriptors and the threads of a process."""
    return sum(1 for what in ("fd", "task") for _ in Path(f"/proc/{pid}/{what}").iterdir())


class _Rude:
    """A process that does to the service what no client of ours does."""

    def __init__(self, ground: Ground, kept: contextlib.ExitStack) -> None:
        """kept: what stays open until the attack is over."""
        self._dice = ground.dice
        self._kept = kept
        self._model = ground.repository / "image_service" / "1" / "model.onnx"
        self._address = os.environ["XDG_RUNTIME_DIR"] + "/ge_runtime/cpu.sock"

    def junk(self) -> None:
        """First packets with bytes changed, and nothing read."""
        hello = framed(Kind.CONTROL, pack_json({"version": VERSION, **_HELLO}))
        with self._connected() as channel:
            for _ in range(self._dice.randint(1, 20)):
                channel.send(mutated(hello, self._dice) or b"\0")

    def control(self) -> None:
        """A client's messages with other values, or bytes changed; some with descriptors."""
        with self._greeted() as (channel, _), Path(os.devnull).open() as null:
            for _ in range(20):
                asked = self._dice.choice(self._asked())
                asked[self._dice.choice(list(asked))] = self._dice.choice(_VALUES)
                packet = pack_json(asked)
                if not self._dice.randrange(20):
                    packet = mutated(packet, self._dice)
                brings = [null.fileno()] * self._dice.choice((0, 0, 0, 1, 2))
                channel.send(framed(Kind.CONTROL, packet), brings)
                _answer(channel)

    def memory(self) -> None:
        """Memory that could vanish, or is less than said; what was taken cannot be cut."""
        with self._greeted() as (channel, _), contextlib.ExitStack() as files:
            bare = os.memfd_create("bare", os.MFD_ALLOW_SEALING)
            files.callback(os.close, bare)
            os.ftruncate(bare, 1 << 16)
            sealed = sealed_file("rude", 1 << 12)
            files.callback(os.close, sealed)
            ends = os.pipe()
            for end in ends:
                files.callback(os.close, end)
            for descriptor, nbytes in ((bare, 1 << 16), (sealed, 1 << 16), (ends[0], 1 << 12)):
                channel.send_json({"do": "arena", "number": 1, "nbytes": nbytes}, [descriptor])
                if "refused" not in _answer(channel):
                    raise Defect("memory that could vanish is taken")
            channel.send_json({"do": "arena", "number": 1, "nbytes": 1 << 12}, [sealed])
            if "ok" not in _answer(channel):
                raise Defect("memory of a sealed size is refused")
            with contextlib.suppress(PermissionError):
                os.ftruncate(sealed, 0)
                raise Defect("memory that the service has mapped can be cut")
            channel.send(framed(Kind.LARGE, b""), [bare])
            os.ftruncate(bare, 0)
            _answer(channel)

    def runs(self) -> None:
        """Executions whose packets have bytes changed, on an engine and memory of its own."""
        with self._greeted() as (channel, token):
            sealed = sealed_file("rude", 1 << 20)
            try:
                channel.send_json({"do": "arena", "number": 1, "nbytes": 1 << 20}, [sealed])
            finally:
                os.close(sealed)
            _answer(channel)
            channel.send_json(self._asked()[0])
            engine = _answer(channel)["ok"]["engine"]
            layout = pack_layout([(1, 0, (1, 3, 8, 8))], [(0, (1, 1 << 19, (1, 3, 1, 1)))])
            with self._connected() as runs:
                runs.send_json(
                    {"version": VERSION, "role": "run", "client": token, "engine": engine}
                )
                _answer(runs)
                for number in range(20):
                    body = mutated(pack_run(number, 1.0, layout)[HEADER_BYTES:], self._dice)
                    runs.send(framed(Kind.RUN, body))
                    runs.receive(_patience())

    def flood(self) -> None:
        """More connections at once than a process may have."""
        with contextlib.ExitStack() as open_:
            for _ in range(_FLOOD):
                open_.enter_context(self._connected())

    def silence(self) -> None:
        """A connection that says nothing, and one that reads nothing; both stay."""
        self._kept.enter_context(self._connected())
        deaf = self._kept.enter_context(self._connected())
        again = pack_json({"version": VERSION, "role": "observer"})
        with socket.socket(fileno=os.dup(deaf.fileno())) as end, contextlib.suppress(OSError):
            for _ in range(1000):
                end.send(framed(Kind.CONTROL, again), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _asked(self) -> list[dict[str, object]]:
        """What a client may ask."""
        artifacts = [[str(self._model), "onnxruntime", ""]]
        return [
            {"do": "open", "artifacts": artifacts, "threads": 1, "outputs": ["answer"]},
            {"do": "bind", "engine": 1, "largest": [{"image": [8, 3, 8, 8]}]},
            {"do": "intermediates", "engine": 1, "shapes": {"image": [1, 3, 8, 8]}},
            {"do": "arena", "number": 1, "nbytes": 4096},
            {"do": "forget", "number": 1},
            {"do": "cancel", "engine": 1},
            {"do": "close", "engine": 1},
        ]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Channel]:
        channel = Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            channel.connect(self._address, _patience())
            yield channel
        finally:
            channel.close()

    @contextlib.contextmanager
    def _greeted(self) -> Iterator[tuple[Channel, str]]:
        """A client's connection, and its token."""
        with self._connected() as channel:
            channel.send_json({"version": VERSION, **_HELLO})
            answer = _answer(channel)
            if "ok" not in answer:  # there are too many of this process
                raise PeerGone
            yield channel, answer["ok"]["client"]


_VALUES: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 2, 2**31, 2**64, 1e308, "", "open", "/dev/zero", "x" * 40_000),
    *([], [[]], [["/dev/null", "onnxruntime", ""]], [{"image": [2**40]}], {}, {"image": [-1]}),
)

_HELLO = {"role": "client", "name": "rude", "weight": 1.0, "priority": 0}


def _answer(channel: Channel) -> dict[str, Any]:
    """The next message. Raises PeerGone, and Defect if none comes."""
    return channel.receive_json(_patience())[0]


def _patience() -> Callable[[], None]:
    end = time.monotonic() + _ANSWER_S

    def check() -> None:
        if time.monotonic() > end:
            raise Defect("the device service says nothing to a rude client")

    return check
