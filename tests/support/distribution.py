"""The distribution of tests to several processes (pytest-xdist).

A process gets whole files, as with `--dist loadfile`. Files that use the same servers are one unit,
so that each of these servers starts once. The longest units start first, so that none of them runs
at the end, when other processes are idle. Units that wait run beside units that compute.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_CONTRACT = "tests/contract/test_"
#: Files of tests/contract that share servers of conftest.py, by the servers' models.
SHARING = {
    "the real models": (
        *("ascend_on_triton", "ascend_bad_input", "ascend_deaths", "same_repository"),
        *("pages_and_voices", "protocol_models", "replay", "resident_pipeline"),
    ),
    "the probes": (
        *("grpc", "grpc_mutations", "grpc_strangers", "grpc_wire"),
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
    "the traced models": ("logging", "settings", "trace"),
}
SHARED_BY = {f"{_CONTRACT}{name}.py": served for served, names in SHARING.items() for name in names}
#: Seconds of a test, and of a test with any of these marks, in files without measured seconds.
SECONDS_OF_A_TEST, SECONDS_OF_A_MARKED_TEST = 0.04, 2.0
MARKS = ("slow", "brute_force", "oracle")
#: Seconds of the longest units, measured with four processes on two cores.
_LONGEST = {
    200: ("the real models",),
    60: ("the probes", "contract/test_shutdown", "packaging/test_wheels", "stack/test_ray"),
    45: ("contract/test_instance_groups", "performance/test_memory"),
    35: ("campaign/test_live", "contract/test_repository", "runtime/test_published_graphs"),
    30: (
        *("contract/test_counts", "contract/test_decoupled", "contract/test_remote_page"),
        *("runtime/cli/test_probe_device", "runtime/npu/driver/test_om_engine"),
    ),
    25: (
        "contract/test_model_api",
        *("contract/test_strangers", "contract/test_runtime_features", "stack/test_site"),
        *("factory/test_ocr_pages", "server/backends/test_checklist"),
        *("runtime/npu/engines/test_torch_npu", "runtime/testing/test_conformance"),
    ),
    20: (
        *("the traced models", "contract/test_control_cycles", "contract/test_ensembles"),
        *("contract/test_examples", "contract/test_exports", "contract/test_hosts"),
        *("contract/test_import_names", "contract/test_jpeg_images", "contract/test_sequences"),
        *("contract/test_mixed_ensemble", "factory/test_digits_training", "stack/test_examples"),
        *("factory/test_text_encoder", "factory/test_text_head", "runtime/cli/test_doctor"),
        *("runtime/cli/test_doctor_machine", "runtime/engines/test_torch_cuda"),
        *("runtime/npu/service/test_death", "runtime/npu/service/test_overload"),
        *("server/backends/process/test_calls", "server/repository/test_bls"),
        "simulator/test_environment",
    ),
    15: (
        *("contract/test_python_backends", "contract/test_configurations"),
        *("contract/test_grpc_options", "contract/test_namespaces", "contract/test_schedulers"),
        *("contract/test_opentelemetry", "recorded/test_grpc"),
        *("recorded/test_http", "runtime/cli/test_init", "runtime/npu/driver/test_real_models"),
        *("runtime/npu/service/test_engine", "runtime/npu/service/test_start"),
        *("server/backends/process/test_death", "server/testing/test_installed"),
        "stack/test_pages",
    ),
    10: (
        "contract/test_auto_complete",
        *("contract/test_asgi_hosts", "contract/test_dashboard"),
        *("contract/test_two_repositories", "contract/test_warmup", "stack/test_serve"),
        *("runtime/cli/test_pages", "runtime/discovery/test_exports"),
        *("runtime/engines/test_onnx_sharing", "runtime/engines/test_torch"),
    ),
}
SECONDS = {
    name if name in SHARING else f"tests/{name}.py": seconds
    for seconds, names in _LONGEST.items()
    for name in names
}
#: Files in these folders mostly wait for processes; other files mostly compute.
WAITING = (
    *("tests/contract/", "tests/stack/", "tests/packaging/", "tests/campaign/"),
    *("tests/runtime/cli/", "tests/runtime/npu/service/", "tests/server/backends/process/"),
)


class Distribution(LoadScopeScheduling):
    """A scheduler of whole units: a file, or files that share servers."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # they begin `in_order`
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that crashed the process. It is not run again.

        xdist would give it to the next process, which would crash, too.
        """
        for unit in self.assigned_work[node].values():
            for nodeid, is_completed in unit.items():
                if not is_completed:
                    unit[nodeid] = True
                    super().remove_node(node)
                    return nodeid
        return super().remove_node(node)


def unit_of(nodeid: str) -> str:
    """Return the unit that a test belongs to."""
    file = nodeid.partition("::")[0]
    return SHARED_BY.get(file, file)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which their units start.

    The longest units start first. Units that wait and units that compute alternate, so that both
    kinds run at any time: only waiting units would leave cores idle, only computing units would
    compete for them.
    """
    units = [unit_of(item.nodeid) for item in items]
    seconds: Counter[str] = Counter()
    for unit, item in zip(units, items, strict=True):
        marked = any(map(item.get_closest_marker, MARKS))
        seconds[unit] += SECONDS_OF_A_MARKED_TEST if marked else SECONDS_OF_A_TEST
    seconds.update({unit: SECONDS[unit] - seconds[unit] for unit in seconds.keys() & SECONDS})
    places: dict[str, tuple[float, str]] = {}
    for waits in (True, False):
        kind = [unit for unit in seconds if _waits(unit) is waits]
        total, before = sum(seconds[unit] for unit in kind), 0.0
        for unit in sorted(kind, key=lambda unit: (-seconds[unit], unit)):
            places[unit] = before / total, unit
            before += seconds[unit]
    pairs = sorted(zip(units, items, strict=True), key=lambda pair: places[pair[0]])
    return [item for _, item in pairs]


def _waits(unit: str) -> bool:
    """Return whether a unit mostly waits for processes."""
    return unit in SHARING or unit.startswith(WAITING)
