"""Engines come, execute, fail and go in any order: memory is exact, and no answer is wrong."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)
from runtime.engines.conformance_engine import token_batch
from runtime.support.ascend import Machine, compile_om, token_gears
from runtime.support.graphs import ENCODER, write

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import EngineFault
from ge_runtime.npu.driver.card import PROCESS_CARDS
from ge_runtime.npu.engines.ascend_backend import AscendBackend

GEARS = {"small": [(1, 8), (2, 8)], "middle": [(2, 256), (4, 512)], "large": [(8, 512), (16, 1024)]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Model name: its file; each needs more workspace than the one before."""
    paths = {}
    for name, gears in GEARS.items():
        folder = tmp_path_factory.mktemp(name)
        write(ENCODER, "onnxruntime", folder)
        paths[name] = compile_om(folder, *token_gears(*gears))
    return paths


class Engines(RuleBasedStateMachine):
    """paths: of the models, set by the test."""

    paths: dict
    engines = Bundle("engines")

    def __init__(self):
        super().__init__()
        self.machine = Machine()
        PROCESS_CARDS.__init__()
        self.open = {}  # engine -> (place, name, number of the executor)
        self.blocks = defaultdict(int)  # executor -> bytes of workspace since its first model

    @rule(
        target=engines,
        name=st.sampled_from(sorted(GEARS)),
        lane=st.integers(0, 1),
        buffers=st.integers(0, 1),
    )
    def open_engine(self, name, lane, buffers):
        place = AscendBackend(0, executor=lane, buffers=buffers)
        engine = place.open([Artifact(self.paths[name], "om", "")], threads=1, outputs=())
        engine.bind([], place.memory)
        self.open[engine] = (place, name, lane)
        needed = engine.intermediates({}).lifetimes[0].nbytes
        self.blocks[lane] = max(self.blocks[lane], needed)
        return engine

    @rule(engine=engines, gear=st.integers(0, 1), seed=st.integers(0, 99))
    def execute(self, engine, gear, seed):
        inputs, expected = token_batch(*GEARS[self.open[engine][1]][gear], seed)
        result = engine.run(inputs, {"embedding": None})["embedding"]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)

    @rule(engine=engines)
    def fail(self, engine):
        self.machine.arm("execute@1=507015")
        inputs, _ = token_batch(*GEARS[self.open[engine][1]][0])
        with pytest.raises(EngineFault):
            engine.run(inputs, {"embedding": None})

    @rule(engine=consumes(engines))
    def close_engine(self, engine):
        place, _, lane = self.open.pop(engine)
        engine.close()
        place.close()
        if lane not in {own for _, _, own in self.open.values()}:
            del self.blocks[lane]

    @invariant()
    def memory_is_weights_once_a_workspace_for_each_lane_and_the_slots(self):
        weights = {name: engine.weights_bytes() for engine, (_, name, _) in self.open.items()}
        slots = sum(engine.device_io_bytes() for engine in self.open)
        expected = sum(weights.values()) + sum(self.blocks.values()) + slots
        assert self.machine.used("device") == expected
        assert self.machine.report.broken == {}

    def teardown(self):
        for engine in [*self.open]:
            self.close_engine(engine)
        assert self.machine.report.live == []


@pytest.mark.brute_force
def test_engines_in_any_order(files):
    Engines.paths = files
    run_state_machine_as_test(Engines, settings=settings(max_examples=40, stateful_step_count=20))
