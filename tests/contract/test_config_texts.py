"""ge-runtime, the reference server and the real server accept the same texts of config.pbtxt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.config_texts import TEXTS
from contract.recordings import Recording, asked_live, recorded_rows
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from support.servers import Flag, start_tritonserver
from tritonclient.grpc.model_config_pb2 import ModelConfig

from ge_runtime.cli.config_pbtxt import parse
from reference_server.config import pbtxt
from reference_server.core.errors import ServerError

FLAGS: dict[str, Flag] = {"allow_grpc": False, "allow_metrics": False, "exit_on_error": False}
UNREAD = "failed to read text proto from"

#: Texts that protobuf's Python library, which both packages use, reads differently from the C++
#: library of the real server.
DIFFERENCES = {
    "integer +4": "Python takes a plus before a number; C++ refuses it",
    "integer - 4": "C++ takes a space behind a minus; Python refuses it",
    r'string "\q"': "Python keeps an unknown escape as it is; C++ refuses it",
    r'string "\xff"': "C++ takes bytes that are not UTF-8; Python refuses them",
}

# Python reports the unknown escape of one text.
pytestmark = pytest.mark.filterwarnings("ignore:.*invalid escape sequence:DeprecationWarning")


@dataclass(frozen=True)
class Row:
    name: str

    @property
    def text(self) -> str:
        return f'backend: "python"\n{TEXTS[self.name]}\n'

    def __str__(self) -> str:
        return self.name


ROWS = [Row(name) for name in TEXTS]


recorded = recorded_rows("config_texts", ROWS, lambda row: row.text)


@pytest.fixture(scope="module")
def read_by_triton(oracle_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the names of the rows whose texts the real server accepts, with one start for all."""
    repository = tmp_path_factory.mktemp("texts")
    rows = asked_live(ROWS)
    for place, row in enumerate(rows):
        folder = repository / f"model_{place}"
        folder.mkdir()  # without a version, so that no model is loaded
        (folder / "config.pbtxt").write_text(row.text, encoding="utf-8")
    with start_tritonserver(repository, ready_path="/v2/health/live", **FLAGS) as server:
        unread = [line for line in server.log.splitlines() if UNREAD in line]
    return {
        row.name
        for place, row in enumerate(rows)
        if not any(f"/model_{place}/config.pbtxt" in line for line in unread)
    }


@pytest.mark.oracle
@pytest.mark.parametrize("row", asked_live(ROWS), ids=str)
def test_the_real_server_reads_as_recorded(
    row: Row, read_by_triton: set[str], recorded: Recording[bool]
):
    recorded.check(row, row.name in read_by_triton, lambda _, read: read)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_same_texts_are_read_as_by_the_real_server(
    row: Row, recorded: Recording[bool], tmp_path: Path
):
    file = tmp_path / "config.pbtxt"
    file.write_text(row.text, encoding="utf-8")
    assert outcome(parse, row.text) == outcome(pbtxt.read, file)
    if row.name in DIFFERENCES:
        assert outcome(parse, row.text) != recorded.said(row)
    else:
        assert outcome(parse, row.text) == recorded.said(row)


def outcome(read: Any, text: Any) -> bool:
    try:
        read(text)
    except (ServerError, ValueError):
        return False
    return True


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_values_are_those_that_protobuf_reads(row: Row):
    try:
        expected = text_format.Parse(row.text, ModelConfig())
    except text_format.ParseError:
        with pytest.raises(ValueError, match="line "):
            parse(row.text)
    else:
        # JSON has integers of 64 bits, and numbers that are not finite, as strings.
        assert as_json(parse(row.text)) == as_json(
            MessageToDict(expected, preserving_proto_field_name=True)
        )


def as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, str) and value in ("Infinity", "-Infinity", "NaN"):
        value = float(value)
    return value if isinstance(value, bool) else str(value)
