"""Fuzz targets: each feeds bytes to one decoder and must never raise.

A target checks properties that hold for all bytes: a decoder raises only its own error type, two
readers of one format agree, bytes in two pieces have the same result as in one, and every response
is well framed. `seeds` returns valid inputs for each target.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import httptools
import numpy as np
from contract.cases import CASES
from contract.grpc_cases import CASES as GRPC_CASES
from contract.probes import PROBES
from google.protobuf.message import DecodeError
from hpack import Encoder
from PIL import Image
from server.support.frontend import Frontend, answering, served
from server.support.http import Client
from server.support.http2 import REQUEST, Peer
from server.support.regions import MadeUpRegions
from server.support.requests import NullSink
from support.http2 import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, frame, head
from support.http2 import message as grpc_message
from support.http2 import settings as http2_settings
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelInferRequest

from benchmarks.attack import Defect, expect
from ge_runtime.errors import RequestFault
from ge_runtime.npu.service import protocol
from ge_runtime.npu.service.messages import resident_of
from ge_runtime.specs import DType
from ge_runtime.steps.pictures import ImageProcessor, PictureStep
from reference_server.codecs import json_exact_reader, proto_wire, rapid_json
from reference_server.codecs.infer_json import InferRequestDecoder, json_length
from reference_server.codecs.infer_proto import InferMessageDecoder
from reference_server.config import check, json_form, pbtxt
from reference_server.config.schema import ModelConfig as FrozenConfig
from reference_server.core.errors import ServerError
from reference_server.frontends.grpc.http2.frames import ConnectionFault
from reference_server.frontends.grpc.http2.header_blocks import HeaderReader
from reference_server.frontends.grpc.http2.receiving import DataReceived, Event
from reference_server.repository.versions import ServedModel

Target = Callable[[bytes], None]

LONGEST = 4_096
"""Largest input in bytes. Longer inputs are slower and reach no more code."""
EXCLUDED = (b"/v2/logging", b"trace/setting", b"sharedmemory", b"/v2/repository")
"""Operations that change the state of the process."""
_STATUSES = frozenset((200, 400, 404, 405, 415, 417, 431, 500, 501, 503))


# -- HTTP: heads, bodies, JSON, the binary header, and responses


@cache
def _models() -> tuple[ServedModel, ...]:
    names = ("vector", "pair", "types", "batched", "words", "text", "matrix", "optional")
    return tuple(served(PROBES[name].config, name, answer=answering(Y=[1.0])) for name in names)


class _RaiseLogged(logging.Handler):
    """A log handler that raises logged exceptions: frontends log only unexpected exceptions."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            raise record.exc_info[1]

    def handleError(self, record: logging.LogRecord) -> None:
        raise


_RAISE_LOGGED = _RaiseLogged()


def _statuses(*pieces: bytes) -> list[int]:
    """Send the pieces over one connection, half-close, and return the statuses of the responses."""
    frontend = Frontend(*_models())
    # A stopped clock: the amount of work in one loop iteration depends on the time.
    frontend.client = Client(frontend.handle, clock=lambda: 0.0)
    for piece in pieces:
        frontend.exchange(piece)
    frontend.client.half_close()
    try:
        return [reply.status for reply in frontend.client.replies()]
    except (AssertionError, IndexError, ValueError) as error:
        raise Defect(f"a response is not well framed: {error}") from error


def http(data: bytes) -> None:
    """HTTP requests in one piece and in two: the whole frontend without its socket."""
    if any(word in data for word in EXCLUDED):
        return
    logger = logging.getLogger("reference_server")
    logger.addHandler(_RAISE_LOGGED)
    try:
        cut = sum(data) % (len(data) + 1)
        whole, halved = _statuses(data), _statuses(data[:cut], data[cut:])
    finally:
        logger.removeHandler(_RAISE_LOGGED)
    expect(_STATUSES.issuperset(whole), f"unexpected status in {whole}")
    # A method unknown to llhttp gets 405 if the request line arrives in one piece; otherwise the
    # connection is closed.
    same = whole == halved or _has_unknown_method(data)
    expect(same, f"statuses {whole} in one piece, {halved} when split at {cut}")


def _has_unknown_method(data: bytes) -> bool:
    """Return whether llhttp rejects the method of a request."""
    try:
        httptools.HttpRequestParser(object()).feed_data(data)
    except httptools.HttpParserInvalidMethodError:
        return True
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return False
    return False


def infer_body(data: bytes) -> None:
    """An inference body over HTTP, preceded by two bytes with the length of its JSON."""
    number, body = int.from_bytes(data[:2], "big"), memoryview(data)[2:]
    signature = _models()[0].config.signature
    decoder = InferRequestDecoder()
    found = []
    for _ in range(2):  # the second time from the decoder's cache
        try:
            length = json_length(str(number), len(body))
            request, _ = decoder.decode(signature, body, length, NullSink(), _REGIONS)
            found.append([repr(request.parameters), *request.inputs])
        except ServerError as error:
            found.append([str(error)])
    expect(found[0] == found[1], f"decoded as {found[0]}, from the cache as {found[1]}")


