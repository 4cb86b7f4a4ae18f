"""Play mutants: select the tests of each mutant, store outcomes, print tables and lost kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.mutants.session import in_place
from tools.mutants.sites import PACKAGES, ROOMS, Mutant, Site, find, mutant, package_of

#: Quick tests that need no other server.
MARKS = "not oracle and not stack and not gpu and not slow"
#: Largest total duration in seconds, as measured by `map`, of the tests of one mutant.
MOST_SECONDS = 60.0
SESSION = Path(__file__).with_name("session.py")


def record(tree: Path, room: str, result: Path) -> None:
    """Run the tests of a room, and store which lines each test runs.

    Folders and files of tests run one after another. Those that `result` has are not run again.
    """
    known = json.loads(result.read_text()) if result.exists() else {}
    packages = {package_of(path) for path in ROOMS[room].files}
    for path in ROOMS[room].tests:
        if path in known:
            continue
        with tempfile.NamedTemporaryFile("r+") as part:
            include = [f"{tree}/{package}/*" for package in packages]
            order = {"result": part.name, "include": include, "paths": [path]}
            output = _session(tree, "map", order)
            text = part.read()
        if not text:
            raise SystemExit(f"{path}: the tests were aborted: {output[-3000:]}")
        known[path] = json.loads(text)
        result.write_text(json.dumps(known))


class Map:
    """Which tests run which lines."""

    def __init__(self, path: Path) -> None:
        self._tests: list[str] = []
        self._seconds: list[float] = []
        self._lines: dict[str, dict[str, list[int]]] = {}
        for covered in json.loads(path.read_text()).values():
            first = len(self._tests)
            self._tests += covered["tests"]
            self._seconds += covered["seconds"]
            for file, lines in covered["lines"].items():
                known = self._lines.setdefault(file, {})
                for line, tests in lines.items():
                    known.setdefault(line, []).extend(first + test for test in tests)

    def tests(self, site: Site, change: Mutant) -> list[str]:
        """Return the package's tests that run a statement, the quickest first.

        Tests that run other lines of the file follow, because other processes may run the
        statement. For a statement that runs at import, these are all tests of its package.
        """
        lines = self._lines.get(site.file, {})
        at = {str(line) for line in range(change.first, change.last + 1)}
        here = {test for line in at for test in lines.get(line, ())}
        there = {test for found in lines.values() for test in found}
        if not change.in_function:
            there = set(range(len(self._tests)))
        folders = PACKAGES[package_of(site.file)]
        chosen, total = [], 0.0
        for test in sorted(here | there, key=lambda each: (each not in here, self._seconds[each])):
            if self._tests[test].startswith(folders) and total < MOST_SECONDS:
                total += self._seconds[test]
                chosen.append(self._tests[test])
        return chosen


def play(tree: Path, chosen: Iterable[Site], known: Map, played: Path) -> None:
    """Play each mutant, and write each result immediately."""
    jobs = [job for site in chosen if (job := _job(tree, site, known, played))]
    _play(tree, [job for job in jobs if not job["whole"]], played)
    written = [json.loads(line) for line in played.read_text().splitlines()]
    missing = [line["mutant"] for line in written if line["outcome"] == "not patched"]
    for job in jobs:
        if job["whole"] or job["entry"]["mutant"] in missing:
            with in_place(tree / job["file"], job["source"], job["number"]):
                _play_alone(tree, job | {"whole": True}, played)


def _play_alone(tree: Path, job: dict[str, Any], played: Path) -> None:
    """Play a mutant in a separate session, first with the quickly loaded tests of its module."""
    texts = {test.split("::")[0]: "" for test in job["tests"]}
    texts = {path: (tree / path).read_text() for path in texts}
    near = [test for test in job["tests"] if Path(job["file"]).stem in texts[test.split("::")[0]]]
    with tempfile.NamedTemporaryFile("w+") as tried:
        if near:
            _play(tree, [job | {"tests": near}], Path(tried.name))
        line = tried.read()
    if line and json.loads(line)["outcome"] != "survived":
        with played.open("a") as results:
            results.write(line)
    else:
        _play(tree, [job], played)


def _job(tree: Path, site: Site, known: Map, played: Path) -> dict[str, Any] | None:
    here = find(tree, site)
    entry: dict[str, Any] = {"mutant": asdict(site)}
    if here is not None:
        change = mutant((tree / here.file).read_text(), here)
        tests = known.tests(here, change)
        entry["here"] = asdict(here)
        if tests:
            return {
                "entry": entry,
                "number": site.line + 10_000 * site.number,
                "file": here.file,
                "source": change.source,
                "defs": change.defs,
                "whole": not change.in_function,
                "tests": tests,
            }
    outcome = ("survived", "no test runs it") if here else ("not found", "")
    with played.open("a") as results:
        print(
            json.dumps(entry | dict(zip(("outcome", "test"), outcome, strict=True))), file=results
        )
    return None


def _play(tree: Path, jobs: list[dict[str, Any]], played: Path) -> None:
    if not jobs:
        return
    paths = sorted({test.split("::")[0] for job in jobs for test in job["tests"]})
    result = {"result": str(played.resolve()), "jobs": jobs, "paths": paths}
    before = played.stat().st_size
    output = _session(tree, "play", result)
    if played.stat().st_size == before:
        if not jobs[0]["whole"]:
            raise SystemExit(f"the tests cannot be collected: {output[-3000:]}")
        with played.open("a") as results:
            outcome = {"outcome": "killed", "test": f"no collection: {output[-300:]}"}
            print(json.dumps(jobs[0]["entry"] | outcome), file=results)


def _session(tree: Path, command: str, order: dict[str, Any]) -> str:
    """Run a session of tests in the tree; return its output."""
    # Compiled files of changed sources must not remain.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
        environment["TMPDIR"] = folder  # tests that are killed leave temporary folders
        file = Path(folder) / "order.json"
        file.write_text(json.dumps(order | {"basetemp": f"{folder}/tests", "marks": MARKS}))
        with (Path(folder) / "output").open("w+") as written:
            running = subprocess.Popen(
                [".venv/bin/python", SESSION, command, file],
                cwd=tree,
                env=environment,
                stdout=written,
                stderr=subprocess.STDOUT,
            )
            try:
                running.wait()
            except BaseException:
                running.send_signal(signal.SIGINT)
                try:
                    running.wait(_END_S)
                except subprocess.TimeoutExpired:  # the session ignores the signal
                    running.kill()
                    running.wait()
                raise
            written.seek(0)
            return written.read()


#: Seconds until an interrupted session is killed.
_END_S = 30
#: The outcomes of mutants that tests detect.
NOTICED = ("killed", "hung")
#: Mutants that were found by review to have no visible effect, each with the reason.
EQUIVALENT = Path(__file__).with_name("equivalent.json")


def read(played: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the last result of each mutant."""
    lines = (json.loads(line) for path in played for line in path.read_text().splitlines())
    return {
        json.dumps(line["mutant"], sort_keys=True): line
        for line in lines
        if line["outcome"] != "not patched"
    }


