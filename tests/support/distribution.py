"""The distribution of tests to several processes (pytest-xdist).

A process gets whole files, as with `--dist loadfile`. Files that use the same servers are one unit,
so that each of these servers starts once. The longest units start first, so that no process has to
run one of them at the end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_CONTRACT = "tests/contract/test_"
#: The files that use the same servers of tests/contract/conftest.py, by the servers' models.
SHARING = {
    "the real models": (
        *("ascend_on_triton", "ascend_bad_input", "ascend_deaths", "same_repository"),
        *("pages_and_voices", "protocol_models", "replay", "resident_pipeline"),
    ),
    "the probes": (
        *("generate", "grpc", "grpc_clients", "grpc_mutations", "grpc_strangers", "grpc_wire"),
        "client_versions",
        *(
            "http_bodies",
            "http_clients",
            "http_mutations",
            "open_inference",
            "perf_modes",
            "protocol_http",
            "replay_grpc",
        ),
        *("shared_memory", "shared_memory_clients"),
    ),
    "the traced models": ("logging", "trace"),
}
SHARED_BY = {f"{_CONTRACT}{name}.py": served for served, names in SHARING.items() for name in names}
#: A test with any of these marks takes as long as `MARKED` other tests.
MARKS = ("slow", "brute_force", "oracle")
MARKED = 50
#: The longest units, in this order; the others follow, ordered by their number of tests.
LONGEST = (
    *SHARING,
    *("tests/stack/test_ray.py", "tests/performance/test_memory.py"),
    *(f"{_CONTRACT}{name}.py" for name in ("instance_groups", "shutdown", "python_backends")),
    *("tests/runtime/npu/engines/test_torch_npu.py", "tests/packaging/test_wheels.py"),
    *("tests/factory/test_text_encoder.py", "tests/runtime/cli/test_probe_device.py"),
    *("tests/runtime/testing/test_conformance.py", "tests/factory/test_text_head.py"),
    *(
        f"{_CONTRACT}{name}.py"
        for name in ("strangers", "hosts", "import_names", "exports", "repository", "grpc_options")
    ),
    *("tests/server/testing/test_installed.py", "tests/performance/test_ragged.py"),
    *("tests/runtime/discovery/test_exports.py", "tests/runtime/cli/test_init.py"),
    *(
        f"{_CONTRACT}{name}.py"
        for name in (
            *("auto_complete", "runtime_features", "configurations", "control_cycles"),
            *("ragged_server", "grpc_control"),
        )
    ),
    *("tests/stack/test_serve.py", "tests/runtime/npu/service/test_death.py"),
    *("tests/runtime/test_steady_state.py", "tests/factory/test_digits_training.py"),
    "tests/runtime/npu/driver/test_real_models.py",
    "tests/server/backends/process/test_death.py",
    "tests/server/backends/process/test_invalid_messages.py",
    *("tests/runtime/engines/test_torch.py", "tests/factory/test_digits_network.py"),
    *("tests/runtime/engines/test_torch_cuda.py", "tests/runtime/batching/test_partition.py"),
    *("tests/runtime/engines/test_onnx_sharing.py", "tests/runtime/cli/test_encoder_pages.py"),
    *("tests/stack/test_site.py", "tests/stack/test_pages.py", "tests/factory/test_ocr_pages.py"),
    *(
        f"{_CONTRACT}{name}.py"
        for name in ("pages_and_voices", "mixed_ensemble", "published_graphs", "perf")
    ),
)


class Distribution(LoadScopeScheduling):
    """A scheduler of whole units: a file, or files that share servers."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # they begin `in_order`
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """Return the unit that a test belongs to."""
    file = nodeid.partition("::")[0]
    return SHARED_BY.get(file, file)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which their units start."""
    units = [unit_of(item.nodeid) for item in items]
    counts: Counter[str] = Counter()
    for unit, item in zip(units, items, strict=True):
        counts[unit] += MARKED if any(map(item.get_closest_marker, MARKS)) else 1
    ranks = {unit: rank for rank, unit in enumerate(LONGEST)}

    def key(unit: str) -> tuple[int, int, str]:
        return ranks.get(unit, len(ranks)), -counts[unit], unit

    pairs = sorted(zip(units, items, strict=True), key=lambda pair: key(pair[0]))
    return [item for _, item in pairs]
