"""Answers that are kept for long: those for which no planned memory is left are copied there."""

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, encode

from ge_runtime import Runtime

CONFIG = encoder_config(
    {"placement": "service", "cost": "launch_us=100, element_ns=100, element2_ns=0"}
)


@pytest.mark.brute_force
def test_answers_beyond_the_planned_slots_allocate_nothing_that_is_shared(services, version_dir):
    runtime = Runtime.open(version_dir(ENCODER), CONFIG, instance_name="encoder_0")
    planned = services.stats()["memory"]["arenas"]
    kept = []
    for token in range(8):
        ids = np.full((8, 32), token)
        lengths = np.full((8, 1), 32, np.int32)
        kept += runtime.infer([{"input_ids": ids, "lengths": lengths}])
    assert runtime.counts().answers_spilled == 5
    assert runtime.gauges()["allocations_after_freeze"] == 0
    assert services.stats()["memory"]["arenas"] == planned
    for token, answer in enumerate(kept):
        expected = encode([[token] * 32] * 8)
        np.testing.assert_allclose(answer["embedding"], expected, rtol=1e-5)
    runtime.close()
