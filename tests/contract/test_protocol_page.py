"""docs/protocol.md counts the cases behind each endpoint; here they are counted again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from contract.casebook import Case
from contract.cases import CASES, generate, settings, shared_memory
from contract.repository_scripts import EXPLICIT, FORWARDED, POLLED, RESTRICTED
from contract.test_trace import LEVELS, REQUESTS, SCRIPTS
from support.servers import ROOT

PAGE = (ROOT / "docs" / "protocol.md").read_text()
# Not at the start of a line: it may follow the body of another request.
REQUEST_LINE = re.compile(rb"[A-Z]+ (?P<path>/[^ ?]*)[^ ]* HTTP/1\.[01]\r?$", re.M)

# What the page calls an endpoint, and the paths that are one.
ENDPOINTS = {
    "/v2": "/v2",
    "/v2/health/live": "/v2/health/live",
    "/v2/health/ready": "/v2/health/ready",
    "/v2/models/stats": "/v2/models/stats",
    "/v2/models/M/infer": r"/v2/models/[^/]+(/versions/[^/]*)?/infer",
    "/v2/models/M/generate": r"/v2/models/[^/]+(/versions/[^/]*)?/generate",
    "/v2/models/M/generate_stream": r"/v2/models/[^/]+(/versions/[^/]*)?/generate_stream",
    "/v2/models/M/ready": r"/v2/models/[^/]+(/versions/[^/]*)?/ready",
    "/v2/models/M/config": r"/v2/models/[^/]+(/versions/[^/]*)?/config",
    "/v2/models/M/stats": r"/v2/models/[^/]+(/versions/[^/]*)?/stats",
    "/v2/models/M/trace/setting": r"/v2/models/[^/]+/trace/setting",
    "/v2/models/M": r"/v2/models/[^/]+(/versions/[^/]*)?",
    "/v2/logging": "/v2/logging",
    "/v2/trace/setting": "/v2/trace/setting",
    **{
        f"/v2/{kind}sharedmemory/{what}": rf"/v2/{kind}sharedmemory(/region/[^/]*)?/{what}"
        for kind in ("system", "cuda")
        for what in ("status", "register", "unregister")
    },
}
# What the page calls it, and how the names of the scripts' steps begin that ask for it.
SCRIPTED = {
    "`/v2/repository[/R]/index`": r"(index|[A-Z]+ \S+/index|RepositoryIndex)\b",
    "`/v2/repository/models/M/load`": r"((end )?[A-Z]+ \S+/load|load|RepositoryModelLoad)\b",
    "`/v2/repository/models/M/unload`": r"((end )?[A-Z]+ \S+/unload|RepositoryModelUnload)\b",
}
# Steps that change files, wait, or begin what another step ends: no server says anything to them.
SILENT = r"(files of|a look|begin|the folder|.* goes|.* is touched)\b"


def counted(cases: Iterable[Case]) -> Counter[str]:
    """The cases by endpoint: that of a case is where its last request goes."""
    counts: Counter[str] = Counter()
    for case in cases:
        said = case.request if isinstance(case.request, bytes) else b"".join(case.request)
        path = [line["path"].decode("latin-1") for line in REQUEST_LINE.finditer(said)][-1:]
        names = [name for name, form in ENDPOINTS.items() if path and re.fullmatch(form, path[0])]
        counts[names[0] if names else "another path, or no request at all"] += 1
    return counts


def on_the_page(counts: Counter[str]) -> dict[str, int | None]:
    """What the page says of the same names, or None: the number in the column next to a name."""
    found: dict[str, int | None] = {}
    for name in counts:
        row = re.search(rf"^\| `?{re.escape(name)}`? \| (\d+)[ ,|]", PAGE, re.M)
        found[name] = int(row[1]) if row else None
    return found


def test_the_page_counts_the_cases_over_http():
    tables = [*CASES, *generate.CASES, *settings.LOG_CASES, *settings.TRACE_CASES]
    counts = counted([*tables, *shared_memory.CASES])
    assert on_the_page(counts) == counts


def test_the_page_counts_the_steps_of_scripts():
    played = [step for one in (*EXPLICIT, *FORWARDED, *POLLED) for step in one.steps]
    restricted = [step for one in RESTRICTED for step in one.steps]
    counts = {
        name: sum(bool(re.match(form, step.name)) for step in played)
        for name, form in SCRIPTED.items()
    }
    counts["any, restricted"] = len(restricted)
    told = {name: f"| {name} | scripts: {count} |" for name, count in counts.items()}
    assert [row for row in told.values() if row not in PAGE] == []
    answers = [step for step in (*played, *restricted) if not re.match(SILENT, step.name)]
    assert f"must be the same: {len(answers)} answers" in PAGE


def test_the_page_counts_the_traces():
    assert f"and {len(SCRIPTS)} scripts of changes and requests" in PAGE
    assert f"| the trace file | {len(REQUESTS)} requests at {len(LEVELS)} levels |" in PAGE
