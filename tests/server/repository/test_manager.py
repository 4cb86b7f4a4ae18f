"""Loading a whole repository: the models that serve, and the reasons of those that do not."""

import logging
import shutil

import numpy as np
import pytest
from server.support.configs import ensemble, step
from server.support.model_folders import (
    BROKEN,
    IDENTITY,
    VECTOR,
    write_ensemble,
    write_model,
)
from server.support.requests import Answers, a_request, array_tensor

from reference_server.core.errors import ServerError
from reference_server.repository.versions import State

CHAIN = ensemble(step("m", {"X": "I"}, {"Y": "mid"}), step("m", {"X": "mid"}, {"Y": "O"}))


def states(repository):
    """Return the statuses without the reasons."""
    return [(status.model, status.version, status.state.value) for status in repository.statuses()]


def reason(repository, model):
    """Return the reason of a model with one entry that is not ready."""
    (status,) = [status for status in repository.statuses() if status.model == model]
    assert status.state is State.UNAVAILABLE
    return status.reason


def infer(repository, model, tensor="X", value=(1, 2)):
    """Send one request and return its outputs, by name."""
    answers = Answers()
    request = a_request(array_tensor(tensor, value, np.float32), model_name=model, sink=answers)
    repository.find(model).infer(request)
    response = answers.wait()
    assert response.error is None, response.error
    return {output.name: output.array().tolist() for output in response.outputs}


# ------------------------------------------------------------------------------------------ good


def test_loaded_models_serve(models, load):
    write_model(models, "m")
    write_model(models, "a")
    repository = load()
    assert states(repository) == [("a", 1, "READY"), ("m", 1, "READY")]
    assert repository.is_complete
    assert repository.load_all()
    assert infer(repository, "m") == {"Y": [1, 2]}


def test_ensembles_load_after_their_models(models, load):
    outer = ensemble(step("inner", {"I": "I"}, {"O": "O"}))
    write_ensemble(models, "a_outer", outer)
    write_ensemble(models, "inner", CHAIN)
    write_model(models, "m")
    repository = load()
    assert states(repository) == [("a_outer", 1, "READY"), ("inner", 1, "READY"), ("m", 1, "READY")]
    assert infer(repository, "a_outer", "I") == {"O": [1, 2]}


