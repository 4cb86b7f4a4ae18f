import os

import pytest

from ge_runtime.components import Requirement, engine_entries
from ge_runtime.engines.artifact import (
    Artifact,
    find_artifact,
    find_artifacts,
    for_chip,
    graph_name,
    is_installed,
)
from ge_runtime.errors import ArtifactFault


@pytest.fixture
def folder(tmp_path):
    """A function: a version folder with these files."""

    def make(*names):
        for name in names:
            (tmp_path / name).touch()
        return tmp_path

    return make


def only(*packages):
    return lambda requirement: requirement.name in packages


ALL = only(*(entry.requires.name for entry in engine_entries()))


def test_auto_prefers_onnxruntime_and_says_what_else_would_do(folder):
    path = folder("model.pt2", "model.onnx", "model.py")
    assert find_artifact(path, "auto", ALL) == Artifact(
        path / "model.onnx",
        "onnxruntime",
        "model.onnx is there and onnxruntime is installed; model.pt2 would do too, but "
        "onnxruntime is preferred",
    )


def test_auto_takes_what_is_installed(folder):
    artifact = find_artifact(folder("model.pt2", "model.onnx"), "auto", only("torch"))
    assert artifact.engine == "torch"
    assert artifact.reason.endswith("; model.onnx is there, but onnxruntime is not installed")


CANN = only("acl", "torch_npu", "ge")


@pytest.mark.parametrize(
    ("file", "engine", "package"),
    [("model.pt2", "torch", "torch_npu"), ("model.air", "ge_session", "ge")],
)
def test_on_a_card_other_engines_need_other_packages(folder, file, engine, package):
    path = folder(file)
    artifact = find_artifact(path, "auto", CANN, device_kind="npu")
    assert (artifact.engine, artifact.path.name) == (engine, file)
    assert artifact.reason.startswith(f"{file} is there and {package} is installed; model.om is no")
    with pytest.raises(ArtifactFault, match=f"found {file}, but {package} is not installed; run"):
        find_artifact(path, engine, only("torch"), device_kind="npu")


def test_an_entry_with_the_name_that_is_not_a_file_is_described(tmp_path):
    om = tmp_path / "model.om"
    om.symlink_to("elsewhere.om")
    link = r"found model\.om \(a link to elsewhere\.om, which is not there\), expected model\.om"
    with pytest.raises(ArtifactFault, match=link):
        find_artifact(tmp_path, "om", device_kind="npu")
    om.unlink()
    om.mkdir()
    with pytest.raises(ArtifactFault, match=r"found model\.om/, expected model\.om"):
        find_artifact(tmp_path, "om", device_kind="npu")
    om.rmdir()
    os.mkfifo(om)
    with pytest.raises(ArtifactFault, match=r"found model\.om \(no file\), expected model\.om"):
        find_artifact(tmp_path, "om", device_kind="npu")


def test_nothing_there_is_one_fault_with_folder_names_and_cure(folder):
    path = folder("model.py", "labels.txt")
    with pytest.raises(ArtifactFault) as raised:
        find_artifact(path, "auto", ALL)
    assert str(raised.value) == (
        f"{path}: found labels.txt, model.py, expected model.onnx (for onnxruntime) or model.pt2 "
        "(for torch); `make models` builds the artifacts"
    )


@pytest.mark.parametrize(
    ("file", "kind", "cure"),
    [
        (
            "model.om",
            "cpu",
            "model.om is for a card, which the parameter 'devices' names, e.g. npu:0",
        ),
        ("bert.onnx", "cpu", "rename bert.onnx, if that is the graph"),
        ("bert.om", "npu", "rename bert.om, if that is the graph"),
        ("model.onnx", "npu", "`ge-runtime build` builds the artifacts"),
    ],
)
def test_a_graph_that_is_not_looked_for_has_a_cure_of_its_own(folder, file, kind, cure):
    with pytest.raises(ArtifactFault) as raised:
        find_artifact(folder("model.py", file), "auto", ALL, device_kind=kind)
    assert str(raised.value).endswith(f"; {cure}")