def json_document(data: bytes) -> None:
    """JSON: the fast reader and the exact reader agree."""

    def read(reader: Callable[[bytes], object]) -> str:
        try:
            return repr(reader(data))
        except ServerError as error:
            return f"rejected: {error}"

    fast, exact = read(rapid_json.loads), read(json_exact_reader.read)
    expect(fast == exact, f"fast reader: {fast[:200]}, exact reader: {exact[:200]}")


# -- gRPC: frames, header blocks, messages


def _events(*pieces: bytes) -> tuple[list[str], list[object]]:
    """Return the events of a connection that receives the pieces, and everything that it sends."""
    peer = Peer()
    events: list[str] = []
    bodies: dict[int, bytes] = {}
    for piece in pieces:
        for event in peer.connection.receive(memoryview(piece), 0.0):
            if isinstance(event, DataReceived):
                bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                if not event.ended:
                    continue
            events.append(_named(event))
    return [*events, repr(sorted(bodies.items()))], list(peer.take())


def _named(event: Event) -> str:
    """Describe the event without its part of a body."""
    if isinstance(event, DataReceived):
        return f"end of stream {event.stream_id}"
    return repr(event)


def frames(data: bytes) -> None:
    """HTTP/2 frames after a valid preface, in one piece and in two."""
    cut = sum(data) % (len(data) + 1)
    whole, halved = _events(data), _events(data[:cut], data[cut:])
    expect(whole[0] == halved[0], f"{whole[0]} in one piece, {halved[0]} when split at {cut}")


def header_block(data: bytes) -> None:
    """A header block, decoded twice with the same HPACK table."""
    reader = HeaderReader(1 << 16)
    try:
        reader.read(data)
        reader.read(data)
    except ConnectionFault:
        pass


def infer_message(data: bytes) -> None:
    """A ModelInferRequest: decoded as by protobuf, and rejected if protobuf rejects it."""
    try:
        expected: ModelInferRequest | None = ModelInferRequest.FromString(data)
    except DecodeError:
        expected = None
    decoder = InferMessageDecoder()
    try:
        head, found_id, raw = proto_wire.split(data)
        found = proto_wire.parse(head)
        found.id = found.id if found_id is None else found_id
        found.raw_input_contents.extend(map(bytes, raw))
    except ServerError:
        expect(expected is None, "rejected; protobuf accepts it")
        return
    expect(expected is not None, "accepted; protobuf rejects it")
    expect(found == expected, "decoded differently from protobuf")
    for model in _models()[:2]:
        with contextlib.suppress(ServerError):
            decoder.decode(model.config.signature, decoder.read(data), NullSink(), _REGIONS)


_REGIONS = MadeUpRegions(region=bytes(64))


# -- configurations


