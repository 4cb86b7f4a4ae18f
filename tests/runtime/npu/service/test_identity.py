"""Processes with different numbers for the machine's devices, and identities of files."""

import numpy as np
import onnx
import pytest
from runtime.support.graphs import ENCODER, copy_of, write
from runtime.support.services import held_service

from ge_runtime.engines.content import ContentHashes
from ge_runtime.errors import ArtifactFault, ServiceFault
from ge_runtime.npu.service.backend import ServiceBackend
from ge_runtime.npu.service.messages import physical_device


def test_equal_files_are_equal_and_others_are_not(tmp_path):
    contents = ContentHashes()
    one, other = write(ENCODER, "onnxruntime", tmp_path / "1"), tmp_path / "copy.onnx"
    other.write_bytes(one.read_bytes())
    different = write(copy_of(np.int8), "onnxruntime", tmp_path / "2")
    assert contents.of(one) == contents.of(other) != contents.of(different)


def test_file_is_read_again_once_it_is_another(tmp_path):
    contents, path = ContentHashes(), tmp_path / "model.onnx"
    path.write_bytes(b"one")
    first = contents.of(path)
    later = tmp_path / "later"
    later.write_bytes(b"two")
    later.replace(path)
    assert contents.of(path) != first


def test_empty_file_is_a_content_and_a_missing_one_is_a_fault(tmp_path):
    contents, path = ContentHashes(), tmp_path / "model.onnx"
    path.touch()
    assert contents.of(path) == contents.of(path)
    with pytest.raises(ArtifactFault, match=r"none\.onnx: cannot be read: No such file"):
        contents.of(tmp_path / "none.onnx")


def test_weights_in_other_files_are_part_of_the_content(tmp_path):
    for version, weight in (("1", 1.0), ("2", 2.0)):
        model = onnx.load(write(ENCODER, "onnxruntime", tmp_path / version))
        table = next(one for one in model.graph.initializer if one.name == "table")
        table.raw_data = np.full((16, 4), weight, np.float32).tobytes()
        onnx.external_data_helper.convert_model_to_external_data(
            model, location="weights", size_threshold=0
        )
        onnx.save(model, tmp_path / version / "model.onnx")
    paths = [tmp_path / version / "model.onnx" for version in "12"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    contents = ContentHashes()
    assert contents.of(paths[0]) != contents.of(paths[1])
    weights = paths[0].with_name("weights")
    first = contents.of(paths[0])
    weights.write_bytes(weights.read_bytes() + b"more")
    assert contents.of(paths[0]) != first


@pytest.mark.parametrize(
    ("device", "environment", "meant"),
    [
        ("cpu", {"CUDA_VISIBLE_DEVICES": "1"}, ""),
        ("cuda:2", {}, "2"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3, 1"}, "3"),
        (
            "cuda:1",
            {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "ASCEND_RT_VISIBLE_DEVICES": "5"},
            "GPU-b",
        ),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, "6"),
        ("npu:2", {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": "4, 6"}, "4"),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4, 6"}, ""),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,6 ,7"}, "6"),
        ("npu:1", {"ASCEND_RT_VISIBLE_DEVICES": "4,x,7"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": "6,4"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": "4,4"}, ""),
        ("npu:0", {"ASCEND_RT_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_number_is_that_of_the_environment(device, environment, meant):
    assert physical_device(device, environment) == meant


def test_client_for_which_a_number_is_another_card_is_refused(services, monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    with held_service(services.path, device="npu:0"):
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
        with pytest.raises(ServiceFault) as raised:
            ServiceBackend("npu:0", "of another server")
        assert str(raised.value) == (
            "the device service refuses: found npu:0 to be the machine's device '1', expected "
            "'0' as in this service: ASCEND_RT_VISIBLE_DEVICES differs. Set XDG_RUNTIME_DIR so "
            "that each process has its own service"
        )
        monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
        ServiceBackend("npu:0", "of a server that has all").close()
