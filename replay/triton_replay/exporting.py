"""Exports: files for perf_analyzer (`ge-runtime gears` reads them, too), and pytest tests."""

from __future__ import annotations

import base64
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from triton_replay.capture.files import Exchange
from triton_replay.capture.records import Request
from triton_replay.wire.answers import Tensor, read_inputs, wire_of
from triton_replay.wire.bodies import INFERENCE, NotUnderstood
from triton_replay.wire.grpc_messages import inputs_of_call, is_inference, model_of_call

_AS_NUMBERS = frozenset("biu")
"""Kinds of dtypes that JSON represents exactly; floats are written as base64."""


@dataclass
class ModelLoad:
    """The requests of one model."""

    entries: list[Mapping[str, Any]] = field(default_factory=list)
    """Inputs by name, for each entry of `data`."""
    times: list[int] = field(default_factory=list)
    """Start time of each request, in nanoseconds."""

    def document(self) -> dict[str, Any]:
        """Return the content of the file for `--input-data`."""
        return {"data": self.entries}

    def intervals(self) -> list[int]:
        """Return microseconds between successive requests, at least 1 each."""
        ordered = sorted(self.times)
        return [max(round((later - earlier) / 1000), 1) for earlier, later in pairwise(ordered)]


def export_loads(
    exchanges: Iterable[Exchange], *, rows: bool
) -> tuple[dict[str, ModelLoad], Counter[str]]:
    """Convert recorded requests.

    Args:
        exchanges: The requests.
        rows: Whether the first axis of inputs is the batch. Each row then becomes an entry, as
            perf_analyzer expects for models with a `max_batch_size`.

    Returns:
        The load of each model, and the numbers of skipped requests by reason.
    """
    loads: defaultdict[str, ModelLoad] = defaultdict(ModelLoad)
    left_out: Counter[str] = Counter()
    for exchange in exchanges:
        request = exchange.request
        model = _model_of(request)
        if not model:
            continue
        if not request.whole:
            left_out["requests without a body in the capture"] += 1
            continue
        try:
            inputs = _inputs(request)
            entries = list(_rows(inputs)) if rows else [inputs]
        except NotUnderstood:
            left_out["requests with unreadable inputs"] += 1
            continue
        loads[model].entries += [
            {name: _entry(tensor) for name, tensor in entry.items()} for entry in entries
        ]
        loads[model].times.append(request.at)
    return dict(loads), left_out


def _model_of(request: Request) -> str:
    if request.protocol == "grpc":
        return model_of_call(request.body) if is_inference(request.target) else ""
    found = INFERENCE.match(request.target.partition("?")[0])
    return found["model"] if found and found["verb"] == "infer" else ""


def _inputs(request: Request) -> Mapping[str, Tensor]:
    if request.protocol == "grpc":
        inputs = inputs_of_call(request.body)
    else:
        inputs = read_inputs(request.headers, request.body)
    elsewhere = b"shared_memory_region" in bytes(request.body)
    if elsewhere or not inputs or not all(tensor.values.size for tensor in inputs.values()):
        raise NotUnderstood("the request has no inputs with values")
    return inputs


def _rows(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    counts = {tensor.shape[:1] for tensor in inputs.values()}
    if len(counts) != 1 or () in counts:
        raise NotUnderstood("the inputs have no common first axis")
    ((count,),) = counts
    for row in range(count):
        yield {
            name: Tensor(tensor.datatype, tensor.shape[1:], tensor.values[row : row + 1])
            for name, tensor in inputs.items()
        }


def _entry(tensor: Tensor) -> dict[str, Any]:
    shape = list(tensor.shape)
    values = tensor.values.ravel()
    if tensor.datatype == "BYTES":
        try:
            return {"content": [value.decode() for value in values], "shape": shape}
        except UnicodeDecodeError:
            return {"b64": _base64(wire_of(tensor)), "shape": shape}
    if values.dtype.kind in _AS_NUMBERS:
        return {"content": [int(value) for value in values], "shape": shape}
    return {"b64": _base64(wire_of(tensor)), "shape": shape}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- pytest tests that compare a server's responses with a capture

CAPTURE: Final = "recorded.trc"

_CONFTEST: Final = '''\
"""Options of test_recorded.py."""

from triton_replay.commands.common import RULE_OPTIONS, add_rules


def pytest_addoption(parser):
    add = parser.getgroup("triton-replay").addoption
    server_help = "address for HTTP; without it the tests are skipped"
    add("--triton-server", metavar="HOST:PORT", help=server_help)
    add("--triton-grpc-server", metavar="HOST:PORT", default="127.0.0.1:8001")
    add_rules(add, [(f"triton-{name}", form, text) for name, form, text in RULE_OPTIONS])
'''

_TESTS: Final = '''\
"""The server's responses equal the recorded ones, with one test per request.

Needs triton-replay.

    pytest --triton-server localhost:8000
"""

from argparse import Namespace
from pathlib import Path

import pytest

from triton_replay.__main__ import main
from triton_replay.capture.files import read_capture
from triton_replay.commands.common import NAME_OPTIONS, RULE_OPTIONS, rules_of
from triton_replay.comparing.differences import compare_answers, model_of

CAPTURE = Path(__file__).with_name("recorded.trc")
RECORDED = {
    f"{exchange.request.number}-{model_of(exchange.request)}": exchange
    for exchange in read_capture(CAPTURE).exchanges
    if exchange.response is not None
}


def option_values(config, name):
    """Return the values of the option --triton-NAME."""
    return config.getoption(f"--triton-{name}")


@pytest.fixture(scope="session")
def answers(request, tmp_path_factory):
    """Send all requests once, in order; return the exchanges by number of the request."""
    server = request.config.getoption("--triton-server")
    if not server:
        pytest.skip("no --triton-server")
    path = tmp_path_factory.mktemp("triton-replay") / "answers.trc"
    grpc = request.config.getoption("--triton-grpc-server")
    words = [f"--server={server}", f"--grpc-server={grpc}", f"--output={path}", "--speed=max"]
    for name, *_ in NAME_OPTIONS:
        words += [f"--{name}={text}" for text in option_values(request.config, name)]
    code = main(["replay", str(CAPTURE), *words])
    assert code in (0, 3), "the replay failed, see its message"
    return {exchange.request.number: exchange for exchange in read_capture(path).exchanges}


@pytest.mark.parametrize("name", RECORDED)
def test_the_answer_is_as_recorded(name, answers, request):
    recorded = RECORDED[name]
    answer = answers.get(recorded.request.number)
    if not answer:
        pytest.skip("the request cannot be replayed")
    values = {name: option_values(request.config, name) for name, *_ in RULE_OPTIONS}
    options = {name.replace("-", "_"): value for name, value in values.items()}
    rules = rules_of(Namespace(**options))
    assert not compare_answers(model_of(recorded.request), recorded, answer, rules)
'''


def write_pytest_case(capture: Sequence[Path], folder: Path) -> None:
    """Write the tests and a copy of the capture to an existing folder. Raise OSError on failure.

    Args:
        capture: The files of the capture, in order.
        folder: The folder.
    """
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    (folder / "test_recorded.py").write_text(_TESTS, encoding="utf-8")
    for file in capture:
        copy = folder / (CAPTURE if file == capture[0] else file.name)
        copy.touch(mode=0o600)  # the mode of captures
        shutil.copyfile(file, copy)
