"""The settings of the log, compared with NVIDIA's server: the replies, and the log's content."""

from __future__ import annotations

import json
import re

import pytest
from contract.casebook import infer, post, tensor
from contract.cases.settings import LOG
from contract.wire import exchange
from support.servers import Server
from support.waiting import until

pytestmark = pytest.mark.oracle

AT_START = {
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
BOTH = pytest.mark.parametrize("name", ["traced_triton", "traced_reference"])


def change(server: Server, **settings: object) -> None:
    (reply,) = exchange(server.http, post(LOG, json.dumps(settings))).replies
    assert reply.status == 200, reply


@pytest.fixture
def server(name: str, request: pytest.FixtureRequest):
    server = request.getfixturevalue(name)
    yield server
    change(server, **AT_START)


def ask(server: Server, what: str) -> int:
    """Make a model do this; return the status."""
    request = infer("faults", tensor("what", "BYTES", [1], [what]))
    (reply,) = exchange(server.http, request).replies
    return reply.status


def logged(server: Server, word: str) -> list[str]:
    """Return the log lines of a model's failure that contains `word`.

    The real server may answer before it writes the text of a model's process.
    """
    before = len(server.log)
    assert ask(server, f"error {word}") == 500
    until(lambda: re.search(f"{word}.*\n", server.log[before:]), "the line of the failure")
    return [line for line in server.log[before:].splitlines() if word in line]


@BOTH
def test_errors_are_shown_until_they_are_not_wanted(server: Server):
    assert logged(server, "first")
    change(server, log_error=False)
    before = len(server.log)
    assert ask(server, "error second") == 500
    # What a process says is written in the order in which it was said.
    assert ask(server, "logs afterwards") == 200
    until(lambda: "afterwards" in server.log[before:], "the line after the failure")
    assert "second" not in server.log[before:]
    change(server, log_error=True)
    assert logged(server, "third")


@BOTH
def test_the_other_levels_do_not_matter_for_errors(server: Server):
    change(server, log_info=False, log_warning=False)
    assert logged(server, "fourth")


@BOTH
def test_the_format_of_lines_changes(server: Server):
    (line,) = logged(server, "fifth")
    assert re.match(r"E\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] \"", line)
    change(server, log_format="ISO8601")
    (line,) = logged(server, "sixth")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ E \d+ \S+:\d+\] \"", line)


#: The lines of a request's life that both servers have; what else the real one says is of memory.
_LIFE = re.compile(
    r"(HTTP request: 2 .*/infer|\S+ \S+ \S+ Setting state.*|model .* executing .*"
    r"|add response output: .*|\[.*?\] prepared: .*timeout \(us\): \d+|.*_ModelInstanceExecute: .*)"
)
#: What only the real server's line of a prepared request has.
_UNSAID = re.compile(r"\[0x\w+\] |requested version: -?\d+, ")


def life(server: Server) -> list[str]:
    """Return the log lines about one request at the level of details."""
    change(server, log_verbose_level=1)
    before = len(server.log)
    request = infer("vector", tensor("X", "FP32", [4], [1.0, 2.0, 3.0, 4.0]), id="v")
    assert exchange(server.http, request).replies[0].status == 200
    until(lambda: "released 1 requests" in server.log[before:], "the request's end")
    texts = re.findall(r'\] "(.*?)"?$', server.log[before:], re.MULTILINE)
    return [_UNSAID.sub("", found[0]) for text in texts if (found := _LIFE.match(text))]


def test_a_request_is_followed_at_the_level_of_details(
    traced_triton: Server, traced_reference: Server
):
    try:
        real, ours = life(traced_triton), life(traced_reference)
    finally:
        for server in (traced_triton, traced_reference):
            change(server, **AT_START)
    assert ours == real
    assert len(ours) == 9
