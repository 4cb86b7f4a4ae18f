"""The ways in which this server is more lenient than tritonserver 2.51: one table.

The table is the source of the findings of `reference-server check`, the warnings in the log, the
badge of the live page, the refusals of `--strict-portable`, and the table in docs/protocol.md.
"""

from __future__ import annotations

import enum
import logging
import threading
from dataclasses import dataclass

log = logging.getLogger(__name__)


class Found(enum.Enum):
    """The time at which this server finds a row of the table; the value is the text in the page."""

    LOAD = "check, load"
    CHECK = "check"
    RUN = "run time"
    BOTH = "check, run time"
    NEVER = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One way in which this server is more lenient.

    Attributes:
        key: The name of the row in log lines and on the live page.
        here: What the model or its configuration does.
        real: What tritonserver 2.51 does then.
        found: When this server finds it.
        works: True if it works here, False if it is an error here as well.
    """

    key: str
    here: str
    real: str
    found: Found
    works: bool = True

    @property
    def text(self) -> str:
        """The verdict without the model's name."""
        verdict = "works here, not on" if self.works else "is refused here, and harms"
        return f"{verdict} tritonserver 2.51: {self.here}; tritonserver {self.real} ({self.key})"


_NO_ANSWER = "never answers the client"
_ENDS = "ends the model's process"

_ROWS = (
    Row(
        "import-names",
        "model.py uses a C++ class or function of triton_python_backend_utils during its import",
        "defines these names after the import, so the load fails",
        Found.CHECK,
        works=False,
    ),
    Row(
        "np-bytes",
        "an element of an object array has a subclass of bytes, such as np.bytes_, as its type",
        "sends the element's repr, b'...' with quotes, with status 200",
        Found.RUN,
    ),
    Row(
        "dlpack-numpy",
        "Tensor.from_dlpack received a NumPy array",
        f"{_ENDS}; for BOOL the call raises an AttributeError",
        Found.RUN,
    ),
    Row("triton-dtype", "the model calls triton_dtype()", "raises a TypeError", Found.BOTH),
    Row(
        "string-correlation",
        "the control CONTROL_SEQUENCE_CORRID has the type TYPE_STRING",
        "refuses every request of the model with status 400",
        Found.LOAD,
    ),
    Row(
        "uninitialized-state",
        "a state of the sequence batcher has no initial_state",
        "starts each sequence with uninitialized memory",
        Found.LOAD,
    ),
    Row(
        "shell-name",
        "a name or path of the model has a space, or another character that bash interprets",
        "starts model processes by bash without quotes: the load fails or never ends",
        Found.LOAD,
    ),
    Row(
        "no-response",
        "a request was dropped without a response, for example by `return None`",
        _NO_ANSWER,
        Found.RUN,
        works=False,
    ),
    Row(
        "coroutine-exception",
        "a coroutine of a decoupled model raised an exception, or a coroutine called sys.exit()",
        _NO_ANSWER,
        Found.RUN,
        works=False,
    ),
    Row(
        "send-and-return",
        "execute returned a response to a request that a sender had already answered",
        "fails the request with another text; its HTTP body has the response as well",
        Found.RUN,
        works=False,
    ),
    Row(
        "final-flag-first",
        "a model that is not decoupled sent the final flag without a response",
        "raises an exception as here; if the model catches it, never answers the client",
        Found.RUN,
        works=False,
    ),
    Row(
        "bls-deadlock",
        "a BLS call would wait for the calling instance",
        "waits for ever",
        Found.RUN,
        works=False,
    ),
    Row(
        "load-deadlock",
        "initialize loads or unloads a model whose load waits for this model",
        "never ends the loads",
        Found.RUN,
        works=False,
    ),
    Row(
        "load-threads",
        "initialize calls load_model",
        "never ends the load if all threads of --model-load-thread-count wait in such calls",
        Found.CHECK,
    ),
    Row(
        "failed-call",
        "a call of pb_utils to the server failed",
        "may abort",
        Found.RUN,
        works=False,
    ),
    Row(
        "surrogate-text",
        "the text of an exception has half of a surrogate pair",
        _ENDS,
        Found.RUN,
        works=False,
    ),
    Row(
        "process-restart",
        "the model's process ended and is started again",
        "does not start it again; the model stays ready, and its requests fail",
        Found.RUN,
    ),
    Row(
        "classify-strings",
        "a client requested the classes of a BYTES output",
        "crashes",
        Found.RUN,
        works=False,
    ),
    Row(
        "completion-calls",
        "auto_complete_config calls the server",
        "never ends the load; exec() raises an exception",
        Found.CHECK,
        works=False,
    ),
    Row(
        "ensemble-input",
        "a step of the ensemble writes one of the ensemble's inputs",
        _NO_ANSWER,
        Found.CHECK,
        works=False,
    ),
    Row(
        "request-of-model",
        "the model calls is_cancelled() or set_release_flags() of a request that it created",
        "crashes, or corrupts the memory of the model's process",
        Found.NEVER,
    ),
    Row(
        "padding-requests",
        "a sequence model reads the data of padding requests, which are zeros",
        "passes uninitialized memory",
        Found.NEVER,
    ),
    Row(
        "pythonpath",
        "the model needs PYTHONPATH, or packages that pip has installed with --user",
        "ignores both",
        Found.NEVER,
    ),
    Row("stdout-encoding", "the model prints text beyond ASCII", "raises an error", Found.CHECK),
    Row(
        "ascii-files",
        "the model opens a text file or runs a command without `encoding`, or names a file, and "
        "the text is beyond ASCII",
        "raises an error, because the default encoding is ASCII",
        Found.CHECK,
    ),
    Row(
        "numpy-2",
        "the model runs with NumPy 2",
        "refuses the outputs as empty; BYTES inputs end the model's process",
        Found.NEVER,
    ),
    Row(
        "newer-api",
        "the model uses response parameters, cancel() of an iterator, or is_ready()",
        "does not have them; test with --triton-version=2.51",
        Found.NEVER,
    ),
)

#: The rows by their keys.
ROWS = {row.key: row for row in _ROWS}


def page_table() -> str:
    """Return the table as Markdown, for docs/protocol.md."""
    lines = ["| Key | Here | tritonserver 2.51 | Found by |", "| --- | --- | --- | --- |"]
    for row in _ROWS:
        outcome = "" if row.works else " (an error here, too)"
        lines.append(f"| `{row.key}` | {row.here}{outcome} | {row.real} | {row.found.value} |")
    return "\n".join(lines) + "\n"


def ignore(_key: str) -> None:
    """Report nothing."""


class Portability:
    """The rows that were found for the models of one server. Thread-safe.

    Args:
        strict: True to refuse what does not work on tritonserver 2.51 (`--strict-portable`).
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, str]] = {}

    def report(self, model: str, key: str, detail: str = "") -> None:
        """Record a row for a model. The first time, it is logged as a warning."""
        with self._lock:
            known = self._found.setdefault(model, {})
            if key in known:
                return
            text = known[key] = ROWS[key].text + (f": {detail}" if detail else "")
        log.warning("model '%s' %s", model, text)

    def of(self, model: str) -> list[str]:
        """Return the texts of the rows that were found for a model."""
        with self._lock:
            return list(self._found.get(model, {}).values())
