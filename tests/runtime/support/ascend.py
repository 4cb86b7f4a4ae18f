"""A simulated card for tests in this process, and models compiled for it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import ascend_simulator
from ascend_simulator import Settings, atc, process, reset_for_tests
from ge_runtime.npu.driver import atc as driver_atc

SITE = Path(ascend_simulator.__file__).parent / "site"
"""The variable that CANN's set_env.sh sets; replaced for the simulator."""

CHIP = Settings.soc

ENVIRONMENT = {
    # The compiler's python3 is the one that runs the tests: others may lack onnx.
    "PATH": os.pathsep.join((str(SITE / "bin"), str(Path(sys.executable).parent))),
    "PYTHONPATH": os.pathsep.join((str(SITE), str(SITE.parents[1]))),
}
"""Variables to the value that test processes with the simulator have first in them."""


class Machine:
    """The simulated machine of one test."""

    def __init__(self):
        self.start()

    def start(self, **settings):
        """Start a new machine with other settings, before anything is opened."""
        reset_for_tests(Settings(**settings))

    def arm(self, plan):
        """Inject faults from now on: see `ascend_simulator.faults`."""
        process.current().faults.arm(plan)

    @property
    def report(self):
        return ascend_simulator.report()

    def used(self, kind):
        """Bytes of live blocks: "device" or "pinned"."""
        return sum(block.size for block in process.current().memory.blocks(kind))


def compile_om(folder, *flags, precision="origin", name="model", source="model"):
    """Compile model.onnx in the folder with the simulator's ATC; return the path of model.om."""
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


def compile_in_process(patch):
    """Run ATC in this process when `ge_runtime` starts it: another process takes half a second."""

    def run(command, **_):
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = atc.main(command[1:])
        return subprocess.CompletedProcess(command, code, output.getvalue())

    names = SimpleNamespace(run=run, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    patch.setattr(driver_atc, "subprocess", names)


def token_gears(*gears):
    """Return ATC's flags for the encoder with gears of (rows, tokens)."""
    return [
        "--input_format=ND",
        "--input_shape=input_ids:-1,-1;attention_mask:-1,-1",
        "--dynamic_dims=" + ";".join(f"{n},{t},{n},{t}" for n, t in gears),
    ]


def pinned(place, array):
    """Return a copy of the array in the place's memory."""
    buffer = place.memory.allocate("test", array.nbytes).memory
    own = buffer.view(array.dtype).reshape(array.shape)
    own[...] = array
    return own


def assert_allocates_nothing(machine, execute, times):
    """Assert that no device, host or driver object is created in the `with` block."""
    before = machine.report
    for _ in range(times):
        execute()
    after = machine.report
    assert after.mallocs == before.mallocs
    for function in ("rt.malloc_host", "mdl.create_dataset", "create_data_buffer"):
        assert after.calls[function] == before.calls[function]
