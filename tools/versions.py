"""Differences between two versions of Triton's interface: schema, flags, metrics, profiles.

    python -m tools.versions compare A B        print a table of the differences
    python -m tools.versions snapshot A         print all facts about A as JSON, to be kept
    python -m tools.versions fetch              download the oldest tritonclient that is supported

A and B are sources:

    tritonclient==2.73.0    the schema in a wheel of PyPI, which is downloaded into .cache/wheels
    FILE.whl                the schema in that wheel
    oracle                  flags and metrics of the real tritonserver (`make oracle`)
    2.51, newest            profile, flags, metrics and schema of the reference server
    FILE.txt                the flags in an output of `tritonserver --help`
    FILE.json               an output of `snapshot`

Servers are started to read their metrics. Only facts that both sources have are compared. See
docs/versions.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reference_server.command import arguments
from reference_server.core.profiles import PROFILES
from tools import triton_schema

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".cache" / "wheels"
START_SECONDS = 120

#: Facts about one item, such as the default of a flag. Facts that a source lacks are omitted.
Facts = Mapping[str, str]
#: Facts by section, such as "flags", and by name of the item.
Snapshot = Mapping[str, Mapping[str, Facts]]


class Unreadable(Exception):
    """A source cannot be read; the text has the remedy."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference; `before` or `after` is empty if that source lacks the item."""

    section: str
    name: str
    before: str
    after: str


def differences(before: Snapshot, after: Snapshot) -> Iterator[Difference]:
    """Yield the differences in sections and facts that both sources have."""
    for section in before:
        if section not in after:
            continue
        old, new = before[section], after[section]
        for name in dict.fromkeys([*old, *new]):
            if name not in new or name not in old:
                yield Difference(
                    section, name, _described(old.get(name)), _described(new.get(name))
                )
                continue
            changed = [
                key for key in old[name] if old[name][key] != new[name].get(key, old[name][key])
            ]
            if changed:
                facts = ({key: side[name][key] for key in changed} for side in (old, new))
                yield Difference(section, name, *map(_described, facts))


def _described(facts: Facts | None) -> str:
    if facts is None:
        return ""
    return ", ".join(f"{key} {value}" if key else value for key, value in facts.items()) or "yes"


