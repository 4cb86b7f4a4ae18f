"""Which process runs which tests, where several processes share them (pytest-xdist).

A process gets whole files, as with `--dist loadfile`. Files that use the same servers are one piece
of work, so that each of these servers starts once; and what takes long begins first, so that no
process is left with it at the end.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_CONTRACT = "tests/contract/test_"
#: The files that use the same servers of tests/contract/conftest.py, by what these serve.
SHARING = {
    "the real models": (
        *("ascend_on_triton", "ascend_bad_input", "ascend_deaths", "same_repository"),
        "protocol_models",
        "replay",
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
    "what is traced": ("logging", "trace"),
}
SHARED_BY = {f"{_CONTRACT}{name}.py": served for served, names in SHARING.items() for name in names}
#: A test with any of these marks takes as long as so many others.
MARKS = ("slow", "brute_force", "oracle")
MARKED = 50
#: What takes longest, in this order; all else follows by the number of its tests.
LONGEST = (
    *SHARING,
    *("tests/stack/test_ray.py", "tests/performance/test_memory.py"),
    *(f"{_CONTRACT}{name}.py" for name in ("instance_groups", "shutdown")),
    *("tests/runtime/engines/test_torch_npu.py", "tests/packaging/test_wheels.py"),
    *("tests/factory/test_text_encoder.py", "tests/runtime/cli/test_probe_device.py"),
    *("tests/runtime/testing/test_conformance.py", "tests/factory/test_text_head.py"),
    *(
        f"{_CONTRACT}{name}.py"
        for name in ("ragged_server", "repository", "hosts", "grpc_options", "strangers")
    ),
    *("tests/server/testing/test_installed.py", "tests/performance/test_ragged.py"),
    *(f"{_CONTRACT}{name}.py" for name in ("grpc_control", "runtime_features")),
    *("tests/runtime/cli/test_build.py", f"{_CONTRACT}control_cycles.py"),
    *("tests/runtime/npu/service/test_death.py", "tests/stack/test_serve.py"),
    *("tests/runtime/test_steady_state.py", "tests/factory/test_digits_training.py"),
    *("tests/performance/test_costs.py", "tests/runtime/npu/driver/test_real_models.py"),
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
    """Gives a process one piece of work after the other: a file, or files that share servers."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # they begin `in_order`
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)


def piece_of(nodeid: str) -> str:
    """The piece of work that a test belongs to."""
    file = nodeid.partition("::")[0]
    return SHARED_BY.get(file, file)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which their pieces are to begin."""
    pieces = [piece_of(item.nodeid) for item in items]
    counts: Counter[str] = Counter()
    for piece, item in zip(pieces, items, strict=True):
        counts[piece] += MARKED if any(map(item.get_closest_marker, MARKS)) else 1
    ranks = {piece: rank for rank, piece in enumerate(LONGEST)}

    def key(piece: str) -> tuple[int, int, str]:
        return ranks.get(piece, len(ranks)), -counts[piece], piece

    pairs = sorted(zip(pieces, items, strict=True), key=lambda pair: key(pair[0]))
    return [item for _, item in pairs]
