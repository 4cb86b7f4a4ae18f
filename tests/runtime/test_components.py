"""The table of engines, device backends and placements."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER

from ge_runtime import Runtime, components
from ge_runtime.components import DEVICES, PLACEMENTS, engine_entries, load
from ge_runtime.engines.artifact import find_artifact

COST = {"cost": "launch_us=100, element_ns=100, element2_ns=0"}
THIRD_PARTY = '''
    """A package of this test: an engine that counts the tokens of each row."""

    from pathlib import Path

    import numpy as np

    from ge_runtime.components import EngineEntry, Requirement
    from ge_runtime.engines.base import GraphTensor, Signature
    from ge_runtime.memory.lifetimes import Intermediates
    from ge_runtime.specs import DType

    ENTRY = EngineEntry(
        name="token_count",
        device_kind="cpu",
        suffix=".count",
        engine="token_count:TokenCountEngine",
        requires=Requirement("token_count"),
    )


    class TokenCountEngine:
        """Open the artifact, a text with the weight of each token."""

        signature = Signature(
            (
                GraphTensor("input_ids", DType.INT64, (None, None)),
                GraphTensor("attention_mask", DType.INT64, (None, None)),
            ),
            (GraphTensor("count", DType.FP32, (None, 1)),),
        )
        shapes = None  # any
        lost = False

        def __init__(self, factor):
            self._factor = factor

        @classmethod
        def open(cls, path: Path, threads: int, outputs):
            return cls(float(path.read_text()))

        def bind(self, largest, memory):
            """Do nothing: this step needs no binding."""

        def run(self, inputs, outputs):
            counts = inputs["attention_mask"].sum(axis=1, keepdims=True) * self._factor
            if outputs["count"] is None:
                return {"count": counts.astype(np.float32)}
            outputs["count"][...] = counts
            return {"count": outputs["count"]}

        def weights_bytes(self):
            return 0

        def device_io_bytes(self):
            return 0

        def intermediates(self, shapes):
            return Intermediates(())

        def close(self):
            """Has nothing to release."""
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with entry points for this test."""
    components._registered.cache_clear()

    def install(name, code, entry_point):
        site = tmp_path / "site"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(textwrap.dedent(code))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ge_runtime.engines]\n{name} = {entry_point}\n")
        monkeypatch.syspath_prepend(site)

    yield install
    components._registered.cache_clear()


def test_everything_named_in_the_table_exists():
    targets = {entry.engine for entry in engine_entries()}
    targets |= {entry.backend_class for entry in engine_entries()}
    targets |= {device.prepare for device in DEVICES.values() if device.prepare}
    for target in (*targets, *PLACEMENTS.values()):
        assert callable(load(target)), target


@pytest.mark.brute_force
def test_a_model_on_the_cpu_loads_only_modules_that_it_needs(version_dir):
    code = f"""
        import json, sys
        from pathlib import Path
        import ge_runtime.adapters.triton
        from ge_runtime import Runtime

        def show():
            print(*(name for name in sys.modules if name.partition(".")[0] == "ge_runtime"))

        assert not {{"torch", "onnxruntime"}} & sys.modules.keys()
        show()
        import numpy as np
        config = json.loads({json.dumps(json.dumps(encoder_config(COST)))})
        runtime = Runtime.open(Path({str(version_dir(ENCODER))!r}), config, instance_name="a_0")
        tokens = {{"input_ids": np.array([[1, 2]]), "lengths": np.array([[2]], np.int32)}}
        (answer,) = runtime.infer([tokens])
        assert answer["embedding"].shape == (1, 4), answer
        runtime.close()
        show()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    imported, served = map(str.split, done.stdout.splitlines())
    assert "ge_runtime.runtime" in imported
    assert len(imported) <= 60, sorted(imported)
    assert len(served) < 90, sorted(served)
    rooms = {".".join(name.split(".")[:2]) for name in served}
    assert rooms.isdisjoint({"ge_runtime.npu", "ge_runtime.cuda"})


def test_an_engine_of_another_package_serves_a_model(tmp_path, installed):
    installed("token_count", THIRD_PARTY, "token_count:ENTRY")
    version_dir = tmp_path / "1"
    version_dir.mkdir()
    (version_dir / "model.count").write_text("0.5")
    assert find_artifact(version_dir, "auto").engine == "token_count"
    config = encoder_config({**COST, "engine": "token_count"})
    config["output"] = [{"name": "count", "data_type": "TYPE_FP32", "dims": [1]}]
    runtime = Runtime.open(version_dir, config, instance_name="counted_0")
    assert runtime.report[0] == (
        "counted_0: engine token_count, because model.count is there and token_count is "
        "installed; config.pbtxt asks for it"
    )
    tokens = {"input_ids": np.ones((1, 5), np.int64), "lengths": np.array([[3]], np.int32)}
    more = {"input_ids": np.ones((2, 4), np.int64), "lengths": np.array([[4], [1]], np.int32)}
    first, second = runtime.infer([tokens, more])
    assert (first["count"].tolist(), second["count"].tolist()) == ([[1.5]], [[2.0], [0.5]])
    runtime.close()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("ENTRY = no_such_name", "name 'no_such_name' is not defined"),
        (
            """
            from ge_runtime.components import EngineEntry, Requirement
            ENTRY = EngineEntry("torch", "cpu", ".x", "mine:Engine", Requirement("mine"))
            """,
            "found engine torch for cpu, expected a name that no other engine has",
        ),
    ],
)
def test_a_broken_registration_is_logged_and_ignored(installed, caplog, code, why):
    before = components.engine_names()
    components._registered.cache_clear()
    installed("broken_engine", code, "broken_engine:ENTRY")
    assert components.engine_names() == before
    assert "entry point 'broken_engine' of ge_runtime.engines is ignored: " in caplog.text
    assert why in caplog.text