def test_model_that_appears_in_a_second_repository_is_unloaded(models, load, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_model(models, "m")
    repository = load(other)
    write_model(other, "m")
    assert not repository.load_all()
    assert repository.versions("m") == []
    assert [row.reason for row in repository.index()] == [
        "model appears in two or more repositories"
    ]
    shutil.rmtree(models / "m")
    assert repository.load_all()
    assert infer(repository, "m") == {"Y": [1, 2]}


LABELLED_OUTPUT = 'output { name: "O" data_type: TYPE_FP32 dims: [-1] label_filename: "own" }'


@pytest.mark.parametrize(
    ("outputs", "more", "labels"),
    [
        pytest.param("O", "", {"O": ("cat", "dog")}, id="labels of the step"),
        pytest.param("", LABELLED_OUTPUT, {"O": ("own",)}, id="own labels"),
    ],
)
def test_labels_of_an_ensemble(models, load, outputs, more, labels):
    labelled = VECTOR.replace('name: "Y"', 'name: "Y" label_filename: "labels.txt"')
    write_model(models, "m", labelled, files={"labels.txt": "cat\ndog"})
    config = ensemble(step("m", {"X": "I"}, {"Y": "O"}), outputs=outputs, more=more)
    write_ensemble(models, "e", config, files={"own": "own"})
    assert load().find("e").labels == labels


# ------------------------------------------------------------------------------------------- bad


#: Config, model.py and version folders of the model `x`, and the start of the reason.
UNLOADABLE = {
    "misspelt": (
        "max_batch_sise: 8",
        IDENTITY,
        (1,),
        "Internal: failed to read text proto from ",
    ),
    "another name": (
        'name: "other"' + VECTOR,
        IDENTITY,
        (1,),
        "Invalid argument: unexpected directory name 'x' for model 'other', directory name must "
        "equal model name",
    ),
    "does not start": (
        VECTOR,
        BROKEN,
        (1,),
        "Internal: RuntimeError: init no good\n\nAt:\n  ",
    ),
    "an ensemble of a missing model": (
        ensemble(step("missing", {"X": "I"}, {"Y": "O"})),
        None,
        (1,),
        "Invalid argument: ensemble x contains models that are not available or ambiguous: missing",
    ),
}


@pytest.mark.parametrize(
    ("config", "source", "versions", "said"), UNLOADABLE.values(), ids=UNLOADABLE
)
def test_failed_model_has_a_reason_and_does_not_affect_others(
    models, load, config, source, versions, said
):
    write_model(models, "x", config, source, versions=versions)
    write_model(models, "m")
    write_ensemble(models, "z_good", CHAIN)
    repository = load()
    assert reason(repository, "x").startswith(said)
    assert not repository.load_all()
    assert repository.versions("x") == []
    assert infer(repository, "z_good", "I") == {"O": [1, 2]}


def test_the_cure_of_a_failed_load_is_in_the_log_alone(models, load, caplog):
    write_model(models, "x", VECTOR + "instance_group { kind: KIND_GPU }", IDENTITY)
    assert reason(load(), "x").endswith("no GPUs are available")
    assert "no GPUs are available - write `kind: KIND_CPU`" in caplog.text


def test_ensemble_of_a_failed_model_fails(models, load):
    write_model(models, "m", source=BROKEN)
    write_ensemble(models, "e", CHAIN)
    assert reason(load(), "e").startswith(
        "Invalid argument: ensemble 'e' depends on 'm' which has no loaded version. Model 'm' "
        "loading failed with error: version 1 is at UNAVAILABLE state: Internal: RuntimeError: "
        "init no good"
    )


def test_all_versions_load_or_none_serves(models, load):
    folder = write_model(models, "m", VECTOR + "version_policy { all { } }", versions=(1, 2))
    (folder / "2" / "model.py").write_text("raise ValueError('no')")
    repository = load()
    assert repository.versions("m") == []
    assert states(repository)[1] == ("m", 2, "UNAVAILABLE")
    assert not repository.is_complete


@pytest.mark.parametrize(
    ("source", "config", "versions", "is_complete"),
    [
        pytest.param(IDENTITY, VECTOR, (1,), True, id="ready"),
        pytest.param(BROKEN, VECTOR, (1,), False, id="failed"),
        pytest.param(IDENTITY, VECTOR + 'backend: "python"', (), False, id="no version"),
        pytest.param(IDENTITY, "max_batch_sise: 8", (1,), True, id="never read"),
    ],
)
def test_is_complete_ignores_unreadable_models(models, load, source, config, versions, is_complete):
    write_model(models, "m", config, source, versions=versions)
    assert load().is_complete is is_complete


def test_a_missing_model_is_logged_as_in_triton(load, caplog):
    with caplog.at_level(logging.ERROR, "reference_server"), pytest.raises(ServerError):
        load().load("missing")
    text = "failed to poll model 'missing': model not found in any model repository."
    assert text in caplog.messages


def test_reasons_are_logged(models, load, caplog):
    write_model(models, "typo", "max_batch_sise: 8")
    write_model(models, "broken", source=BROKEN)
    write_model(models, "bare", VECTOR + 'backend: "python"', versions=())
    with caplog.at_level(logging.ERROR, "reference_server"):
        load()
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "Poll failed for model directory 'typo': failed to read text proto from " in logged
    assert "failed to load 'broken' version 1: Internal: RuntimeError: init no good" in logged
    assert "failed to load 'bare': Invalid argument: at least one version" in logged


# ------------------------------------------------------------------------------------------ close

FINALIZING = """
    class TritonPythonModel:
        def initialize(self, args):
            self.repository = args["model_repository"]

        def finalize(self):
            with open(self.repository + "/finalized", "a") as file:
                file.write("x")
"""


def test_close_finalizes_every_instance(models, load):
    folder = write_model(models, "m", VECTOR + "instance_group { count: 3 }", FINALIZING)
    load().close()
    assert (folder / "finalized").read_text() == "xxx"


def test_ensembles_close_before_their_models(models, load, caplog):
    write_model(models, "m")
    write_ensemble(models, "z", CHAIN)
    repository = load()
    caplog.clear()
    with caplog.at_level(logging.INFO, "reference_server.repository"):
        repository.close()
    assert caplog.messages == [
        "successfully unloaded 'z' version 1",
        "successfully unloaded 'm' version 1",
    ]


def test_auto_completion_can_be_disabled(models, load):
    completing = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(4)
                return config
    """
    write_model(models, "m", VECTOR, completing)
    assert load().find("m").config.signature.max_batch_size == 4
    assert load(auto_complete=False).find("m").config.signature.max_batch_size == 0


def test_model_without_configuration_file(models, load):
    completing = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [2]})
                config.add_output({"name": "B", "data_type": "TYPE_FP32", "dims": [2]})
                return config
    """
    write_model(models, "m", None, completing)
    signature = load().find("m").config.signature
    assert [tensor.name for tensor in signature.inputs + signature.outputs] == ["A", "B"]


def test_ensemble_can_require_a_version(models, load):
    write_model(models, "m")
    write_ensemble(models, "e", ensemble(step("m", {"X": "I"}, {"Y": "O"}, version=7)))
    assert reason(load(), "e") == (
        "Invalid argument: ensemble 'e' depends on 'm' whose required version 7 is not loaded."
    )
