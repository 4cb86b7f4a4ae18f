"""Seeded defects are refused, healthy graphs load, and a printed cure loads."""

import re

import onnx
import pytest
from runtime.verification.defects import DEFECTS, HEALTHY

from ge_runtime import Runtime
from ge_runtime.assembly import with_parameters
from ge_runtime.errors import ConfigFault


def load(folder, family, body, parameters=None):
    """Load the graph with these parameters added; return the line of the load check."""
    onnx.save(family.model(body), folder / "model.onnx")
    config = with_parameters(family.config, parameters or {})
    runtime = Runtime.open(folder, config, instance_name="seeded_0")
    runtime.close()
    assert not runtime.warnings
    return next(line for line in runtime.report if "load check" in line)


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("threads", ["1", "3"])
def test_healthy_graphs_load_with_any_number_of_threads(tmp_path, name, threads):
    line = load(tmp_path, *HEALTHY[name], {"intra_op_threads": threads})
    assert "not checked" not in line


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_refused_and_the_printed_cure_loads(tmp_path, name):
    faults = []
    for threads in ("1", "3"):
        with pytest.raises(ConfigFault) as raised:
            load(tmp_path, *DEFECTS[name], {"intra_op_threads": threads})
        (fault,) = raised.value.faults
        faults.append(re.sub(r"-?\d+\.\d+(e[+-]\d+)?|-?\d+e[+-]\d+", "#", fault))
    assert faults[0].split(" whose ")[0] == faults[1].split(" whose ")[0]
    cure = re.search(r"Cure, tried: with (.*) it loads$", fault)
    if cure is None:
        assert fault.endswith("request alone")
        return
    parameters = dict(re.findall(r"'([^':]+): ([^']+)'", cure[1]))
    load(tmp_path, *DEFECTS[name], parameters)
