"""Integers of clients and configurations are accepted and refused as by the real server.

`tests/contract/integer_values.py` lists the fields and the values, and records the real server's
answers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract.integer_values import ENDS, FLAGS, answers, fields, read, write
from support.in_process import InProcessServer, start_in_process

pytestmark = pytest.mark.brute_force

TABLE = read()
Ask = Callable[[str], dict[str, str]]
_LOW_BITS = "all classes are meant; the real server takes the low 32 bits"
#: Fields and values for which the servers answer otherwise, by the reason.
DIFFERENCES = {
    r"(data of|generate) U?INT(8|16|32): .*": "integers that do not fit are refused",
    r"output classification: (4294967296|9223372036854775808)": _LOW_BITS,
    r"gRPC output classification: int64 4294967296": _LOW_BITS,
    r"gRPC shape after \[\]: -?9223372036854775\d*": "the real server's sizes wrap",
    r"JSON model_version: -9223372036854775809": "protobuf's C++ library rounds it",
    r"(text|JSON) state dims: 0": "a state without elements is refused (docs/schedulers.md)",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("integers") / "repository"
    folder.mkdir()
    write(folder)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[InProcessServer]:
    with start_in_process(repository, **FLAGS) as started:
        yield started


@pytest.fixture(scope="module")
def ask(repository: Path, server: InProcessServer) -> Ask:
    """Return the server's answers to the values of a field; each field is asked once."""
    known = {field.name: field for field in fields(repository)}
    return functools.cache(lambda name: answers(server, known[name]))


def comparable(answer: str) -> str:
    """Return an answer without the reasons of protobuf's libraries, which have other texts."""
    return re.sub(r"(Invalid config override|failed to read text proto from)[^\"]*", r"\1", answer)


def different(name: str, ask: Ask) -> dict[str, tuple[str, str]]:
    """Return the real server's answers that are not this server's, with these."""
    ours, real = ask(name), TABLE[name]
    assert ours.keys() == real.keys()
    return {
        f"{name}: {value}": (said, ours[value])
        for value, said in real.items()
        if said != ENDS and comparable(said) != comparable(ours[value])
    }


#: Fields of configurations: each of their values is a model that is loaded.
CONFIGURATIONS = ("text ", "JSON ")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.brute_force if name.startswith(CONFIGURATIONS) else ())
        for name in TABLE
    ],
)
def test_values_of_a_field(name: str, ask: Ask):
    found = different(name, ask)
    unexpected = {
        key: texts
        for key, texts in found.items()
        if not any(re.fullmatch(pattern, key) for pattern in DIFFERENCES)
    }
    assert unexpected == {}


@pytest.mark.parametrize("pattern", DIFFERENCES)
def test_each_accepted_difference_still_exists(pattern: str, ask: Ask):
    rows = [(name, f"{name}: {value}") for name, values in TABLE.items() for value in values]
    names = dict.fromkeys(name for name, row in rows if re.fullmatch(pattern, row))
    assert any(re.fullmatch(pattern, key) for name in names for key in different(name, ask))
