"""A simulated card for tests in this process, and models compiled for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ascend_simulator
from ascend_simulator import Settings, atc, process, reset_for_tests

SITE = Path(ascend_simulator.__file__).parent / "site"
"""What CANN's set_env.sh puts on PYTHONPATH; the simulator's takes its place."""

CHIP = Settings.soc

ENVIRONMENT = {
    # The compiler's python3 is the one that runs the tests: others may lack onnx.
    "PATH": os.pathsep.join((str(SITE / "bin"), str(Path(sys.executable).parent))),
    "PYTHONPATH": os.pathsep.join((str(SITE), str(SITE.parents[1]))),
}
"""What processes of tests that use the simulator have first in these variables."""


class Machine:
    """The simulated machine of one test."""

    def __init__(self):
        self.start()

    def start(self, **settings):
        """A new one, for settings of its own; before anything is opened."""
        reset_for_tests(Settings(**settings))

    def arm(self, plan):
        """Things that go wrong from now on: see `ascend_simulator.faults`."""
        process.current().faults.arm(plan)

    @property
    def report(self):
        return ascend_simulator.report()

    def used(self, kind):
        """Bytes of live blocks: "device" or "pinned"."""
        return sum(block.size for block in process.current().memory.blocks(kind))


def compile_om(folder, *flags, precision="origin", name="model", source="model"):
    """model.om of model.onnx in the folder, by the simulator's ATC; its path."""
    return atc.run(
        [
            "--framework=5",
            f"--model={folder / source}.onnx",
            f"--output={folder / name}",
            f"--soc_version={CHIP}",
            f"--precision_mode_v2={precision}",
            *flags,
        ]
    )


def token_gears(*gears):
    """ATC's flags for the encoder with gears of (rows, tokens)."""
    return [
        "--input_format=ND",
        "--input_shape=input_ids:-1,-1;attention_mask:-1,-1",
        "--dynamic_dims=" + ";".join(f"{n},{t},{n},{t}" for n, t in gears),
    ]


def pinned(place, array):
    """A copy of the array in the place's memory."""
    buffer = place.memory.allocate("test", array.nbytes).memory
    own = buffer.view(array.dtype).reshape(array.shape)
    own[...] = array
    return own


def assert_allocates_nothing(machine, execute, times):
    """Nothing of the device, the host or the driver is made while this is executed."""
    before = machine.report
    for _ in range(times):
        execute()
    after = machine.report
    assert after.mallocs == before.mallocs
    for function in ("rt.malloc_host", "mdl.create_dataset", "create_data_buffer"):
        assert after.calls[function] == before.calls[function]
