"""The memory of the repository's models equals the plan, as in docs/results/memory.md."""

import gc
import multiprocessing
import re
from pathlib import Path

import numpy as np
import pytest
from support.servers import ROOT

from benchmarks.instruments import open_runtime, read_config

LIMITS = {"limit.tokens": 128, "limit.height": 128, "limit.width": 128, "rows": 8}
DERIVED = {
    "text_encoder": (),
    "text_pipeline_fused": ("label",),
    "ge_classifier": (),
    "ocr_detection": (),
    "ocr_recognition": ("text", "score"),
    "ocr_angle": (),
    "voice_activity": (),
}
"""Models with a graph, and the outputs that their model.py computes."""
COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}
MIB = 2**20


def opened(name, limits):
    folder = ROOT / "model_repository" / name
    config = read_config(folder)
    changed = {key: str(value) for key, value in limits.items() if key in config.parameters}
    if config.max_batch_size:
        config.max_batch_size = limits["rows"]
    return open_runtime(folder / "1", config, COST | changed, derived=DERIVED[name])


def execute(runtime):
    """Execute the largest request that the limits allow."""
    config = runtime.config
    request = {
        spec.name: np.zeros((config.rows, *spec.shape(config.limits)), spec.dtype.numpy)
        for spec in config.sources
    }
    for axis, name in config.axis_lengths.items():
        request[name][...] = config.limits[axis]
    (answer,) = runtime.infer([request])
    assert not isinstance(answer, Exception), answer


def anonymous_bytes():
    gc.collect()
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"^Anonymous: +(\d+)", text, re.M)[1])


def measured(name):
    """Return the planned bytes, and the growth of this process after the load and executions.

    Libraries take memory with their first model, so others are executed before.
    """
    small = dict.fromkeys(LIMITS, 32) | {"rows": 2}
    for other in ("text_encoder", "ge_classifier"):
        runtime = opened(other, small)
        execute(runtime)
        runtime.close()
    before = anonymous_bytes()
    runtime = opened(name, LIMITS)
    load = anonymous_bytes() - before
    for _ in range(2):
        execute(runtime)
    return runtime.plan.total_bytes, load, anonymous_bytes() - before


@pytest.mark.slow
def test_every_model_uses_its_planned_memory():
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        results = pool.map(measured, DERIVED, chunksize=1)
    for planned, load, busy in results:
        # A tenth, and a constant for memory that allocators keep and for session objects; a
        # model may have two sessions, for executions on one thread and on several.
        assert busy == pytest.approx(planned, rel=0.1, abs=10 * MIB)
        assert load <= planned * 1.1 + 10 * MIB
