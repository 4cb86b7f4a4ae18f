"""What requests cost: requests per second, CPU time and latencies of both servers and of a sketch.

    python -m benchmarks.bars                       five turns of everything, half an hour
    python -m benchmarks.bars --quick               one short turn, under three minutes
    python -m benchmarks.bars --rows http grpc --turns 3 --seconds 1.5
    python -m benchmarks.bars --servers reference tree:../before
    python -m benchmarks.bars --json turns.json --plot bars.png

Each row is a load: a closed loop of prepared bytes, from a process of its own, against a small
model of benchmarks/micro_repository or a pipeline of model_repository. Servers take turns; the
table shows medians, how many times better than tritonserver they are, and the bars that
docs/performance.md holds them to. CPU time is that of all of a server's processes. `sketch` is the
least that could answer the same bytes in Python, `tree:PATH` the server of another checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tritonclient.grpc import service_pb2
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import np_to_triton_dtype

from benchmarks.closed_loop import (
    DecoupledClient,
    GrpcClient,
    HttpClient,
    Run,
    StreamClient,
    ask_for,
    client_process,
    cpu_us,
    starter,
)
from benchmarks.instruments import ROOT, print_machine_facts, print_table
from benchmarks.large_grpc_client import LargeGrpcClient
from tests.support.http2 import message
from triton_replay.comparing.latencies import percentile_of

HERE = Path(__file__).resolve().parent
MICRO = HERE / "micro_repository"
PIPELINES = ROOT / "model_repository"
PIPELINE_MODELS = (
    *("text_pipeline", "tokenizer", "text_encoder", "text_classifier", "ge_classifier"),
    *("ocr_pipeline", "ocr_detection", "ocr_angle", "ocr_recognition"),
)
IN_PROCESS = '\nparameters { key: "EXECUTION_HOST" value { string_value: "process" } }\n'
WARM_UP_S = 0.5
STREAMS = 6  # of a connection, as perf_analyzer shares one

Arrays = dict[str, np.ndarray]
Requests = Callable[[], list[bytes]]


# -- what is sent


def http(model: str, *inputs: Arrays, binary: bool = True) -> list[bytes]:
    """Requests with their tensors as binary data, or as JSON; so are the outputs."""
    return [_http(model, arrays, binary=binary) for arrays in inputs]


def _http(model: str, arrays: Arrays, *, binary: bool) -> bytes:
    tensors = []
    for name, values in arrays.items():
        tensors.append(InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype)))
        tensors[-1].set_data_from_numpy(values, binary_data=binary)
    outputs = None if binary else [InferRequestedOutput(o, False) for o in OUTPUTS[model]]
    body, length = InferenceServerClient.generate_request_body(tensors, outputs)
    return _post(model, body, f"Inference-Header-Content-Length: {length}\r\n" if binary else "")


def _post(model: str, body: bytes, more: str = "") -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


#: Of the models that are asked by JSON: without their names Triton answers in binary all the same.
OUTPUTS = {"add_sub": ("OUTPUT0", "OUTPUT1"), "echo": ("OUTPUT",), "echo_text": ("OUTPUT",)}


def grpc_message(model: str, arrays: Arrays) -> bytes:
    """The bytes of a ModelInferRequest."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, values in arrays.items():
        given = InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        given.set_data_from_numpy(values, binary_data=True)
        request.inputs.add(name=name, datatype=given.datatype(), shape=list(values.shape))
        request.raw_input_contents.append(given._get_binary_data())
    return request.SerializeToString()


