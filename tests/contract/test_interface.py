"""The interface of tritonserver as `tools.versions` reads it: flags, defaults, metrics."""

from __future__ import annotations

import json

import pytest

from tools import versions

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def real(oracle_installed: None) -> versions.Snapshot:
    return versions.snapshot("oracle")


@pytest.fixture(scope="module")
def ours() -> versions.Snapshot:
    return versions.snapshot("2.51")


def test_all_flags_and_metrics_of_the_real_server_are_here(
    real: versions.Snapshot, ours: versions.Snapshot
):
    missing = [found for found in versions.differences(real, ours) if not found.after]
    assert missing == []
    assert len(real["flags"]) > 80
    assert "nv_inference_request_duration_us" in real["metrics"]


def test_metrics_have_the_texts_and_kinds_of_the_real_server(
    real: versions.Snapshot, ours: versions.Snapshot
):
    assert ours["metrics"] == real["metrics"]


def test_defaults_are_those_of_the_real_server(real: versions.Snapshot, ours: versions.Snapshot):
    changed = {
        found.name: (found.before, found.after)
        for found in versions.differences(real, ours)
        if found.before and found.after
    }
    assert changed == {
        "--grpc-keepalive-permit-without-calls": ("default 0", "default false"),
        "--grpc-max-connection-age": ("default undefined", "default 0"),
        "--grpc-max-connection-age-grace": ("default undefined", "default 0"),
        "--metrics-interval-ms": ("default 2000 milliseconds", "default 2000"),
    }


def test_what_was_kept_of_a_server_is_equal_to_it(real: versions.Snapshot, tmp_path):
    kept = tmp_path / "tritonserver-2.51.json"
    kept.write_text(json.dumps(real))
    assert versions.snapshot(str(kept)) == real
