"""The suite passes sound models, and finds every fault that is planted."""

import pytest
from runtime.testing.models import BLIND, FREE, GEARED, MIXING, ONE_GEAR, SOUND
from runtime.testing.mutants import ENGINE_MUTANTS, MUTANTS

from ge_runtime.testing.conformance import check

ENGINES = ["onnxruntime", "torch"]


@pytest.fixture
def examine(version_dir):
    """A function: model, engine, options -> the report."""

    def report_of(model, engine="onnxruntime", graph=None, **options):
        return check(version_dir(graph or model.graph, engine), model.config, **options)

    return report_of


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", SOUND, ids=str)
def test_sound_models_pass(examine, model, engine):
    report = examine(model, engine)
    assert report.passed, report


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("mutant", "model"),
    [
        pytest.param(mutant, model, id=f"{name}: {model}")
        for name, mutant in MUTANTS.items()
        for model in mutant.models
    ],
)
def test_planted_faults_are_found(examine, monkeypatch, mutant, model, engine):
    mutant.plant(monkeypatch)
    report = examine(model, engine)
    assert not report.passed, report


@pytest.mark.parametrize(
    ("engine", "model"),
    [(engine, model) for engine, mutant in ENGINE_MUTANTS.items() for model in mutant.models],
    ids=str,
)
def test_outputs_that_the_engine_does_not_write_are_found(examine, monkeypatch, engine, model):
    ENGINE_MUTANTS[engine].plant(monkeypatch)
    assert not examine(model, engine).passed


@pytest.mark.parametrize("model", [FREE, GEARED, ONE_GEAR], ids=str)
@pytest.mark.parametrize("graph", [BLIND, MIXING], ids=lambda graph: graph.name)
def test_graphs_that_are_not_sound_are_found(examine, graph, model):
    assert not examine(model, graph=graph).passed