def test_every_stage_has_its_artifact_and_reason(folder):
    path = folder("encoder.onnx", "head.pt2", "head.onnx", "model.onnx")
    encoder, head = find_artifacts(path, "auto", ("encoder", "head"), ALL)
    assert encoder == Artifact(
        path / "encoder.onnx",
        "onnxruntime",
        "encoder.onnx is there and onnxruntime is installed; encoder.pt2 is not there",
    )
    assert (head.path, head.engine) == (path / "head.onnx", "onnxruntime")
    assert head.reason.endswith("; head.pt2 would do too, but onnxruntime is preferred")


def test_all_stages_without_an_artifact_are_reported(folder):
    path = folder("b.onnx", "c.pt2")
    with pytest.raises(ArtifactFault) as raised:
        find_artifacts(path, "auto", ("a", "b", "c"), only("onnxruntime"))
    assert str(raised.value) == (
        f"{path}: found b.onnx, c.pt2, expected a.onnx (for onnxruntime) or a.pt2 (for torch); "
        "`make models` builds the artifacts\n"
        f"{path}: found c.pt2, but torch is not installed; run `pip install torch`"
    )


# -- on a GPU -------------------------------------------------------------------------------------

GPU = only("onnxruntime-gpu", "torch for CUDA")


@pytest.mark.parametrize(
    ("file", "cure"),
    [
        ("model.onnx", "onnxruntime-gpu is not installed; run `pip uninstall -y onnxruntime; pip "),
        ("model.pt2", "torch for CUDA is not installed; run `pip uninstall -y torch; pip install "),
    ],
)
def test_packages_for_the_cpu_are_reported_with_the_fix(folder, file, cure):
    with pytest.raises(ArtifactFault, match=f"found {file}, but {cure}"):
        find_artifact(folder(file), "auto", only("onnxruntime", "torch"), device_kind="cuda")


def test_what_makes_a_package_one_for_a_gpu_is_a_file_of_it(tmp_path, monkeypatch):
    package = tmp_path / "engine_of_tests"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    needed = Requirement("engine for CUDA", module="engine_of_tests", file="lib/libcuda_part.so")
    assert not is_installed(needed)
    (package / "lib/libcuda_part.so").touch()
    assert is_installed(needed)
    assert not is_installed(Requirement("another", module="no_such_engine", file="lib.so"))


# -- on a card ------------------------------------------------------------------------------------


def test_files_for_chips_are_an_artifact_as_well(folder):
    path = folder("encoder.910b3.om", "encoder.310p3.om", "other.om")
    found = find_artifact(path, "auto", ALL, stem="encoder", device_kind="npu")
    assert (found.path, found.engine) == (path / "encoder.om", "om")
    assert found.reason.startswith("encoder.310p3.om, encoder.910b3.om is there and acl is")
    (own,) = for_chip([found], "Ascend910B3")
    assert own.path == path / "encoder.910b3.om"
    assert own.reason == f"{found.reason}; encoder.910b3.om is for Ascend910B3"
    assert graph_name(own.path, "Ascend910B3") == "encoder"
    with pytest.raises(
        ArtifactFault, match=r"found .*, expected encoder\.910b1\.om or encoder\.om"
    ):
        for_chip([found], "Ascend910B1")
    (path / "encoder.om").touch()
    assert for_chip([found], "Ascend910B1") == (found,)


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (("resnet50.om",), "resnet50.om"),
        (("resnet50.om", "model.om"), "model.om"),
        (("resnet50.om", "model.910b3.om"), "model.om"),
        (("resnet50.om", "model.air"), "model.air"),
    ],
)
def test_the_only_compiled_file_of_a_model_may_have_any_name(folder, files, taken):
    path = folder(*files)
    (found,) = find_artifacts(path, "auto", (), ALL, device_kind="npu")
    assert found.path == path / taken
    if "model.om" not in taken:
        assert for_chip([found], "Ascend910B3") == (found,)


@pytest.mark.parametrize(
    ("files", "stages", "kind"),
    [
        (("a.om", "b.om"), (), "npu"),
        (("a.om",), ("model",), "npu"),
        (("a.om",), (), "cpu"),
        (("a.onnx",), (), "cpu"),
    ],
)
def test_other_names_are_refused(folder, files, stages, kind):
    with pytest.raises(ArtifactFault, match=r"expected model\."):
        find_artifacts(folder(*files), "auto", stages, ALL, device_kind=kind)
