"""The reference server changes and shows settings as NVIDIA's server did when it was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.casebook import Case, check_row
from contract.conftest import TRACING, traced_repository
from contract.recordings import Recording, chapters, check_each
from contract.test_settings import TABLES, Answers, outcome, recorded
from support.in_process import InProcessServer, start_in_process

__all__ = ["recorded", "traced_repository"]

CHAPTERS = [
    pytest.param(name, rows, id=title)
    for name, table in TABLES.items()
    for title, rows in chapters(table.cases).items()
]


@pytest.fixture(scope="module")
def traced(
    traced_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InProcessServer]:
    """A server that traces to a file of the current folder."""
    flags = {name: value for name, value in TRACING.items() if name != "allow_grpc"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("traced"))
        with start_in_process(traced_repository, **flags) as server:
            yield server


@pytest.mark.parametrize(("name", "rows"), CHAPTERS)
def test_the_answers_are_the_recorded_ones(
    name: str,
    rows: list[Case],
    recorded: dict[str, Recording[Answers]],
    traced: InProcessServer,
):
    def check(case: Case) -> None:
        real, ours = recorded[name].said(case), outcome(traced, TABLES[name], case)
        check_row(case, real[0])
        assert [str(answer) for answer in ours] == [str(answer) for answer in real]
        assert ours == real

    check_each(rows, check)
