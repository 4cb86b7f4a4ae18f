"""Hostile processes on the same machine: a model process, and clients of the device service."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from contract.wire import ConnectionEnded, read_reply
from support.mutations import mutated

from benchmarks.attack import Defect
from benchmarks.attack.clients import inference
from benchmarks.attack.ground import (
    IMAGE,
    Ground,
    connect,
    models,
    service_folder,
    write_image_service,
)
from benchmarks.attack.restarts import Load, as_sent, service
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

# -- a hostile model process

LIAR = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        # `_BOOT` in the process host defines this command line.
        self.ends = [*map(int, open("/proc/self/cmdline").read().split(chr(0))[5:7])]

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(one, "LIE").as_numpy() for one in requests]
        for lie in given:
            if lie.size:
                os.write(self.ends[lie[0] % 2], lie[1:].tobytes())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("LIE", lie)]) for lie in given]
"""
"""A model that writes its input to a socket of its process host, and then responds as usual.

The first byte of the input selects the socket: that of events or that of job results.
"""
LIAR_CONFIG = """
backend: "python"
input { name: "LIE" data_type: TYPE_UINT8 dims: [-1] }
output { name: "LIE" data_type: TYPE_UINT8 dims: [-1] }
instance_group { count: 4 kind: KIND_CPU }
"""
_MESSAGES = (
    '[0,[],"executed",[[["liar",1,"",[["LIE","UINT8",[4],0,4]],[],null,true,false]],0,0,[],false]]',
    '["response",0,["liar",1,"",[["LIE","UINT8",[4],0,4]],[["a",1]],null,true,false]]',
    '["call",1,"infer",[["m",1,"",[],0,0,0,1,0,0,false],{},0,false,false,[]],null,null]',
    '["call",2,"hold","a_name","what it is","COUNTER"]',
    '["call",3,"move",4,"increment",1.5]',
    '["call",4,"unload","no_model",false]',
    '["log","reference_server.x",20,"model.py",1,"a text",1.5]',
    '[0,[],"failed","INTERNAL","a text"]',
    '["readiness",true]',
    '[0,[64],"done",null]',
    '["free",[0,64]]',
    '["collected"]',
)
"""Messages that a model process may send, but at another time or with other numbers.

No message makes a request wait forever: every model may do that, so it would be no defect.
"""
_TIMEOUT_S = 45.0
"""Longer than the longest pause before a process is restarted, plus its start."""


@contextlib.contextmanager
def with_liar() -> Iterator[Path]:
    """A repository with a model whose process is hostile."""
    with models() as folder:
        (folder / "liar" / "1").mkdir(parents=True)
        (folder / "liar" / "1" / "model.py").write_text(LIAR)
        (folder / "liar" / "config.pbtxt").write_text(LIAR_CONFIG)
        yield folder


def model_processes_lie(ground: Ground) -> str:
    """Junk and changed messages from the processes of a hostile model."""
    end = time.monotonic() + ground.seconds
    seeds = [ground.dice.random() for _ in range(4)]
    counts: list[tuple[int, int]] = []
    faults: list[Exception] = []

    def attack(dice: random.Random) -> None:
        succeeded = failed = 0
        try:
            while time.monotonic() < end:
                right = _send(ground, _lie(dice))
                succeeded, failed = succeeded + right, failed + (not right)
            until = time.monotonic() + _TIMEOUT_S
            while not _send(ground, b""):  # the processes may have to start again
                if time.monotonic() > until:
                    raise Defect(f"the model does not recover within {_TIMEOUT_S:.0f} s")
        except Exception as error:
            faults.append(error)
        counts.append((succeeded, failed))

    _run_in_threads([partial(attack, random.Random(seed)) for seed in seeds])
    if faults:
        raise faults[0]
    succeeded, failed = (sum(column) for column in zip(*counts, strict=True))
    return f"{succeeded} succeeded, {failed} failed"


