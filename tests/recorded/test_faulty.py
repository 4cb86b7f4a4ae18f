"""`reference-server check` and a load find the faults of model folders that the real server finds.

`tests/contract/faulty_folders.py` draws the folders and records the real server's answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from contract.faulty_folders import FLAGS, Row, recorded, rows, write_step
from contract.folder_faults import FAULTS, NEEDS_CODE
from contract.recordings import check_each
from contract.wire import exchange
from support.in_process import start_in_process

from reference_server.checking.faults import check_repositories
from reference_server.checking.model_check import Fault, Level, Rules
from reference_server.core.profiles import V2_51

ROWS = rows()
#: Faults that the real server does not find, by the reason.
REFUSED_HERE = {
    **dict.fromkeys(
        ("a state without a type", "a state without dims", "a state without a name"),
        "the real server uses wrong memory (docs/schedulers.md)",
    )
}
#: Faults whose texts differ, by the reason.
OTHER_TEXTS = {
    "labels elsewhere": "this server reads no files outside of the model's folder",
    "code that is a folder": "this server names the file",
}
_NO_ANSWER = "no answer"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faulty") / "repository"
    write_step(folder)
    for row in ROWS:
        row.write(folder)
    return folder


@pytest.fixture(scope="module")
def checked(repository: Path) -> Mapping[str, list[Fault]]:
    """The faults that `check` finds, by model."""
    found: dict[str, list[Fault]] = {row.model: [] for row in ROWS}
    for fault in check_repositories([repository], Rules(V2_51)).faults:
        found[str(fault.model)].append(fault)
    return found


@pytest.fixture(scope="module")
def loaded(repository: Path) -> Iterator[Mapping[str, str]]:
    """The reasons of this server's refusals by model; "" if it is loaded."""
    flags = {name: value for name, value in FLAGS.items() if name != "allow_grpc"}
    with start_in_process(repository, load_model="step", **flags) as server:

        def refusal(model: str) -> str:
            path = f"/v2/repository/models/{model}/load"
            request = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
            (reply,) = exchange(server.http, request).replies
            return "" if reply.status == 200 else _stable(json.loads(reply.body)["error"])

        yield {row.model: refusal(row.model) for row in ROWS}


#: Errors of Python by their texts in other releases than 3.11.7, on which the rows were recorded.
_TEXTS_OF_PYTHON = (
    (r"with abstract method (\w+)", r"without an implementation for abstract method '\1'"),
    ("ValueError: source code string cannot", "SyntaxError: source code string cannot"),
)


def _stable(text: str) -> str:
    """Return the first line without paths, with the words of one release of Python."""
    text = re.sub(r"(REPOSITORY)?/[\w/.-]*/", "", text.split("\n")[0])
    for old, new in _TEXTS_OF_PYTHON:
        text = re.sub(old, new, text)
    return text


@pytest.fixture(scope="module")
def real() -> Mapping[str, str]:
    recording = recorded()
    return {row.model: recording.said(row) for row in ROWS}


def test_each_folder_is_loaded_or_refused_as_by_the_real_server(
    real: Mapping[str, str], loaded: Mapping[str, str]
):
    def check(row: Row) -> None:
        expected, found = real[row.model], loaded[row.model]
        if row.fault in REFUSED_HERE:
            assert (bool(expected), bool(found)) == (False, True)
        elif expected == _NO_ANSWER:
            assert found
        else:
            assert (found == _stable(expected)) is (row.fault not in OTHER_TEXTS)

    check_each(ROWS, check)


def test_check_names_the_faults_of_each_refused_folder(
    real: Mapping[str, str], checked: Mapping[str, list[Fault]]
):
    def check(row: Row) -> None:
        faults = checked[row.model]
        errors = [fault for fault in faults if fault.level is Level.ERROR]
        if row.fault in NEEDS_CODE:
            assert real[row.model]
            assert not faults
        elif real[row.model] or row.fault in REFUSED_HERE:
            assert faults
        else:
            assert not errors

    check_each(ROWS, check)


def test_each_fault_is_known():
    assert REFUSED_HERE.keys() | OTHER_TEXTS.keys() | NEEDS_CODE <= FAULTS.keys()
    assert len(ROWS) > 200
