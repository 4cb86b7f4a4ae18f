import os
from io import BytesIO
from zipfile import ZipFile

import pytest
from runtime.engines.conformance_engine import EngineConformance, token_batch
from runtime.support.graphs import ENCODER, copy_of

from ge_runtime.engines.torch import TorchEngine, import_torch
from ge_runtime.errors import ArtifactFault

torch = pytest.importorskip("torch", reason="the torch engine needs torch")

pytestmark = pytest.mark.brute_force


class TestTorchEngine(EngineConformance):
    @pytest.fixture
    def opened(self, version_dir):
        return lambda graph, threads=1: TorchEngine.open(
            version_dir(graph, "torch") / "model.pt2", threads, ["y"]
        )


def test_file_that_is_no_program_is_a_fault_with_its_path(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no program")
    with pytest.raises(ArtifactFault) as raised:
        TorchEngine.open(path, 1, [])
    assert str(raised.value).startswith(f"{path}: torch cannot open it: ")


def test_bare_result_takes_the_only_outputs_name(version_dir):
    path = version_dir(copy_of("float32"), "torch") / "model.pt2"
    assert TorchEngine.open(path, 1, ["anything"]).signature.outputs[0].name == "anything"
    with pytest.raises(ArtifactFault) as raised:
        TorchEngine.open(path, 1, ["a", "b"])
    assert str(raised.value) == (
        f"{path}: found 1 result(s) without names for the outputs a, b; expected `forward` to "
        "return a dict of tensors by name"
    )


class Pickled:
    """Creates the file `executed` when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (self.file,)


def test_sample_inputs_that_execute_code_are_refused(tmp_path):
    path, changed = saved(tmp_path, Pair(), (torch.ones(2),)), tmp_path / "changed.pt2"
    torch.save((Pickled(str(tmp_path / "executed")), {}), pickle := BytesIO())
    with ZipFile(path) as archive, ZipFile(changed, "w") as target:
        for name in archive.namelist():
            is_sample = "/data/sample_inputs/" in f"/{name}"
            target.writestr(name, pickle.getvalue() if is_sample else archive.read(name))
    with pytest.raises(ArtifactFault, match="as a pickle of objects, which can execute any code"):
        TorchEngine.open(changed, 1, ["a", "b"])
    assert not (tmp_path / "executed").exists()


def test_pickled_weights_are_refused(tmp_path):
    path = tmp_path / "model.pt2"
    with ZipFile(path, "w") as archive:
        table = '{"config": {"w": {"use_pickle": true}}}'
        archive.writestr("m/data/weights/model_weights_config.json", table)
    with pytest.raises(ArtifactFault, match="found w as a pickle of objects"):
        TorchEngine.open(path, 1, ["y"])


class Pair(torch.nn.Module):
    def forward(self, x):
        return x, x + 1


class Optional(torch.nn.Module):
    def forward(self, x, scale=None):
        return {"y": x + 1}


def saved(tmp_path, module, args, kwargs=None):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, args, kwargs), path)
    return path


def test_argument_that_is_no_tensor_is_a_fault(tmp_path):
    with pytest.raises(ArtifactFault, match="expected a tensor of a type that Triton has"):
        TorchEngine.open(saved(tmp_path, Optional(), (torch.ones(2), None)), 1, ["y"])


class Weighted(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.1, 0.9, 16).to(dtype), False)
        self.register_buffer("offset", torch.arange(16).to(dtype))

    def forward(self, x):
        return {"y": x + self.weight, "offset": x + self.offset}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_second_arithmetic_has_weights_with_other_last_bits(tmp_path, dtype):
    dtype = getattr(torch, dtype)
    zeros = torch.zeros(16, dtype=dtype)
    engine = TorchEngine.open(saved(tmp_path, Weighted(dtype), (zeros,)), 1, ["y"])
    other = engine.perturbed(0)
    names = {"y": None, "offset": None}
    own, nudged = (each.run({"x": zeros.numpy()}, names) for each in (engine, other))
    assert own["offset"].tolist() == nudged["offset"].tolist()
    steps = own["y"].view(f"i{dtype.itemsize}") - nudged["y"].view(f"i{dtype.itemsize}")
    assert {*abs(steps).tolist()} == {0, 1}


@pytest.mark.parametrize("threads", [1, 2])
def test_execution_uses_as_many_threads_as_it_may(version_dir, threads):
    engine = TorchEngine.open(version_dir(ENCODER, "torch") / "model.pt2", threads, [])
    engine.run(token_batch(1, 1)[0], {"embedding": None})
    assert torch.get_num_threads() == threads


def test_waiting_threads_sleep_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    import_torch()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    import_torch()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
