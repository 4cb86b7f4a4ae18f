"""Files with the real server's responses to the rows of a table.

Each run plays all rows of a table on the reference server, and compares the responses with the
recording. One row in ten is also played on the real server, to check that the recording is still
valid. All rows are played on the real server by

    make tables                 fail if a response of the real server has changed
    make tables TABLES=write    record all responses again; read the diff before you commit it

A recording is a file of JSON lines in `recorded/`, one for each row: its name, a digest of the
request, and the response. A row that is new or changed since the recording fails with that reason.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest
from contract.wire import Exchange, Reply
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

FOLDER = Path(__file__).parent / "recorded"
#: `sample` plays one row in ten on the real server, `all` plays all rows, `write` records them.
MODE = os.environ.get("TABLES", "sample")
ONE_IN = 10
#: Part of the names of this process's shared objects, of constant length.
PROCESS = f"{os.getpid():07}"


class Row(Protocol):
    """A row of a table; its name is unique in the table."""

    @property
    def name(self) -> str: ...


Answer = TypeVar("Answer")
RowT = TypeVar("RowT", bound=Row)


def asked_live(rows: Iterable[RowT]) -> list[RowT]:
    """Return the rows that this run plays on the real server.

    The rows' names select the same tenth in every run, so that each run has the same tests.
    """
    return [row for row in rows if MODE != "sample" or zlib.crc32(row.name.encode()) % ONE_IN == 0]


class Recording(Generic[Answer]):
    """The real server's recorded responses to the rows of one table.

    `types` are the dataclasses of answers. `sent` returns a row's bytes for the digest. `own` maps
    texts of the file to texts of this run; both have the same length, as lengths are part of
    answers. `rows` are all rows of the table.
    """

    def __init__(
        self,
        table: str,
        types: Iterable[type],
        sent: Callable[[Any], object],
        own: dict[str, str],
        rows: Iterable[Row],
    ) -> None:
        self._own = own | {f"_{PROCESS}": "_0000000"}
        assert all(len(ours) == len(kept) for ours, kept in self._own.items()), own
        self._table = table
        self._file = FOLDER / f"{table}.jsonl"
        self._types = {kind.__name__: kind for kind in types}
        self._sent = sent
        self._rows = {row.name for row in rows}
        self._lines: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            lines = map(json.loads, self._file.read_text(encoding="utf-8").splitlines())
            self._lines = {line["row"]: line for line in lines}
        self._written: dict[str, dict[str, Any]] = {}

    def said(self, row: Row) -> Answer:
        """Return the recorded response to this row."""
        line = self._lines.get(row.name)
        if line is None or line["sent"] != self._digest(row):
            was = "is not recorded" if line is None else "was changed since it was recorded"
            pytest.fail(f"{self._table}: row {row.name!r} {was}; run `make tables TABLES=write`")
        return self._decoded(line["said"])

    def check(self, row: Row, answer: Answer, comparable: Callable[[Any, Answer], Answer]) -> None:
        """Compare the real server's response with the recording, or record it, depending on MODE.

        `comparable` removes parts of an answer that vary on the real server.
        """
        if MODE == "write":
            self._write(row, answer)
            return
        now, then = comparable(row, answer), comparable(row, self.said(row))
        assert str(now) == str(then)  # as text first, since that is easier to read
        assert now == then

    def _write(self, row: Row, answer: Answer) -> None:
        said = self._encoded(answer)
        self._written[row.name] = {"row": row.name, "sent": self._digest(row), "said": said}

    def close(self) -> None:
        """Write the recorded responses to the file, in the order of the rows' names.

        The file keeps the earlier responses of rows that were not played. Rows that are no longer
        in the table are removed.
        """
        if self._written:
            FOLDER.mkdir(exist_ok=True)
            kept = {row: line for row, line in self._lines.items() if row in self._rows}
            kept |= self._written
            lines = [json.dumps(kept[row]) for row in sorted(kept)]
            self._file.write_text("\n".join([*lines, ""]), encoding="utf-8")

    def _digest(self, row: Row) -> str:
        return hashlib.sha256(self._kept(repr(self._sent(row)).encode())).hexdigest()[:16]

    # -- answers as JSON

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._kept(value.encode()).decode()
        if isinstance(value, bytes):
            return _encoded_bytes(self._kept(value))
        if isinstance(value, Message):
            content = self._kept(value.SerializeToString(deterministic=True))
            return {"message": value.DESCRIPTOR.full_name, **_encoded_bytes(content)}
        if isinstance(value, tuple | list):
            return [self._encoded(item) for item in value]
        if isinstance(value, dict):
            return {
                "dict": {self._encoded(key): self._encoded(item) for key, item in value.items()}
            }
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: self._encoded(getattr(value, field.name))
                for field in dataclasses.fields(value)
            }
            return {"of": type(value).__name__, **fields}
        return value

    def _decoded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._ours(value.encode()).decode()
        if isinstance(value, list):
            return tuple(map(self._decoded, value))
        if not isinstance(value, dict):
            return value
        if "dict" in value:
            return {self._decoded(key): self._decoded(item) for key, item in value["dict"].items()}
        if "of" in value:
            fields = {name: self._decoded(field) for name, field in value.items() if name != "of"}
            return self._types[value["of"]](**fields)
        content = self._ours(_decoded_bytes(value))
        if "message" not in value:
            return content
        described = descriptor_pool.Default().FindMessageTypeByName(value["message"])
        return message_factory.GetMessageClass(described).FromString(content)

    def _kept(self, content: bytes) -> bytes:
        for ours, kept in self._own.items():
            content = content.replace(ours.encode(), kept.encode())
        return content

    def _ours(self, content: bytes) -> bytes:
        for ours, kept in self._own.items():
            content = content.replace(kept.encode(), ours.encode())
        return content


def chapters(rows: Iterable[RowT]) -> dict[str, list[RowT]]:
    """Return the rows by the first parts of their names.

    One test for each chapter avoids the overhead of one test for each row.
    """
    found: dict[str, list[RowT]] = {}
    for row in rows:
        found.setdefault(row.name.partition(": ")[0], []).append(row)
    return found


def check_each(rows: Iterable[RowT], check: Callable[[RowT], None]) -> None:
    """Check all rows, and fail with the names and the errors of those that fail."""
    errors = []
    for row in rows:
        try:
            check(row)
        except AssertionError as error:
            errors.append(f"{row.name}: {error}")
    if errors:
        pytest.fail("\n\n".join(errors))


@contextlib.contextmanager
def repository_folder(word: str) -> Iterator[Path]:
    """Create a folder for a repository whose path occurs in answers.

    The length of the path is constant, since lengths are part of answers.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{word}-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_path(repository: Path) -> dict[str, str]:
    """Return the path of a `repository_folder`, by its placeholder in recordings."""
    folder = str(repository.parent)
    word, _, _ = folder.rpartition("-")
    return {folder: f"{word}-recorded"}


