"""A session of pytest that plays many mutants, or stores which test runs which lines.

    python session.py map ORDER.json
    python session.py play ORDER.json

It runs in the tested tree, with the tree's Python, and imports nothing of the project itself. Tests
are collected once. Each mutant runs in a forked child: there, the functions of imported modules get
the changed code. The file is changed, too, for processes that tests start. So the cost of a mutant
is that of its tests. A mutant in code that runs at import needs a separate session (`whole`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from coverage import Coverage, CoverageData

#: The time limit of one test, because a mutant may hang.
TEST_SECONDS = 60
#: The time limit for the teardown of fixtures after the first failure.
END_SECONDS = 5
#: Exit codes of a mutant's child.
SURVIVED, KILLED, NOT_PATCHED = 0, 1, 77


class Recorder:
    """Stores which lines each test runs, and its duration."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

        self._coverage = Coverage(data_file=None, include=order["include"], config_file=False)
        # coverage.py would warn about tests that run no measured line.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()
            self._write(self._coverage.get_data())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        begin = time.perf_counter()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.perf_counter() - begin
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def _write(self, data: CoverageData) -> None:
        tests = [name for name in self._seconds if name not in self._failed]
        numbers = {name: number for number, name in enumerate(tests)}
        here = Path.cwd()
        lines = {
            str(Path(file).relative_to(here)): {
                line: [numbers[name] for name in names if name in numbers]
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        written = {"tests": tests, "seconds": [self._seconds[name] for name in tests]}
        Path(self._order["result"]).write_text(json.dumps(written | {"lines": lines}))


class Player:
    """Plays each mutant of an order in a separate child process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions()
        jobs = [
            job | {"items": [items[name] for name in job["tests"] if name in items]}
            for job in self._order["jobs"]
        ]
        if not jobs[0]["whole"]:
            # A test that fails without a mutant would count as a kill.
            firsts = {item: None for job in jobs for item in job["items"][:2]}
            unchanged = {"source": Path(jobs[0]["file"]).read_text(), "items": [*firsts]}
            outcome, test = _play(jobs[0] | unchanged, session, functions)
            if outcome != "survived":
                pytest.exit(f"without any mutant: {outcome} by {test}", 1)
        with Path(self._order["result"]).open("a") as results:
            for job in jobs:
                outcome, test = _play(job, session, functions)
                entry = job["entry"] | {"outcome": outcome, "test": test}
                print(json.dumps(entry), file=results, flush=True)
        return True


def _play(
    job: dict[str, Any],
    session: pytest.Session,
    functions: dict[tuple[str, str, int], list[FunctionType]],
) -> tuple[str, str]:
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        if not job["whole"]:
            stack.enter_context(in_place(Path(job["file"]), job["source"], job["number"]))
        child = os.fork()
        if not child:
            os.setsid()
            os.close(reader)
            try:
                if job["whole"] or _patch(job, functions):
                    os._exit(_run(session, job["items"], writer))
                os._exit(NOT_PATCHED)
            except BaseException as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode()[:2000])
                os._exit(KILLED)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        # Kill the group: processes that tests started may hang or remain.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os.set_blocking(reader, False)  # remaining processes may hold its other end
    try:
        test = os.read(reader, 4000).decode(errors="replace")
    except BlockingIOError:
        test = ""
    os.close(reader)
    code = os.waitstatus_to_exitcode(status)
    if code == KILLED and not test:  # ended by faulthandler
        return "hung", f"a test did not end within {TEST_SECONDS} s"
    return {SURVIVED: "survived", NOT_PATCHED: "not patched"}.get(code, "killed"), test


@contextlib.contextmanager
def in_place(path: Path, source: str, number: int) -> Iterator[None]:
    """Change a file for the context; its time differs from that of all compiled files."""
    before, times = path.read_text(), path.stat()
    try:
        path.write_text(source)
        stamp = times.st_mtime_ns + (number + 1) * 1_000_000_000
        os.utime(path, ns=(stamp, stamp))
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return all functions of imported modules by file, name and first line."""
    gc.unfreeze()  # the project's conftest froze them
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType:  # proxies of other libraries warn about `isinstance`
            code = each.__code__
            key = os.path.realpath(code.co_filename), code.co_name, code.co_firstlineno
            found.setdefault(key, []).append(each)
    gc.freeze()
    return found


def _patch(job: dict[str, Any], functions: dict[tuple[str, str, int], list[FunctionType]]) -> bool:
    """Replace the code of the functions around the change; return False if this is not possible."""
    path = os.path.realpath(job["file"])
    code = compile(job["source"], path, "exec", dont_inherit=True)
    for name, line in job["defs"]:
        inner = [
            each
            for each in code.co_consts
            if isinstance(each, CodeType) and (each.co_name, each.co_firstlineno) == (name, line)
        ]
        if len(inner) != 1:
            return False
        code = inner[0]
        for function in functions.get((path, name, line), ()):
            if function.__code__.co_freevars != code.co_freevars:
                return False
            function.__code__ = code
    # Modules that tests import later have the change from the file.
    return True


def _run(session: pytest.Session, items: list[pytest.Item], writer: int) -> int:
    class FirstFailure:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                lines = str(report.longrepr).splitlines()
                os.write(writer, f"{report.nodeid}: {lines[-1] if lines else ''}".encode()[:2000])
                # The teardown of fixtures removes their folders, unless the mutant prevents it.
                signal.alarm(END_SECONDS)
                with contextlib.suppress(Exception):
                    session._setupstate.teardown_exact(None)
                os._exit(KILLED)

    session.config.pluginmanager.register(FirstFailure())
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return SURVIVED


def main(command: str, order_file: str) -> int:
    """Run one session; return pytest's exit code."""
    order = json.loads(Path(order_file).read_text())
    plugin = Recorder(order) if command == "map" else Player(order)
    arguments = ["-q", "-p", "no:cacheprovider", f"--basetemp={order['basetemp']}"]
    if command == "play":
        arguments += ["-o", f"faulthandler_timeout={TEST_SECONDS}"]
        arguments += ["-o", "faulthandler_exit_on_timeout=true"]
    arguments += ["-m", order["marks"], *order["paths"]]
    return int(pytest.main(arguments, plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
