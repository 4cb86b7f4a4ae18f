"""Generation of pytest tests that compare a server's responses with a capture."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

CAPTURE: Final = "recorded.trc"

_CONFTEST: Final = '''\
"""Options of test_recorded.py."""


def pytest_addoption(parser):
    add = parser.getgroup("triton-replay").addoption
    server_help = "address for HTTP; without it the tests are skipped"
    add("--triton-server", metavar="HOST:PORT", help=server_help)
    add("--triton-grpc-server", metavar="HOST:PORT", default="127.0.0.1:8001")
    tolerance_help = "--tolerance of triton-replay compare"
    add("--triton-tolerance", action="append", default=[], help=tolerance_help)
'''

_TESTS: Final = '''\
"""The server's responses equal the recorded ones, with one test per request.

Needs triton-replay.

    pytest --triton-server localhost:8000
"""

from pathlib import Path

import pytest

from triton_replay.__main__ import main
from triton_replay.capture.reader import read_capture
from triton_replay.comparing.differences import compare_answers, model_of
from triton_replay.comparing.tolerances import parse_tolerances

CAPTURE = Path(__file__).with_name("recorded.trc")
RECORDED = {
    f"{exchange.request.number}-{model_of(exchange.request)}": exchange
    for exchange in read_capture(CAPTURE).exchanges
    if exchange.response is not None
}


@pytest.fixture(scope="session")
def answers(request, tmp_path_factory):
    """Send all requests once, in order; return the exchanges by number of the request."""
    server = request.config.getoption("--triton-server")
    if not server:
        pytest.skip("no --triton-server")
    path = tmp_path_factory.mktemp("triton-replay") / "answers.trc"
    grpc = request.config.getoption("--triton-grpc-server")
    addresses = (f"--server={server}", f"--grpc-server={grpc}")
    code = main(["replay", str(CAPTURE), *addresses, f"--output={path}", "--speed=max"])
    assert code in (0, 3), "the replay failed, see its message"
    return {exchange.request.number: exchange for exchange in read_capture(path).exchanges}


@pytest.mark.parametrize("name", RECORDED)
def test_the_answer_is_as_recorded(name, answers, request):
    recorded = RECORDED[name]
    answer = answers.get(recorded.request.number)
    if not answer:
        pytest.skip("the request cannot be replayed")
    tolerances = parse_tolerances(request.config.getoption("--triton-tolerance"))
    assert not compare_answers(model_of(recorded.request), recorded, answer, tolerances)
'''


def write_pytest_case(capture: Path, folder: Path) -> None:
    """Write the tests and a copy of the capture to an existing folder. Raise OSError on failure."""
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    (folder / "test_recorded.py").write_text(_TESTS, encoding="utf-8")
    shutil.copyfile(capture, folder / CAPTURE)
