"""Memory while serving: planned at load, and constant for any number of requests."""

import gc
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from runtime.support.configs import encoder_config, pixels_config
from runtime.support.graphs import ENCODER, PIXELS

from ge_runtime import Runtime

COST = {"cost": "launch_us=50, element_ns=20, element2_ns=0"}
MIB = 2**20


def resident_bytes():
    fields = Path("/proc/self/status").read_text().splitlines()
    (line,) = [field for field in fields if field.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def texts(rng):
    length = int(rng.integers(1, 33))
    ids = rng.integers(0, 16, (1, length))
    return {"input_ids": ids, "lengths": np.array([[length]], np.int32)}


def images(rng):
    shape = (1, 1, *rng.integers(1, 17, 2))
    return {"image": np.ones(shape, np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "config", "request_of"),
    [(ENCODER, encoder_config, texts), (PIXELS, pixels_config, images)],
    ids=["texts", "images"],
)
def test_resident_memory_stays_flat_over_24_000_requests(version_dir, graph, config, request_of):
    runtime = Runtime.open(version_dir(graph), config(COST, batch=64), instance_name="steady_0")
    rng = np.random.default_rng(0)
    request_batches = [[request_of(rng) for _ in range(50)] for _ in range(40)]
    resident = []
    for _ in range(6):  # the first is a warm-up
        for request_batch in request_batches * 2:
            runtime.infer(request_batch)
        gc.collect()
        resident.append(resident_bytes())
    # A leak per request grows in each round; an ended thread or a page does so in one.
    grown = median(after - before for before, after in pairwise(resident))
    counts, gauges = runtime.counts(), runtime.gauges()
    runtime.close()
    assert counts.launch_rows.total() == counts.launches
    assert sum(rows * launches for rows, launches in counts.launch_rows.items()) == 24_000
    assert gauges["allocations_after_freeze"] == 0
    assert counts.answers_spilled == 0
    assert grown < MIB / 10, f"{grown:,} bytes more after 4,000 requests"