def table(before: Snapshot, after: Snapshot) -> str:
    """Return the differences as text: a heading for each section, and aligned columns."""
    found = list(differences(before, after))
    lines = []
    for section in dict.fromkeys([*before, *after]):
        if section not in before or section not in after:
            lines.append(f"{section}: reported by only one of the two")
            continue
        rows = [
            (row.name, row.before or "-", row.after or "-")
            for row in found
            if row.section == section
        ]
        compared = len({*before[section], *after[section]})
        lines.append(f"{section}: {len(rows)} of {compared} differ")
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        lines += [
            f"  {name:{widths[0]}}  {old:{widths[1]}}  {new}".rstrip() for name, old, new in rows
        ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------- the sources


def snapshot(source: str) -> Snapshot:
    """Return all facts of a source. May download it, or start a server. Raises Unreadable."""
    if source.startswith("tritonclient=="):
        return {"schema": triton_schema.of_wheel(fetch(source))}
    if source == "oracle":
        real = [sys.executable, str(ROOT / "tools" / "oracle.py"), "serve"]
        printed = subprocess.run([*real, "--help"], capture_output=True, text=True, check=False)
        if "Usage: tritonserver" not in printed.stderr:
            raise Unreadable(f"oracle: no usage text; {printed.stderr.strip()}")
        return {"flags": flags(printed.stderr), "metrics": metrics(real)}
    if source in PROFILES:
        ours = [sys.executable, "-m", "reference_server", f"--triton-version={source}"]
        return {
            "profile": profile(source),
            "flags": own_flags(),
            "metrics": metrics(ours),
            "schema": triton_schema.installed(),
        }
    file = Path(source)
    readers: dict[str, Callable[[], Snapshot]] = {
        ".whl": lambda: {"schema": triton_schema.of_wheel(file)},
        ".txt": lambda: {"flags": flags(file.read_text(encoding="utf-8"))},
        ".json": lambda: json.loads(file.read_text(encoding="utf-8")),
    }
    if file.suffix not in readers:
        raise Unreadable(f"{source}: unknown source. The sources are\n{__doc__}")
    if not file.exists():
        raise Unreadable(f"{source}: file not found")
    return readers[file.suffix]()


def oldest_client() -> str:
    """Return the oldest tritonclient that pyproject.toml allows, such as tritonclient==2.67.0."""
    allowed = re.search(
        r"tritonclient\[grpc\]>=(\d+\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert allowed is not None
    return f"tritonclient=={allowed[1]}.0"


def fetch(requirement: str) -> Path:
    """Return the wheel of tritonclient==VERSION; download it if necessary. Raises Unreadable."""
    if not (found := cached(requirement)):
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
        ]
        options = ["--no-deps", "--only-binary=:all:", "--dest", str(WHEELS), requirement]
        if subprocess.run([*command, *options], check=False).returncode:
            raise Unreadable(f"pip cannot download {requirement}; its reason is above")
        found = cached(requirement)
    if found is None:
        raise Unreadable(f"{requirement}: pip found no wheel of this name; write the full version")
    return found


def cached(requirement: str) -> Path | None:
    """Return the wheel of tritonclient==VERSION if it was downloaded, otherwise None."""
    return next(WHEELS.glob(f"{requirement.replace('==', '-')}-*.whl"), None)


# ------------------------------------------------------------------------- flags, metrics, profile


def flags(usage: str) -> dict[str, Facts]:
    """Return the flags in the real server's usage text, with types and defaults of their values."""
    found: dict[str, Facts] = {}
    for flag, kind, lines in re.findall(
        r"^  (--[a-z0-9-]+) ?(.*)\n((?:\t.*\n)*)", usage, re.MULTILINE
    ):
        meaning = " ".join(lines.split())
        default = re.search(r"[Dd]efault is (.+?)(?:\.?$|\.\s)", meaning)
        facts = {"takes": kind.strip("<>") or "nothing"}
        found[flag] = facts | ({"default": _plain(default[1])} if default else {})
    return found


def own_flags() -> dict[str, Facts]:
    """Return the flags of the reference server, with defaults that do not depend on a profile."""
    found: dict[str, Facts] = {}
    for action in arguments.new_parser()._actions:
        tells = action.default not in (None, [], argparse.SUPPRESS)
        facts = {"default": _plain(str(action.default))} if tells else {}
        found |= {flag: facts for flag in action.option_strings if flag.startswith("--")}
    return found


def _plain(value: str) -> str:
    """Return a default without its quotes and without explanations in brackets."""
    return re.sub(r" \(.*\)$", "", value).strip("'\"").lower()


def profile(name: str) -> dict[str, Facts]:
    """Return the fields of a profile of the reference server."""
    fields = dataclasses.asdict(PROFILES[name])
    return {field: {"": str(value)} for field, value in fields.items()}


CONFIG = """
backend: "python" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [1] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] }
instance_group { kind: KIND_CPU }
response_cache { enable: true }
"""
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def metrics(command: Sequence[str]) -> dict[str, Facts]:
    """Return the metric families of a server with one model, a cache, and all metrics enabled."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        version = Path(folder, "models", "m", "1")
        version.mkdir(parents=True)
        version.with_name("config.pbtxt").write_text(CONFIG)
        (version / "model.py").write_text(MODEL)
        port = _free_port()
        settings = ("counter_latencies", "summary_latencies", "histogram_latencies")
        options = [
            f"--model-repository={version.parents[1]}",
            *("--allow-http=false", f"--grpc-port={_free_port()}", f"--metrics-port={port}"),
            *(f"--metrics-config={setting}=true" for setting in settings),
            *("--metrics-interval-ms=100", "--cache-config=local,size=1048576"),
        ]
        log = stack.enter_context(Path(folder, "log").open("w+"))
        server = stack.enter_context(
            subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
        )
        stack.callback(server.kill)
        page = _first_page(server, f"http://127.0.0.1:{port}/metrics")
        if page is None:
            raise Unreadable(f"{' '.join(command)}: no metrics\n{Path(log.name).read_text()}")
    return _families(page)


def _families(page: str) -> dict[str, Facts]:
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", page, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\S+) (.*)$", page, re.MULTILINE))
    return {name: {"": types[name], "help": text} for name, text in helps.items()}


def _first_page(server: subprocess.Popen[bytes], url: str) -> str | None:
    """Return the metrics page after the model is loaded; None if the server ends or is too slow."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.2)
            return None
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
            page: str = reply.read().decode()
            if 'nv_inference_request_success{model="m"' in page:
                return page
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(words: Sequence[str]) -> None:
    """Run the command with these arguments."""
    try:
        match words:
            case ["compare", before, after]:
                print(table(snapshot(before), snapshot(after)))
            case ["snapshot", source]:
                print(json.dumps(snapshot(source), indent=1))
            case ["fetch"]:
                print(fetch(oldest_client()))
            case _:
                raise SystemExit(__doc__)
    except (Unreadable, triton_schema.NoSchema) as error:
        raise SystemExit(f"versions: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