def in_region(elements: int, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """An input and an output of so many FP32, in halves of region `number`."""
    size = 4 * elements
    names = {"shared_memory_region": f"bars_{number}", "shared_memory_byte_size": size}
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": [elements], "parameters": names}
    return tensor, {"name": "OUTPUT", "parameters": {**names, "shared_memory_offset": size}}


def http_in_regions(elements: int, count: int) -> list[bytes]:
    """Requests of `echo`, each with a region of its own."""
    sent = []
    for number in range(count):
        tensor, output = in_region(elements, number)
        sent.append(_post("echo", json.dumps({"inputs": [tensor], "outputs": [output]}).encode()))
    return sent


def grpc_in_regions(elements: int, count: int) -> list[bytes]:
    """The same as messages."""
    sent = []
    for number in range(count):
        request = service_pb2.ModelInferRequest(model_name="echo")
        tensor, output = in_region(elements, number)
        for field_, given in (
            (request.inputs.add(name="INPUT", datatype="FP32", shape=tensor["shape"]), tensor),
            (request.outputs.add(name="OUTPUT"), output),
        ):
            for key, value in given["parameters"].items():
                kind = "string_param" if isinstance(value, str) else "int64_param"
                setattr(field_.parameters[key], kind, value)
        sent.append(message(request.SerializeToString()))
    return sent


VALUES = np.arange(16, dtype=np.float32).reshape(1, 16)
SUMMANDS = {"INPUT0": VALUES, "INPUT1": VALUES}
THOUSAND = {"INPUT": np.arange(1000, dtype=np.float32)}
UNEVEN = {"INPUT": (np.arange(1000) / 7).astype(np.float32)}
STRINGS = {"INPUT": np.array([b"string number %d" % n for n in range(1000)], object)}
IMAGE = {"INPUT": np.zeros(3 * 224 * 224, np.float32)}  # 602,112 bytes
SMALL = {"INPUT": VALUES}


def samples(name: str, dtype: Any, batch: tuple[int, ...] = ()) -> list[Arrays]:
    """The requests that the project has for a pipeline, of the shapes there behind `batch`."""
    found = json.loads((HERE / "data" / f"{name}.json").read_text())["data"]
    return [
        {
            key: np.array(value["content"], dtype).reshape((*batch, *value["shape"]))
            for key, value in each.items()
        }
        for each in found
    ]


def pages() -> list[Arrays]:
    """The project's pages, Chinese and English."""
    found = []
    for path in sorted((ROOT / "model_factory" / "data" / "pages").glob("*.png")):
        with Image.open(path) as file:
            found.append({"image": np.asarray(file.convert("RGB"))})
    return found


# -- the rows


@dataclass(frozen=True)
class Row:
    """A load: what is asked, how, and with how many requests in flight.

    `bars` are those of requests per second and of CPU time, for each number in flight.
    """

    about: str
    requests: Requests
    in_flight: tuple[int, ...]
    bars: tuple[tuple[float, float], ...]
    kind: Any = HttpClient
    streams: int = 1
    repository: str = "micro"
    regions: int = 0  # bytes of each, which is registered before
    has_sketch: bool = False
    least_s: float = 0.0  # that it is asked for; not at all by --quick

    @property
    def is_grpc(self) -> bool:
        return self.kind is not HttpClient


ALL = (1, 8, 32)
_SMALL_BARS = ((1.5, 1.5), (2, 2.5), (2, 3))
_JSON_BARS = ((1.3, 1.5), (1.5, 1.5), (1.5, 1.5))
ROWS = {
    "http": Row("two FP32 [1, 16] in and out", lambda: http("add_sub", SUMMANDS), ALL,
                _SMALL_BARS, has_sketch=True),
    "grpc": Row("the same over gRPC", lambda: [message(grpc_message("add_sub", SUMMANDS))], ALL,
                _SMALL_BARS, GrpcClient, STREAMS),
    "stream": Row("the same on streams of gRPC",
                  lambda: [message(grpc_message("add_sub", SUMMANDS))], (8,), ((1.5, 2),),
                  StreamClient, 4),
    "json": Row("the same as JSON", lambda: http("add_sub", SUMMANDS, binary=False), ALL,
                _JSON_BARS),
    "json-1000": Row("1,000 whole numbers as JSON", lambda: http("echo", THOUSAND, binary=False),
                     ALL, _JSON_BARS),
    "json-uneven": Row("1,000 numbers of 17 digits as JSON",
                       lambda: http("echo", UNEVEN, binary=False), ALL, _JSON_BARS),
    "strings": Row("1,000 strings in and out", lambda: http("echo_text", STRINGS), (4,),
                   ((1.5, 1.5),)),
    "strings-json": Row("the same as JSON", lambda: http("echo_text", STRINGS, binary=False),
                        (4,), ((1.5, 1.5),)),
    "strings-grpc": Row("the same over gRPC", lambda: [message(grpc_message("echo_text", STRINGS))],
                        (4,), ((1.5, 1.5),), LargeGrpcClient),
    "602k": Row("602 KB in and out", lambda: http("echo", IMAGE), (4,), ((2, 2),)),
    "602k-grpc": Row("the same over gRPC", lambda: [message(grpc_message("echo", IMAGE))], (4,),
                     ((1.5, 1.5),), LargeGrpcClient),
    "602k-shm": Row("the same in shared memory", lambda: http_in_regions(150_528, 4), (4,),
                    ((2, 2),), regions=602_112),
    "602k-shm-grpc": Row("the same over gRPC", lambda: grpc_in_regions(150_528, 4), (4,),
                         ((2, 2),), GrpcClient, regions=602_112),
    "16m-shm": Row("16 MB in and out, in shared memory", lambda: http_in_regions(4_000_000, 2),
                   (2,), ((1, 1),), regions=16_000_000),
    "ensemble": Row("three small steps", lambda: http("steps", SMALL), (8,), ((2, 2),)),
    "asks": Row("a model that asks another", lambda: http("asks", SMALL), (8,), ((2, 2),)),
    "decoupled": Row("100 responses to each request",
                     lambda: [message(grpc_message("many", {"INPUT": VALUES[0]}))], (8,),
                     ((1.5, 2),), DecoupledClient, 4),
    "process": Row("small tensors, the model in a process of its own",
                   lambda: http("add_sub", SUMMANDS), (8,), ((1, 0),), repository="process"),
    "text_pipeline": Row("texts of the project, one to eight in a request",
                         lambda: http("text_pipeline", *samples("text_pipeline", object)), (16,),
                         ((1.2, 1.2),), repository="pipelines"),
    "ge_classifier": Row("handwritten digits of any size",
                         lambda: http("ge_classifier", *samples("ge_classifier", np.float32, (1,))),
                         (16,), ((1.2, 1.2),), repository="pipelines"),
    "ocr_pipeline": Row("pages of text", lambda: http("ocr_pipeline", *pages()), (16,),
                        ((1.2, 1.2),), repository="pipelines", least_s=20.0),
}  # fmt: skip


class Turn(NamedTuple):
    """One turn at one point; times in microseconds."""

    row: str
    in_flight: int
    server: str
    per_second: float
    cpu: float
    p50: float
    p99: float


Point = tuple[str, int, str]


def measure(name: str, run: Run, options: argparse.Namespace) -> Iterator[Turn]:
    """One turn of one server, over all its rows."""
    for repository in ("micro", "process", "pipelines"):
        rows = {
            key: ROWS[key]
            for key in options.rows
            if ROWS[key].repository == repository
            and (name != "sketch" or ROWS[key].has_sketch)
            and not (options.quick and ROWS[key].least_s)
        }
        if not rows:
            continue
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bars-")))
            _fill(folder, repository, is_real=name == "triton")
            server = stack.enter_context(starter(name)(folder, allow_metrics=False))
            for key, row in rows.items():
                count = max(row.in_flight) if row.regions else 0
                with regions(server.http, count, row.regions):
                    yield from _points(name, server, run, key, options)


def _fill(folder: Path, repository: str, *, is_real: bool) -> None:
    if repository == "micro":
        shutil.copytree(MICRO, folder, dirs_exist_ok=True)
    elif repository == "process":
        copy_add_sub(folder, in_process=not is_real)  # which has its models in processes anyway
    else:
        for name in PIPELINE_MODELS:
            (folder / name).symlink_to(PIPELINES / name)


def copy_add_sub(folder: Path, *, in_process: bool) -> None:
    """Put `add_sub` into a repository, to run in the server's process or in one of its own."""
    shutil.copytree(MICRO / "add_sub", folder / "add_sub")
    if in_process:
        with (folder / "add_sub" / "config.pbtxt").open("a") as config:
            config.write(IN_PROCESS)


def _points(
    name: str, server: Any, run: Run, key: str, options: argparse.Namespace
) -> Iterator[Turn]:
    row = ROWS[key]
    address = server.grpc if row.is_grpc else server.http
    load = (ask_for, address, row.kind, row.requests(), row.streams)
    seconds = max(options.seconds, row.least_s)
    in_flight = [count for count in row.in_flight if not options.quick or count != 1]
    run(*load, max(in_flight), min(WARM_UP_S, options.seconds))
    for count in in_flight:
        before = cpu_us(server.process.pid)
        latencies = run(*load, count, seconds)
        answered = len(latencies)
        if not answered:
            raise SystemExit(f"{key}: {name} answers nothing within {seconds:g} s")
        yield Turn(
            *(key, count, name, answered / seconds),
            (cpu_us(server.process.pid) - before) / answered,
            *(percentile_of(latencies, share) for share in (50, 99)),
        )


@contextlib.contextmanager
def regions(address: str, count: int, size: int) -> Iterator[None]:
    """So many regions, registered: each for an input and an output of `size` bytes."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            path = Path(f"/dev/shm/bars_{os.getpid()}_{number}")
            with path.open("wb+") as file:
                file.truncate(2 * size)
            stack.callback(path.unlink)
            said = {"key": f"/{path.name}", "offset": 0, "byte_size": 2 * size}
            url = f"http://{address}/v2/systemsharedmemory/region/bars_{number}"
            urllib.request.urlopen(f"{url}/register", json.dumps(said).encode()).close()
            stack.callback(_unregister, f"{url}/unregister")
        yield


def _unregister(url: str) -> None:
    for attempt in range(50):  # as long as the requests are executed that nobody waits for
        try:
            urllib.request.urlopen(url, b"").close()
            return
        except urllib.error.HTTPError:
            if attempt == 49:
                raise
            time.sleep(0.1)


# -- the command


def main() -> None:
    """Measure, and print a table for each row."""
    options = parse_arguments()
    print_machine_facts()
    turns: list[Turn] = []
    began = time.monotonic()
    with client_process() as run:
        for turn in range(options.turns):
            for name in options.servers:
                print(f"turn {turn + 1} of {options.turns}: {name}", file=sys.stderr)
                turns += measure(name, run, options)
    medians = medians_of(turns)
    shown = [line(turn, medians, turns) for turn in medians.values()]
    about = f"medians of {options.turns} turns of {options.seconds:g} s"
    print(f"{about}, {time.monotonic() - began:.0f} s altogether; of `x` the bars stand behind")
    print_table(HEADINGS, shown)
    if options.json:
        options.json.write_text(json.dumps([each._asdict() for each in turns], indent=1) + "\n")
    if options.plot:
        plot(medians, options.plot)


#: Of a server the same in all pictures.
COLORS = {"sketch": "tab:gray", "reference": "tab:blue", "triton": "tab:orange"}
HEADINGS = (
    *("row", "in flight", "server", "req/s", "spread", "CPU us", "p50 us", "p99 us"),
    *("req/s x", "CPU x"),
)


def medians_of(turns: Sequence[Turn]) -> dict[Point, Turn]:
    """By row, number in flight and server, in the order of the rows."""
    groups: dict[Point, list[Turn]] = {}
    for each in sorted(turns, key=lambda each: (list(ROWS).index(each.row), each.in_flight)):
        groups.setdefault(each[:3], []).append(each)
    return {
        key: Turn(*key, *map(statistics.median, zip(*(each[3:] for each in group), strict=True)))
        for key, group in groups.items()
    }


def line(each: Turn, medians: dict[Point, Turn], turns: Sequence[Turn]) -> list[object]:
    """A line of the table: `spread` is the half width of the turns, relative to their median."""
    rates = [turn.per_second for turn in turns if turn[:3] == each[:3]]
    spread = (max(rates) - min(rates)) / 2 / each.per_second
    real = medians.get((each.row, each.in_flight, "triton"))
    ratios = ["", ""]
    if real is not None:
        ratios = [f"{each.per_second / real.per_second:.2f}", f"{real.cpu / each.cpu:.2f}"]
        if each.server == "reference":
            row = ROWS[each.row]
            bars = row.bars[row.in_flight.index(each.in_flight)]
            ratios = [f"{ratio} ({bar:g})" for ratio, bar in zip(ratios, bars, strict=True)]
    figures = [f"{figure:,.0f}" for figure in (each.cpu, each.p50, each.p99)]
    return [
        *(each.row, each.in_flight, each.server, f"{each.per_second:,.0f}", f"{spread:.0%}"),
        *(*figures, *ratios),
    ]


def plot(medians: dict[Point, Turn], file: Path) -> None:
    """Draw requests per second and CPU time over the number in flight. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [
        key for key in dict.fromkeys(point[0] for point in medians) if len(_curve(medians, key)) > 1
    ]
    figure, axes = pyplot.subplots(2, len(rows), figsize=(4 * len(rows), 7), squeeze=False)
    for column, key in enumerate(rows):
        for server in dict.fromkeys(point[2] for point in medians if point[0] == key):
            points = [turn for turn in medians.values() if (turn.row, turn.server) == (key, server)]
            counts = [turn.in_flight for turn in points]
            color = COLORS.get(server)
            for place, figures in enumerate(
                ([turn.per_second for turn in points], [turn.cpu for turn in points])
            ):
                axes[place][column].plot(counts, figures, "o-", color=color, label=server)
        axes[0][column].set_title(ROWS[key].about, fontsize=9)
        for place, name in ((0, "requests per second"), (1, "CPU time of a request, us")):
            axes[place][column].set_xscale("log", base=2)
            axes[place][column].set_xticks(ROWS[key].in_flight, map(str, ROWS[key].in_flight))
            axes[place][column].set_ylim(bottom=0)
            axes[place][column].set_xlabel("requests in flight")
            axes[place][column].set_ylabel(name)
            axes[place][column].grid(alpha=0.3)
        axes[0][column].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    print(f"drawn: {file}")


def _curve(medians: dict[Point, Turn], key: str) -> set[int]:
    return {turn.in_flight for turn in medians.values() if turn.row == key}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bars",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    servers = ["sketch", "reference", "triton"]
    parser.add_argument("--servers", nargs="+", default=servers, metavar="SERVER")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each point (2)")
    parser.add_argument("--turns", type=int, default=5, help="of each server (5)")
    parser.add_argument(
        "--quick", action="store_true", help="one turn of 0.5 s, without 1 in flight"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each turn's figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    options = parser.parse_args()
    if options.quick:
        options.turns, options.seconds = 1, 0.5
    return options


if __name__ == "__main__":
    main()