@cache
def _file() -> Path:
    """Return the path of the file that holds the configuration under test."""
    folder = tempfile.mkdtemp(prefix="attack-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / pbtxt.FILE_NAME


def _check_and_freeze(config: ModelConfig) -> None:
    """Check a configuration as for a loaded model, and freeze it."""
    config.name = config.name or "m"
    config.backend = config.backend or "python"
    check.check_polled(config)
    check.check_given(config)
    check.check_loaded(config)
    FrozenConfig.from_proto(config)


def config_text(data: bytes) -> None:
    """A config.pbtxt, read, checked and frozen."""
    path = _file()
    path.write_bytes(data)
    with contextlib.suppress(ServerError):
        _check_and_freeze(pbtxt.read(path))


def config_json(data: bytes) -> None:
    """A configuration in JSON, as in a load request."""
    try:
        config = json_form.read(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        return
    with contextlib.suppress(ServerError):
        _check_and_freeze(config)


# -- the device service


def service_packet(data: bytes) -> None:
    """A packet of the device service, decoded by its type."""
    try:
        kind, body = protocol.unframed(data)
        if kind is protocol.Kind.RUN:
            protocol.unpack_run(body)
            protocol.unpack_layout(body[protocol.LAYOUT_AT :])
        elif kind is protocol.Kind.DONE:
            protocol.unpack_done(body)
        else:
            resident_of(protocol.unpack_json(body).get("resident"))
    except protocol.ProtocolError:
        pass


# -- images


@cache
def _picture_step() -> PictureStep:
    """Return the step for the most common image processor that crops."""
    rest = {"resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "crop_size": 32}
    fields = {"image_processor_type": "CLIPImageProcessor", "size": 32, **rest}
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        file = Path(folder, "preprocessor_config.json")
        file.write_text(json.dumps(fields))
        return PictureStep(ImageProcessor.read(file), "pixels", DType.FP32, last=False)


def picture(data: bytes) -> None:
    """A JPEG or PNG file: pixels of the right shape, or an error of its request."""
    files = np.empty(1, object)
    files[0] = data
    with contextlib.suppress(RequestFault):
        found = _picture_step()({"image": files})["pixels"]
        expect(found.shape == (1, 3, 32, 32), f"pixels of shape {found.shape}")


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        http,
        infer_body,
        json_document,
        frames,
        header_block,
        infer_message,
        config_text,
        config_json,
        service_packet,
        picture,
    )
}


# -- valid inputs


def seeds(name: str) -> list[bytes]:
    """Return valid and nearly valid inputs of a target, from the tables of the contract tests."""
    good = _SEEDS[name]()
    return sorted({data for data in good if len(data) <= LONGEST})


def _requests() -> list[bytes]:
    """Return the HTTP requests of the tables."""
    return [case.request for case in CASES if isinstance(case.request, bytes)]


def _documents() -> list[bytes]:
    bodies = (request.partition(b"\r\n\r\n")[2] for request in _requests())
    return [body for body in bodies if body.startswith(b"{")]


def _bodies() -> list[bytes]:
    """Return inference bodies, each preceded by the length of its JSON."""
    found = []
    for body in _documents():
        try:
            _, length = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        except ValueError:
            length = len(body)
        found.append(length.to_bytes(2, "big") + body if length < 1 << 16 else b"")
    return found


def _messages() -> list[bytes]:
    calls = itertools.chain.from_iterable(case.calls for case in GRPC_CASES)
    return [request for one in calls if one.method == "ModelInfer" for request in one.requests]


def _conversations() -> list[bytes]:
    """Return calls as HTTP/2 frames: in few frames, in many, and after a SETTINGS frame."""
    found = []
    for number, body in enumerate(_messages()[::20]):
        encoder, data = Encoder(), grpc_message(body)
        block = encoder.encode(head("/inference.GRPCInferenceService/ModelInfer"))
        whole = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, data)
        parted = (
            frame(HEADERS, 0, 1, block[:5])
            + frame(CONTINUATION, END_HEADERS, 1, block[5:])
            + b"".join(frame(DATA, 0, 1, data[at : at + 50]) for at in range(0, len(data), 50))
        )
        found.append((whole, parted, http2_settings(_4=number) + whole)[number % 3])
    return found


def _blocks() -> list[bytes]:
    encoder = Encoder()
    fields = [REQUEST, REQUEST, [("x", "y" * 100)], head("/t.T/u", ("grpc-timeout", "1S"))]
    return [encoder.encode(one) for one in fields] + [b"\x20\x3f\xe1\x1f" + encoder.encode(REQUEST)]


def _configs() -> list[bytes]:
    return [probe.config.encode() for probe in PROBES.values() if probe.config]


def _config_documents() -> list[bytes]:
    return [
        b'{"name":"m","backend":"python","max_batch_size":8,"input":[{"name":"X","data_type":'
        b'"TYPE_FP32","dims":["-1"]}],"dynamic_batching":{"preferred_batch_size":[4]}}',
        b'{"instance_group":[{"count":2,"kind":"KIND_CPU"}],"parameters":{"a":{"string_value":"b"}}}',
    ]


def _packets() -> list[bytes]:
    layout = protocol.pack_layout([(0, 64, (2, 3)), (1, 0, ())], [(0, (protocol.NOWHERE, 0, (5,)))])
    done = protocol.Done(7, 0.5, 0.25, ((0, (1, 0, (2, 2))),), ("EngineFault", "text", ""))
    tensors = {"x": ["encoder", "FP32", [4]]}
    resident = {"inputs": {}, "outputs": tensors, "rows": 8, "reads": 1, "lease_s": 60}
    control = protocol.pack_json({"open": "model.onnx", "resident": resident})
    return [
        protocol.pack_run(3, 1.5, layout, 2),
        protocol.pack_done(done),
        protocol.framed(protocol.Kind.CONTROL, control),
        protocol.framed(protocol.Kind.LARGE, b""),
    ]


def _pictures() -> list[bytes]:
    """Return small files of each form that Pillow writes."""
    noise = np.random.default_rng(1).integers(0, 255, (9, 11, 3), np.uint8)
    found = []
    for mode in ("RGB", "L", "CMYK", "P", "RGBA", "I;16", "1"):
        image = Image.fromarray(noise).convert(mode)
        for form in ("PNG", "JPEG"):
            with contextlib.suppress(OSError):
                image.save(file := io.BytesIO(), form, progressive=mode == "L")
                found.append(file.getvalue())
    return found


_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "http": _requests,
    "infer_body": _bodies,
    "json_document": _documents,
    "frames": _conversations,
    "header_block": _blocks,
    "infer_message": _messages,
    "config_text": _configs,
    "config_json": _config_documents,
    "service_packet": _packets,
    "picture": _pictures,
}