def _lie(dice: random.Random) -> bytes:
    """Return whole frames with junk, a changed or an unexpected message.

    The first byte selects the socket. No frame is incomplete, because an incomplete frame
    ends the process only after a minute.
    """
    text = dice.choice(_MESSAGES).encode()
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


_LENGTHS = struct.Struct("<Ii")
"""Lengths before each message of the process host's channels."""


def _framed(text: bytes, data: bytes | None = None) -> bytes:
    lengths = _LENGTHS.pack(len(text), -1 if data is None else len(data))
    return lengths + text + (data or b"")


def _send(ground: Ground, lie: bytes) -> bool:
    """Make the model write these bytes; return whether the request succeeded.

    Raises:
        Defect: The request got no response.
    """
    size = {"binary_data_size": len(lie)}
    tensor = {"name": "LIE", "datatype": "UINT8", "shape": [len(lie)], "parameters": size}
    with connect(ground.server.http) as client, client.makefile("rb") as stream:
        client.settimeout(_TIMEOUT_S)
        client.sendall(inference("liar", tensor, lie))
        try:
            return bool(read_reply(stream).status == 200)
        except (TimeoutError, ConnectionEnded) as error:
            raise Defect(f"no response to the request that wrote {lie!r}: {error!r}") from error


def _run_in_threads(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- hostile clients of the device service

_FLOOD = 600
"""Concurrent connections: more than the service allows for one process."""
_SETTLED_S = 20.0
"""The service waits ten seconds for the first message of a connection."""


@contextlib.contextmanager
def with_service() -> Iterator[Path]:
    """A repository with a model that executes in a separate device service."""
    with models() as folder, service_folder():
        write_image_service(folder)
        yield folder


def service_clients_rude(ground: Ground) -> str:
    """Junk, floods, silent clients and unsafe memory for the device service of a busy model."""
    pid = service()
    before = _held_by(pid)
    bystander = Load(ground.server.http, "image_service", as_sent(IMAGE))
    counts = Counter[str]()
    with contextlib.ExitStack() as kept, bystander.running():
        rude = _Rude(ground, kept)
        attacks = (rude.junk, rude.control, rude.memory, rude.runs, rude.flood, rude.silence)
        for _ in ground.over():
            attack = ground.dice.choice(attacks)
            with contextlib.suppress(PeerGone):  # the service closed the connection, as it should
                attack()
            counts[attack.__name__] += 1
    missed = bystander.counts["lost"] + bystander.counts["refused"]
    if missed or service() != pid:
        raise Defect(f"{missed} model responses wrong or missing, or the service restarted")
    end = time.monotonic() + _SETTLED_S
    while (held := _held_by(pid)) > before + 4:
        if time.monotonic() > end:
            raise Defect(f"the service holds {held} descriptors and threads; before: {before}")
        time.sleep(0.25)
    summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{summary}; {bystander.counts['answered']:,} model responses"


def _held_by(pid: int) -> int:
    """Count the descriptors and threads of a process."""
    return sum(1 for what in ("fd", "task") for _ in Path(f"/proc/{pid}/{what}").iterdir())


class _Rude:
    """A client of the device service that breaks its rules."""

    def __init__(self, ground: Ground, kept: contextlib.ExitStack) -> None:
        """Create a client. Connections in `kept` stay open until the attack ends."""
        self._dice = ground.dice
        self._kept = kept
        self._model = ground.repository / "image_service" / "1" / "model.onnx"
        self._address = os.environ["XDG_RUNTIME_DIR"] + "/ge_runtime/cpu.sock"

    def junk(self) -> None:
        """Send changed first packets and read no response."""
        hello = framed(Kind.CONTROL, pack_json({"version": VERSION, **_HELLO}))
        with self._connected() as channel:
            for _ in range(self._dice.randint(1, 20)):
                channel.send(mutated(hello, self._dice) or b"\0")

    def control(self) -> None:
        """Send messages with wrong values or changed bytes, some with descriptors."""
        with self._greeted() as (channel, _), Path(os.devnull).open() as null:
            for _ in range(20):
                request = self._dice.choice(self._requests())
                request[self._dice.choice(list(request))] = self._dice.choice(_VALUES)
                packet = pack_json(request)
                if not self._dice.randrange(20):
                    packet = mutated(packet, self._dice)
                brings = [null.fileno()] * self._dice.choice((0, 0, 0, 1, 2))
                channel.send(framed(Kind.CONTROL, packet), brings)
                _answer(channel)

    def memory(self) -> None:
        """Offer memory that can be truncated, or is too small; truncate accepted memory."""
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
                    raise Defect("memory that can be truncated is accepted")
            channel.send_json({"do": "arena", "number": 1, "nbytes": 1 << 12}, [sealed])
            if "ok" not in _answer(channel):
                raise Defect("memory of a sealed size is rejected")
            with contextlib.suppress(PermissionError):
                os.ftruncate(sealed, 0)
                raise Defect("memory that the service has mapped can be truncated")
            channel.send(framed(Kind.LARGE, b""), [bare])
            os.ftruncate(bare, 0)
            _answer(channel)

    def runs(self) -> None:
        """Send changed execution packets for this client's own engine and memory."""
        with self._greeted() as (channel, token):
            sealed = sealed_file("rude", 1 << 20)
            try:
                channel.send_json({"do": "arena", "number": 1, "nbytes": 1 << 20}, [sealed])
            finally:
                os.close(sealed)
            _answer(channel)
            channel.send_json(self._requests()[0])
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
                    runs.receive(_deadline())

    def flood(self) -> None:
        """Open more connections than one process may have."""
        with contextlib.ExitStack() as open_:
            for _ in range(_FLOOD):
                open_.enter_context(self._connected())

    def silence(self) -> None:
        """Open a connection that sends nothing and one that reads nothing; keep both open."""
        self._kept.enter_context(self._connected())
        deaf = self._kept.enter_context(self._connected())
        again = pack_json({"version": VERSION, "role": "observer"})
        with socket.socket(fileno=os.dup(deaf.fileno())) as end, contextlib.suppress(OSError):
            for _ in range(1000):
                end.send(framed(Kind.CONTROL, again), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _requests(self) -> list[dict[str, object]]:
        """Return valid requests of a client."""
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
            channel.connect(self._address, _deadline())
            yield channel
        finally:
            channel.close()

    @contextlib.contextmanager
    def _greeted(self) -> Iterator[tuple[Channel, str]]:
        """Open a registered client's connection; yield it with its token."""
        with self._connected() as channel:
            channel.send_json({"version": VERSION, **_HELLO})
            answer = _answer(channel)
            if "ok" not in answer:  # this process has too many connections
                raise PeerGone
            yield channel, answer["ok"]["client"]


_SCALARS = (None, True, -1, 0, 1, 2, 2**31, 2**64, 1e308, "", "open", "/dev/zero", "x" * 40_000)
_LISTS: tuple[object, ...] = (
    [],
    [[]],
    [["/dev/null", "onnxruntime", ""]],
    [{"image": [2**40]}],
    {},
    {"image": [-1]},
)
_VALUES: tuple[object, ...] = (*_SCALARS, *_LISTS)
"""Wrong values of fields."""

_HELLO = {"role": "client", "name": "rude", "weight": 1.0, "priority": 0}


def _answer(channel: Channel) -> dict[str, Any]:
    """Receive a message. Raise PeerGone if the connection ends, Defect after the time limit."""
    return channel.receive_json(_deadline())[0]


def _deadline() -> Callable[[], None]:
    end = time.monotonic() + _TIMEOUT_S

    def check() -> None:
        if time.monotonic() > end:
            raise Defect(f"the device service sent nothing for {_TIMEOUT_S:.0f} s")

    return check
