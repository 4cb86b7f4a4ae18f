"""Random faulty model folders, and the real server's responses when it loads them.

    TABLES=write PYTHONPATH=.:tests python -m contract.faulty_folders [PATTERN]    record again

Each fault is put into a valid model that is drawn from a seed. `tests/recorded/test_faulty.py`
compares `reference-server check` and the loads of the reference server with the recording.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from contract.folder_faults import CODE, FAULTS, KINDS, STEP, VALID
from contract.recordings import Recording
from support.servers import Flag, Server, start_tritonserver

FLAGS: dict[str, Flag] = {
    "allow_grpc": False,
    "allow_metrics": False,
    "model_control_mode": "explicit",
}
_LOAD_SECONDS = 20

# ------------------------------------------------------------------------------- folders


@dataclass(frozen=True)
class Row:
    """A model's folder with a fault: the files by path."""

    fault: str
    number: int
    files: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return f"{self.fault} {self.number}"

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> str:
        """The name of the model's folder."""
        return "m_" + re.sub(r"\W+", "_", self.name)

    def write(self, repository: Path) -> None:
        for path, content in self.files.items():
            file = repository / self.model / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def write_step(repository: Path) -> None:
    """Write the model that the ensembles use."""
    (repository / "step" / "1").mkdir(parents=True)
    (repository / "step" / "config.pbtxt").write_text(STEP)
    (repository / "step" / "1" / "model.py").write_text("".join(_joined(CODE)))


def rows() -> list[Row]:
    """Draw all folders, one for each fault."""
    return [_row(name, number % 2) for number, name in enumerate(FAULTS)]


def _row(name: str, number: int) -> Row:
    fault = FAULTS[name]
    draw = random.Random(f"{name} {number}")
    kind = fault.kinds[number] if number < len(fault.kinds) else draw.choice(fault.kinds)
    types = draw.sample(("FP32", "INT64", "INT32", "FP16", "UINT8"), 2)
    count = draw.randint(2, 4)
    words = draw.sample(("scale", "pixels", "words", "mask", "score", "boxes"), 3)
    values = {
        "x": words[0].upper(), "y": f"{words[1]}_out", "w": f"my_{words[2]}",
        "W": words[2].title(), "t": types[0], "v": types[1],
        "u": draw.choice(("FP32", "TYPE_FLOAT", "TYPE_FP33", "float32", "INT64")),
        "n": draw.randint(1, 9), "b": draw.randint(4, 8), "c": count, "o": draw.randint(11, 30),
        "huge": draw.choice((2**31, 2**32, 2**63, -(2**31) - 1)),
    }  # fmt: skip

    def filled(text: str) -> str:
        return Template(text.replace("$w_", "${w}_")).substitute(values)

    parts = {**VALID, **KINDS[kind], **fault.config}
    config = "\n".join(filled(text) for text in parts.values() if text is not None)
    files = {"config.pbtxt": f"{config}\n".encode()}
    if kind == "ensemble":
        files["1/readme"] = b""
    else:
        files["1/model.py"] = filled(_joined({**CODE, **fault.code})).encode()
    if kind == "labelled":
        files["labels.txt"] = b"cat\ndog\n"
    for path, content in fault.files.items():
        if content is None:
            files.pop(path, None)
        else:
            files[filled(path)] = content
    return Row(name, number, files)


def _joined(code: Mapping[str, str]) -> str:
    return "\n".join(code.values())


# ------------------------------------------------------------------------------- the real server

#: "" if the model is loaded, or the reason of the refusal.
Answers = dict[str, str]


def recorded() -> Recording[str]:
    """Return the recording of the real server's answers."""
    return Recording("faulty", [], lambda row: row.files, {}, rows())


def refusal(server: Server, model: str) -> str:
    """Load a model; return the reason of a refusal, or ""."""
    connection = http.client.HTTPConnection(server.http, timeout=_LOAD_SECONDS)
    before = len(server.log)
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/repository/models/{model}/load")
        reply = connection.getresponse()
        body = reply.read().decode("utf-8", "replace")
    if reply.status == 200:
        return ""
    text: str = json.loads(body)["error"]
    polls = re.findall(r"Poll failed for model directory .*", server.log[before:])
    return "\n".join([text, *polls])


def _refusals(asked: list[Row], **flags: Flag) -> Iterator[tuple[Row, str]]:
    with tempfile.TemporaryDirectory() as temporary:
        repository = Path(temporary) / "repository"
        write_step(repository)
        for row in asked:
            row.write(repository)
        left = list(asked)
        while left:
            with start_tritonserver(
                repository, ready_path="/v2/health/live", load_model="step", **FLAGS, **flags
            ) as server:
                while left:
                    row = left.pop(0)
                    try:
                        text = refusal(server, row.model)
                    except (OSError, http.client.HTTPException):
                        yield row, "no answer"
                        break
                    yield row, text.replace(str(repository), "REPOSITORY")


def _record(pattern: str) -> None:
    os.environ.setdefault("TABLES", "write")
    asked = [row for row in rows() if re.search(pattern, row.name)]
    kept = recorded()
    for hangs, flags in ((False, {}), (True, {"disable_auto_complete_config": None})):
        some = [row for row in asked if FAULTS[row.fault].hangs == hangs]
        for row, text in _refusals(some, **flags):
            kept.check(row, text, lambda _, said: said)
            print(row, "::", text[-150:], flush=True)
    kept.close()


if __name__ == "__main__":
    _record(sys.argv[1] if len(sys.argv) > 1 else "")
