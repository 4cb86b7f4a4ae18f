"""Captures for tests: requests to the model `m`, and responses with seeded differences."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from triton_replay.capture.files import CaptureWriter
from triton_replay.capture.records import Closing, Opening, Record, Request, Response

MS = 1_000_000
#: For a request's number and its input the answer's output, or a response.
Answering = Callable[[int, np.ndarray], "np.ndarray | Response"]


def inputs(count: int) -> list[np.ndarray]:
    """Return FP32 inputs [1 to 4 rows, length 1 to 40] in a hundred combinations."""
    rng = np.random.default_rng(0)
    shapes = [(1 + n % 4, 1 + (n * 7) % 40) for n in range(count)]
    return [rng.uniform(0.5, 1, shape).astype(np.float32) for shape in shapes]


def request(number: int, x: np.ndarray) -> Request:
    """Return an inference with binary data."""
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": x.shape}]}
    document["inputs"][0]["parameters"] = {"binary_data_size": x.nbytes}
    text = json.dumps(document).encode()
    body = text + x.tobytes()
    headers = (("Inference-Header-Content-Length", str(len(text))),)
    at = number * 10 * MS
    return Request(number, 0, at, at, "POST", "/v2/models/m/infer", headers, len(body), body)


def response(number: int, y: np.ndarray, took: int = MS, binary: bool = True) -> Response:
    """Return a response with binary data or JSON."""
    output = {"name": "y", "datatype": "FP32", "shape": list(y.shape)}
    document = {"model_name": "m", "outputs": [output]}
    headers, tail = (), b""
    if binary:
        output["parameters"] = {"binary_data_size": y.nbytes}
        tail = y.tobytes()
    else:
        output["data"] = y.ravel().tolist()
    text = json.dumps(document).encode()
    if binary:
        headers = (("Inference-Header-Content-Length", str(len(text))),)
    body = text + tail
    end = number * 10 * MS + took
    return Response(number, end, end, 200, headers, len(body), body)


def events(number: int, *values: float) -> Response:
    """Return a response of server-sent events."""
    body = b"".join(b"data: %s\n\n" % json.dumps({"y": value}).encode() for value in values)
    headers = (("Content-Type", "text/event-stream"),)
    return Response(number, number, number, 200, headers, len(body), body)


def write_records(path: Path, *records: Record, server: str = "s:1", **settings: object) -> Path:
    """Write a capture of these records, after an opening."""
    with contextlib.closing(CaptureWriter.create(path)) as writer:
        writer.write([Opening(server, "2026-01-01T00:00:00", "0", settings), *records])
    return path


def write_capture(
    path: Path, answering: Answering, values: Sequence[np.ndarray], **settings: str
) -> Path:
    """Write a capture of these inputs, with responses from `answering`."""
    records: list[Record] = []
    for number, x in enumerate(values):
        found = answering(number, x)
        answer = response(number, found) if isinstance(found, np.ndarray) else found
        records += [request(number, x), answer]
    return write_records(path, *records, Closing(0, "stopped", {}), **settings)


class Records(list):
    """A sink that collects records."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[str] = []

    put = list.append

    def count(self, reason: str) -> None:
        self.counted.append(reason)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return data in pieces, cut at these places modulo its size."""
    places = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[first:last] for first, last in itertools.pairwise(places) if first < last]
