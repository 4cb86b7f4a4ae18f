"""Tokens per second of a decoder with growing states: streams batched together, and one by one.

    python -m benchmarks.decoding                     GPT-2's sizes, 1, 4 and 16 streams
    python -m benchmarks.decoding --size tiny
    python -m benchmarks.decoding --servers reference triton    over HTTP, from generate_stream

The graph has random weights. Streams have prompts of unequal lengths. Turns of both ways alternate.
The last columns are the difference between the logits of streams one by one and together, the
number of executions that copied rows, and of all executions. Over HTTP, the CPU time is the
server's.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from benchmarks.load import cpu_us, starter
from ge_runtime import Caller, Runtime
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.scheduling.state_group import StateGroup
from ge_runtime.scheduling.token_streams import SamplingOptions, TokenStream, TokenStreams
from model_factory.decoder_graph import DecoderSizes, decoder_model

SIZES = {
    "tiny": DecoderSizes(layers=4, heads=4, width=128, vocabulary=1000, positions=512),
    "gpt2": DecoderSizes(12, 12, 768, 50257, 1024),
}
LONGEST_PROMPT = 64


class Recorded:
    """A runtime that keeps the last logits of each sequence."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.logits: dict[object, list[np.ndarray[Any, Any]]] = {}

    def infer(self, requests: Sequence[Any], callers: Sequence[Caller]) -> list[Answer]:
        answers = self._runtime.infer(requests, callers)
        for caller, answer in zip(callers, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            assert caller.sequence is not None
            own = self.logits.setdefault(caller.sequence.sequence, [])
            own.append(answer["logits"][0, -1].copy())
        return answers

    def end_sequence(self, sequence: int | str, *, departed: bool = False) -> None:
        self._runtime.end_sequence(sequence, departed=departed)


def written(folder: Path, sizes: DecoderSizes, past: int) -> dict[str, str]:
    """Write the decoder, and return its parameters."""
    (folder / "1").mkdir(parents=True)
    onnx.save(decoder_model(sizes), folder / "1" / "model.onnx")
    parameters = {
        "axes.input_ids": "tokens",
        "limit.tokens": str(LONGEST_PROMPT),
        "limit.total.tokens": str(LONGEST_PROMPT),
        "limit.past": str(past),
        "mask.attention_mask": "past + tokens",
        "positions.position_ids": "tokens",
        "range.input_ids": f"0..{sizes.vocabulary - 1}",
        "cost_cache": "off",
        "load_check": "off",
    }
    for layer in range(sizes.layers):
        for part in ("key", "value"):
            parameters[f"state.past_key_values.{layer}.{part}"] = f"present.{layer}.{part}"
    return parameters


def opened(folder: Path, sizes: DecoderSizes, rows: int, past: int) -> Runtime:
    """Write the decoder, and open it."""
    parameters = {**written(folder, sizes, past), "axes.logits": "tokens"}
    config = {
        "name": "decoder",
        "max_batch_size": rows,
        "input": [{"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1]}],
        "output": [
            {"name": "logits", "data_type": "TYPE_FP32", "dims": [-1, sizes.vocabulary]},
        ],
        "sequence_batching": {"oldest": {"max_candidate_sequences": rows}},
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
    }
    return Runtime.open(folder / "1", config, instance_name="decoder_0")


def prompts(count: int, vocabulary: int) -> list[np.ndarray[Any, Any]]:
    """Return prompts of unequal lengths."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, LONGEST_PROMPT, count)
    return [rng.integers(0, vocabulary, (1, length)) for length in lengths]


def decode(runtime: Any, given: Sequence[np.ndarray[Any, Any]], tokens: int, rows: int) -> int:
    """Generate `tokens` for each prompt, at most `rows` streams together; return their number."""
    streams = TokenStreams(
        runtime, "input_ids", "logits", rows=rows, most_tokens=LONGEST_PROMPT, past=10**6
    )
    found: list[int] = []

    def fail(error: Exception) -> None:
        raise error

    for number, prompt in enumerate(given, start=1):
        options = SamplingOptions(max_tokens=tokens)
        emit: Callable[[int, bool], None] = lambda token, last: found.append(token)  # noqa: E731
        streams.add(TokenStream(number, prompt, {}, options, lambda: False, emit, fail))
    while streams.busy:
        streams.step()
    return len(found)


STREAMING = """backend: "python"
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
output { name: "token" data_type: TYPE_INT64 dims: [ 1 ] }
model_transaction_policy { decoupled: true }
"""
MODEL = """
import triton_python_backend_utils as pb_utils
from ge_runtime.adapters.generation import GenerationModel


class TritonPythonModel:
    def initialize(self, args):
        self._graph = GenerationModel(args, pb_utils)

    def execute(self, requests):
        return self._graph.execute(requests)

    def finalize(self):
        self._graph.close()
"""


def streamed(address: str, prompt: np.ndarray[Any, Any], tokens: int) -> int:
    """Return the number of tokens that a server streams."""
    connection = http.client.HTTPConnection(address)
    body = json.dumps({"input_ids": prompt[0].tolist(), "max_tokens": tokens})
    connection.request("POST", "/v2/models/decoder/generate_stream", body)
    events = connection.getresponse().read()
    connection.close()
    return events.count(b'"token":')


def serve(name: str, repository: Path, given: argparse.Namespace) -> None:
    """Print a line for each number of streams."""
    sizes = SIZES[given.size]
    with starter(name)(repository, allow_metrics=False) as server:
        for count in given.streams:
            own, rates, costs = prompts(count, sizes.vocabulary), [], []
            for _ in range(given.turns):
                start, before = time.perf_counter(), cpu_us(server.process.pid)
                with ThreadPoolExecutor(count) as pool:
                    parts = [pool.submit(streamed, server.http, one, given.tokens) for one in own]
                tokens = sum(part.result() for part in parts)
                if tokens != count * given.tokens:
                    raise SystemExit(f"{name}: {tokens} tokens, expected {count * given.tokens}")
                rates.append(tokens / (time.perf_counter() - start))
                costs.append((cpu_us(server.process.pid) - before) / tokens * 1e-3)
            print(f"{name:9}  {count:7}  {median(rates):8.1f}  {median(costs):12.2f}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--size", choices=list(SIZES), default="gpt2")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=32, help="generated by each stream")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--servers", choices=["reference", "triton"], nargs="+", default=[])
    given = parser.parse_args()
    sizes, most = SIZES[given.size], max(given.streams)
    if given.servers:
        with tempfile.TemporaryDirectory() as folder:
            parameters = written(Path(folder, "decoder"), sizes, LONGEST_PROMPT + given.tokens)
            parameters["generate.logits"] = f"FP32[tokens, {sizes.vocabulary}]"
            parameters["rows"] = str(most)
            lines = [
                f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n'
                for key, text in parameters.items()
            ]
            Path(folder, "decoder", "config.pbtxt").write_text(STREAMING + "".join(lines))
            Path(folder, "decoder", "1", "model.py").write_text(MODEL)
            print("server     streams  tokens/s  CPU ms/token")
            for name in given.servers:
                serve(name, Path(folder), given)
        return
    gathered: list[object] = []
    gather = StateGroup._gather

    def counted(self: StateGroup, *own: Any) -> None:
        gathered.append(self)
        gather(self, *own)

    StateGroup._gather = counted  # type: ignore
    with tempfile.TemporaryDirectory() as folder:
        runtime = opened(Path(folder), sizes, most, LONGEST_PROMPT + given.tokens)
        print(*runtime.plan.table(), sep="\n")
        print("streams  together/s  one by one/s  gain  CPU gain  difference  copies  executions")
        for count in given.streams:
            own = prompts(count, sizes.vocabulary)
            times: dict[int, list[tuple[float, float]]] = {count: [], 1: []}
            for _ in range(given.turns):
                for rows in dict.fromkeys((count, 1)):
                    start = time.perf_counter(), time.process_time()
                    decode(runtime, own, given.tokens, rows)
                    ended = time.perf_counter(), time.process_time()
                    times[rows].append((ended[0] - start[0], ended[1] - start[1]))
            gathered.clear()
            launches = runtime.counts().launches
            together, alone = Recorded(runtime), Recorded(runtime)
            decode(together, own, given.tokens, count)
            copies, launches = len(gathered), runtime.counts().launches - launches
            decode(alone, own, given.tokens, 1)
            difference = max(
                float(np.abs(np.array(together.logits[at]) - np.array(alone.logits[at])).max())
                for at in alone.logits
            )
            wall, cpu = (
                {rows: median(one[at] for one in own) for rows, own in times.items()}
                for at in (0, 1)
            )
            tokens = count * given.tokens
            print(
                f"{count:7}  {tokens / wall[count]:10.1f}  {tokens / wall[1]:12.1f}  "
                f"{wall[1] / wall[count]:4.2f}  {cpu[1] / cpu[count]:8.2f}  {difference:10.2g}  "
                f"{copies:6}  {launches:10}"
            )
        runtime.close()


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keep the lines of the description."""


if __name__ == "__main__":
    main()
