"""What the pack wrote itself, beside the library that could do it: what each says, and its cost.

    pip install prometheus-client
    python -m benchmarks.own_code

Every part prints how often the library's output differs from ours, which is Triton's (the contract
tests hold that), with a first example, and the time of both on the same input: the median of
repeated turns, in which both take part. `benchmarks.http2_cores` does the same for HTTP/2.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from benchmarks.instruments import print_machine_facts
from ge_runtime.cli import config_pbtxt
from reference_server.codecs import json_writer, prometheus, proto_wire, rapid_json
from reference_server.core.errors import ServerError
from reference_server.core.telemetry import Family, FamilyHead, MetricKind, Sample

ROOT = Path(__file__).resolve().parent.parent
TURNS = 15


def main() -> None:
    """Print every part."""
    print_machine_facts()
    numbers()
    json_documents()
    protobuf_messages()
    configurations()
    metrics_page()


def numbers() -> None:
    """Doubles as text: json_writer.write_array beside orjson."""
    print("\n=== number printing: json_writer.write_array | orjson")
    floats = np.random.default_rng(7).standard_normal(100_000).astype(np.float32)
    for name, values in {
        "FP32 as doubles": floats.astype(np.float64),
        "any double": doubles(100_000),
    }.items():
        ours = json_writer.write_array(values)[1:-1].decode().split(",")
        theirs = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode().split(",")
        differ(name, ours, theirs)
        compare(
            name,
            lambda values=values: json_writer.write_array(values),
            lambda values=values: orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY),
        )


def doubles(count: int) -> np.ndarray:
    """Doubles whose bits are drawn, without those that JSON has no text for."""
    bits = np.random.default_rng(7).integers(0, 2**64, 2 * count, np.uint64)
    drawn = bits.view(np.float64)
    return drawn[np.isfinite(drawn)][:count]


def json_documents() -> None:
    """JSON as values: rapid_json.loads, which uses orjson where that reads alike, beside orjson."""
    print("\n=== JSON reader: rapid_json.loads | orjson.loads")
    unusual = [
        b'{"id":"a","id":"b"}',
        b"[NaN]",
        b"[1e400]",
        b"[-0]",
        b"[18446744073709551616]",
        b'["\\ud800"]',
        b'["\xff"]',
        b"[1] ",
        b"[1]x",
        b"[01]",
        b'{"a":1,}',
        b"\xef\xbb\xbf[1]",
        b"",
        b'["\x01"]',
        b"[1.]",
    ]
    ours = [outcome(lambda: rapid_json.loads(text)) for text in unusual]  # noqa: B023 - at once
    theirs = [outcome(lambda: orjson.loads(text)) for text in unusual]  # noqa: B023
    differ("documents at the edge", ours, theirs)
    for elements in (16, 10_000):
        document = request(elements)
        compare(
            f"a request of {elements} numbers",
            lambda document=document: rapid_json.loads(document),
            lambda document=document: orjson.loads(document),
        )


def request(elements: int) -> bytes:
    """An infer request in JSON."""
    data = np.linspace(0, 1, elements, dtype=np.float32).tolist()
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, elements], "data": data}
    return json.dumps({"inputs": [tensor], "outputs": [{"name": "Y"}]}).encode()


def outcome(read: Callable[[], object]) -> str:
    """What a reader makes of a document: a value, or that it refuses it; texts are not compared."""
    try:
        return repr(read())
    except (ServerError, ValueError):
        return "refused"


def protobuf_messages() -> None:
    """ModelInferRequest: proto_wire, which leaves raw contents where they are, beside protobuf."""
    print("\n=== protobuf wire: proto_wire.split and parse | FromString")
    for size in (64, 65_536, 16 * 2**20):
        message = pb.ModelInferRequest(model_name="identity", raw_input_contents=[bytes(size)])
        message.inputs.add(name="X", datatype="UINT8", shape=[1, size])
        data = message.SerializeToString()

        def ours(data: bytes = data) -> object:
            head, raw = proto_wire.split(data)
            return proto_wire.parse(head), raw

        compare(f"{size:,} bytes", ours, lambda data=data: pb.ModelInferRequest.FromString(data))


def configurations() -> None:
    """config.pbtxt in ge-runtime's commands: a reader of ours beside protobuf's with the schema."""
    print("\n=== config.pbtxt in ge-runtime: config_pbtxt.parse | google.protobuf.text_format")
    texts = [path.read_text() for path in sorted(ROOT.glob("model_repository/*/config.pbtxt"))]
    compare(
        f"the {len(texts)} files of model_repository",
        lambda: [config_pbtxt.parse(text) for text in texts],
        lambda: [text_format.Parse(text, model_config_pb2.ModelConfig()) for text in texts],
    )
    sizes = {name: installed_bytes(name) for name in ("protobuf", "tritonclient", "grpcio")}
    told = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items())
    print(f"  the library and the schema in an image: {told}")


def installed_bytes(distribution: str) -> int:
    """The size of an installed distribution."""
    files = importlib.metadata.files(distribution) or []
    paths = (Path(str(file.locate())) for file in files)
    return sum(path.stat().st_size for path in paths if path.is_file())


def metrics_page() -> None:
    """The metrics page: prometheus.encode beside prometheus_client."""
    print("\n=== metrics page: codecs.prometheus | prometheus_client")
    try:
        from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
    except ImportError:
        print("  prometheus-client is not installed")
        return
    registry, families = CollectorRegistry(), []
    for kind, made in ((MetricKind.COUNTER, Counter), (MetricKind.GAUGE, Gauge)):
        for number in range(12):
            name = f"nv_{kind.value}_{number}"
            labels = [(("model", f"m{model}"), ("version", "1")) for model in range(20)]
            head = FamilyHead(name, "Number of something", kind)
            families.append(Family(head, [Sample(each, 3.0) for each in labels]))
            theirs = made(name, "Number of something", ["model", "version"], registry=registry)
            for each in labels:
                series = theirs.labels(*(value for _, value in each))
                (series.inc if made is Counter else series.set)(3)
    ours = prometheus.encode(families).decode().splitlines()
    latest = generate_latest(registry).decode().splitlines()
    missing = [line for line in ours if line not in set(latest)]
    print(f"  {len(missing)} of {len(ours)} lines are not written so, e.g. {missing[:1]}")
    compare("480 series", lambda: prometheus.encode(families), lambda: generate_latest(registry))


def differ(what: str, ours: list[str], theirs: list[str]) -> None:
    """Print how many of both differ, and the first."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    shown = f", e.g. {pairs[0][0]} | {pairs[0][1]}" if pairs else ""
    print(f"  {what}: {len(pairs):,} of {len(ours):,} differ{shown}")


def compare(what: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    """Print the time of both, in turns, and their ratio."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for seconds, run in zip(times, (ours, theirs), strict=True):
            seconds.append(per_call(run))
    mine, other = map(statistics.median, times)
    print(f"  {what}: {mine * 1e6:,.1f} us | {other * 1e6:,.1f} us, {mine / other:.2f}x the time")


def per_call(run: Callable[[], object]) -> float:
    """Seconds of one call, as the mean of as many as take some milliseconds."""
    count = 1
    while True:
        started = time.perf_counter()
        for _ in range(count):
            run()
        took = time.perf_counter() - started
        if took > 0.005:
            return took / count
        count *= 4


if __name__ == "__main__":
    sys.exit(main())
