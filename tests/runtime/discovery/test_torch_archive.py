"""Archives of torch.export are copied without pickles, and studied like ONNX graphs."""

from __future__ import annotations

import json
import zipfile

import pytest
from runtime.support.graphs import ENCODER

from ge_runtime.discovery.discover import Discovery
from ge_runtime.discovery.graph import Graph
from ge_runtime.discovery.torch_archive import copy_archive
from ge_runtime.errors import ArtifactFault

MODEL = {"m/models/model.json": b"{}"}
SAMPLES = "m/data/sample_inputs/model.pt"


def archive(path, entries):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    if not entries:
        path.write_bytes(b"no archive")
    return path


def table(*, use_pickle):
    config = {"fc.weight": {"path_name": "weight_0", "use_pickle": use_pickle}}
    return json.dumps({"config": config}).encode()


def test_example_inputs_are_emptied(tmp_path):
    entries = {
        **MODEL,
        SAMPLES: b"cos\nsystem\n(S'touch unpickled'\ntR.",
        "m/data/weights/model_weights_config.json": table(use_pickle=False),
        "m/data/weights/weight_0": b"1234",
    }
    copy = copy_archive(archive(tmp_path / "a.pt2", entries), tmp_path / "b.pt2")
    with zipfile.ZipFile(copy) as copied:
        assert {name: copied.read(name) for name in copied.namelist()} == {**entries, SAMPLES: b""}


@pytest.mark.parametrize("kind", ["weights", "constants"])
def test_pickled_tensors_are_refused(kind, tmp_path):
    entries = {**MODEL, f"m/data/{kind}/model_{kind}_config.json": table(use_pickle=True)}
    with pytest.raises(ArtifactFault, match=r"found fc.weight as a pickle"):
        copy_archive(archive(tmp_path / "a.pt2", entries), tmp_path / "b.pt2")


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ({"m/data.pkl": b"", "m/constants.pkl": b""}, "found a TorchScript or pickled file"),
        ({"serialized_exported_program.json": b"{}"}, "expected an archive of torch.export"),
        ({}, "found no readable .pt2 archive"),
        ({**MODEL, "m/data/weights/a_weights_config.json": b"{"}, "found no readable .pt2 archive"),
    ],
)
def test_other_archives_are_refused(entries, error, tmp_path):
    with pytest.raises(ArtifactFault, match=error):
        copy_archive(archive(tmp_path / "a.pt", entries), tmp_path / "b.pt2")


@pytest.mark.brute_force
def test_a_program_is_studied_like_an_onnx_graph(tmp_path, version_dir):
    program = version_dir(ENCODER, "torch") / "model.pt2"
    graph = Graph(copy_archive(program, tmp_path / "copy.pt2"), threads=1)
    found = Discovery(graph, 16).configuration()
    given = {own.key: own.value for own in found.parameters}
    assert given["axes.input_ids"] == given["mask.attention_mask"] == "tokens"
    assert found.max_batch_size == 16
