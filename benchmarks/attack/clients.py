"""Clients that are slow, disconnect early, or truncate their shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from contract.wire import ConnectionEnded, read_reply

from benchmarks.attack.ground import Ground, connect

_SLOW = 60
"""Concurrent slow clients."""
_DRIP_S = 0.05
_REGION_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)


def inference(model: str, tensor: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return an inference request over HTTP with one input and its binary data."""
    header = json.dumps({"inputs": [tensor]}).encode()
    return (
        b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n%b%b"
        % (model.encode(), len(header) + len(body), len(header), header, body)
    )


def binary_input(floats: int) -> dict[str, object]:
    """Describe an input of FP32 elements that are sent as binary data."""
    size = {"binary_data_size": 4 * floats}
    return {"name": "INPUT", "datatype": "FP32", "shape": [floats], "parameters": size}


def slow_writers(ground: Ground) -> str:
    """Requests that are sent one byte at a time."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    request = inference("identity_0", tensor)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(ground.server.http)) for _ in range(_SLOW)]
        sent = 0
        for _ in ground.over():
            for client in slow:
                client.sendall(request[sent % len(request) :][:1])
            sent += 1
            time.sleep(_DRIP_S)
    return f"{_SLOW} clients, {sent} bytes each"


def slow_readers(ground: Ground) -> str:
    """Several pipelined responses of 1 MiB that are read 1 KiB at a time."""
    floats = 1 << 18
    request = inference("wide", binary_input(floats), bytes(4 * floats))
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(ground.server.http)) for _ in range(_SLOW // 4)]
        for client in slow:
            client.settimeout(_DRIP_S)
        for _ in ground.over():
            for client in slow:
                with contextlib.suppress(OSError):
                    client.sendall(request)
                with contextlib.suppress(OSError):
                    client.recv(1024)
    return f"{len(slow)} clients"


def leaving(ground: Ground) -> str:
    """Requests whose client closes or resets the connection before the response."""
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
    request = inference("identity_0", tensor)
    count = 0
    for _ in ground.over():
        with connect(ground.server.http) as client:
            if count % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.sendall(request * (1 + count % 3))
            count += 1
    return f"{count:,} clients"


def memory_cut(ground: Ground) -> str:
    """Shared memory that is truncated to nothing and extended again while requests use it."""
    key = f"attack-{uuid.uuid4().hex}"
    path = Path("/dev/shm") / key
    path.write_bytes(bytes(_REGION_BYTES))
    stop = threading.Event()

    def cut() -> None:
        with path.open("r+b") as shared:
            while not stop.is_set():
                os.ftruncate(shared.fileno(), 0)
                os.ftruncate(shared.fileno(), _REGION_BYTES)
                time.sleep(ground.dice.random() * 0.002)

    tensor = {
        "name": "INPUT",
        "datatype": "FP32",
        "shape": [_REGION_BYTES // 4],
        "parameters": {"shared_memory_region": key, "shared_memory_byte_size": _REGION_BYTES},
    }
    cutter = threading.Thread(target=cut, daemon=True)
    answers = errors = 0
    try:
        base = f"/v2/systemsharedmemory/region/{key}"
        body = json.dumps({"key": f"/{key}", "offset": 0, "byte_size": _REGION_BYTES}).encode()
        head = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
        with connect(ground.server.http) as client, client.makefile("rb") as stream:
            client.sendall(head.format(f"{base}/register", len(body)).encode() + body)
            registered = read_reply(stream)
            if registered.status != 200:
                return f"registration rejected with {registered.status}"
            cutter.start()
            for _ in ground.over():
                client.sendall(inference("wide", tensor))
                if read_reply(stream).status == 200:
                    answers += 1
                else:
                    errors += 1
            client.sendall(head.format(f"{base}/unregister", 0).encode())
            read_reply(stream)
    except (OSError, ConnectionEnded):
        return f"connection closed after {answers + errors:,} requests"
    finally:
        stop.set()
        if cutter.ident is not None:
            cutter.join()
        path.unlink(missing_ok=True)
    return f"{answers:,} responses, {errors:,} errors"