def _key(site: dict[str, Any]) -> tuple[Any, ...]:
    """Return the identity of a site; its line may change."""
    return tuple(site[name] for name in ("file", "function", "statement", "kind", "number"))


def table(played: Iterable[Path], equivalent: Path = EQUIVALENT) -> dict[str, Counter[str]]:
    """Return the numbers of played, killed (or hung), surviving and equivalent mutants by room."""
    excused = {_key(row) for row in json.loads(equivalent.read_text())}
    rooms: dict[str, Counter[str]] = {}
    for line in read(played).values():
        if line["outcome"] == "not found":
            continue
        site = line["here"]
        counts = rooms.setdefault(str(Path(site["file"]).parent), Counter())
        counts["played"] += 1
        if line["outcome"] in NOTICED:
            counts["killed"] += 1
        else:
            counts["equivalent" if _key(site) in excused else "survived"] += 1
    rooms["all"] = sum(rooms.values(), Counter())
    return rooms


def shown(rooms: dict[str, Counter[str]]) -> str:
    """Return a Markdown table. The rate excludes equivalent mutants."""
    columns = ("played", "killed", "survived", "equivalent")
    rows = [f"| Room | {' | '.join(columns).title()} | Rate |", f"|{' --- |' * 6}"]
    for room, counts in rooms.items():
        judged = counts["killed"] + counts["survived"]
        rate = f"{100 * counts['killed'] / judged:.1f} %" if judged else ""
        rows.append(f"| {room} | {' | '.join(str(counts[each]) for each in columns)} | {rate} |")
    return "\n".join(rows)


def survivors(played: Iterable[Path], equivalent: Path = EQUIVALENT) -> list[str]:
    """Return a line for each mutant that no test detected."""
    excused = {_key(row) for row in json.loads(equivalent.read_text())}
    return [
        f"{site['file']}:{site['line']} {site['kind']} {site['number']}: {site['statement']}"
        for line in read(played).values()
        if line["outcome"] == "survived" and _key(site := line["here"]) not in excused
    ]


def lost_kills(before: Path, after: Path) -> list[str]:
    """Return a line for each mutant that was detected before, and now is not."""
    first, then = read([before]), read([after])
    lost = [
        (was["mutant"], then[mutant]["outcome"] if mutant in then else "not played")
        for mutant, was in first.items()
        if was["outcome"] in NOTICED
        and (mutant not in then or then[mutant]["outcome"] not in NOTICED)
    ]
    return [
        f"{outcome}: {site['file']}:{site['line']} {site['kind']} {site['statement']}"
        for site, outcome in lost
    ]
