"""A real Prometheus server that scrapes servers and answers queries."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.servers import free_ports
from support.waiting import until

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed (Debian's package prometheus)"
)


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus server."""

    address: str

    def values(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and finite values of an instant query."""
        with urllib.request.urlopen(
            f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        ) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        found = [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]
        return [(labels, value) for labels, value in found if math.isfinite(value)]


@contextlib.contextmanager
def start_prometheus(
    folder: Path, jobs: Mapping[str, str], *, rules: str = "groups: []"
) -> Iterator[Prometheus]:
    """Run a Prometheus server that scrapes the addresses in `jobs`, which has them by job.

    `rules` is the content of a file of rules.
    """
    assert PROMETHEUS is not None
    configuration = {
        "global": {
            "scrape_interval": "500ms",
            "scrape_timeout": "500ms",
            "evaluation_interval": "500ms",
        },
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in jobs.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration))  # JSON is YAML
    (folder / "rules.yml").write_text(rules)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: _is_ready(address), f"Prometheus at {address}")
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready") as reply:
            return reply.status == 200
    except OSError:
        return False