def recorded_rows(
    table: str,
    rows: Iterable[Row],
    sent: Callable[[Any], object],
    *types: type,
    repository: str = "",
) -> Any:
    """Return a fixture: the real server's recorded responses to the rows of a table.

    `repository` is the fixture of the `repository_folder` whose path is part of answers.
    """

    @pytest.fixture(scope="module")
    def recorded(request: pytest.FixtureRequest) -> Iterator[Recording[Any]]:
        own = own_path(request.getfixturevalue(repository)) if repository else {}
        kept: Recording[Any] = Recording(table, types, sent, own, rows)
        yield kept
        kept.close()

    return recorded


@contextlib.contextmanager
def recording(
    table: str, repository: Path, rows: Iterable[Row], *types: type
) -> Iterator[Recording[Any]]:
    """Open the real server's recorded responses to an HTTP table on this repository."""
    kept: Recording[Any] = Recording(
        table,
        (Exchange, Reply, *types),
        lambda row: (row.request, row.replies),
        own_path(repository),
        rows,
    )
    yield kept
    kept.close()


def _encoded_bytes(content: bytes) -> dict[str, str]:
    """Encode bytes, as text if possible, so that a diff is readable."""
    packed = zlib.compress(content, 9)
    if len(content) > 2_000 and len(packed) < len(content) // 2:
        return {"zlib": base64.b64encode(packed).decode()}
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _decoded_bytes(value: dict[str, str]) -> bytes:
    if "zlib" in value:
        return zlib.decompress(base64.b64decode(value["zlib"]))
    return value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
