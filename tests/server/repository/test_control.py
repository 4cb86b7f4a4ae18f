"""Loading and unloading while the server runs: which version serves, and what remains."""

import gc
import operator
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.configs import ensemble, step
from server.support.model_folders import BROKEN, OPTIONS, VECTOR, write_ensemble, write_model
from server.support.requests import PATIENCE_S, Answers, a_request, array_tensor
from support.waiting import until

from reference_server.core.errors import Code, ServerError
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository
from reference_server.repository.model_folders import Override
from reference_server.repository.versions import State

CHAIN = ensemble(step("m", {"X": "I"}, {"Y": "O"}))
CONFIG = """{"backend": "python",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]}"""

#: Records the order of events, and blocks at start and in `execute` until the test allows it.
GATED = """
    import sys
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.gate = sys.modules["gates"].of(args["model_name"])
            self.gate.started()

        def execute(self, requests):
            self.gate.executing()
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor(
                    "Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy()
                )])
                for r in requests
            ]

        def finalize(self):
            self.gate.finalized()
"""


class Gate:
    """Events of one model, and the log of all models."""

    def __init__(self, name, log):
        self._name = name
        self._log = log
        self.may_start = threading.Event()
        self.may_start.set()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_starting = threading.Event()
        self.is_executing = threading.Event()

    def started(self):
        self.is_starting.set()
        assert self.may_start.wait(PATIENCE_S)

    def executing(self):
        self.is_executing.set()
        assert self.may_answer.wait(PATIENCE_S)
        self._log.append(f"{self._name} answers")

    def finalized(self):
        self._log.append(f"{self._name} is finalized")


@pytest.fixture
def gates(monkeypatch):
    """The gates of models, by name, in the module that `GATED` imports; `log` has the events."""

    class Gates:
        def __init__(self):
            self.log = []
            self._gates = {}

        def of(self, name):
            return self._gates.setdefault(name, Gate(name, self.log))

    module = Gates()
    monkeypatch.setitem(sys.modules, "gates", module)
    return module


@pytest.fixture
def repository(models, tmp_path, monkeypatch):
    """A repository without loaded models; temporary files are in `tmp_path`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    loader = ModelLoader(ManualClock(), MetricRegistry(), OPTIONS)
    result = Repository([models], loader, load_threads=2)
    yield result
    result.close()
    assert list(temporary.iterdir()) == []


def send(repository, model, tensor="X"):
    """Send one request; `wait` of the result returns the response."""
    answers = Answers()
    request = a_request(array_tensor(tensor, [1], np.float32), model_name=model, sink=answers)
    repository.find(model).infer(request)
    return answers


def states(repository):
    """Return the index as tuples."""
    return [
        (entry.name, entry.version, entry.state and entry.state.value, entry.reason)
        for entry in repository.index()
    ]


def settled(repository):
    """Return the index after all unloading models are finalized."""
    repository._draining.join()
    return states(repository)


def in_background(call, *arguments):
    """Start a thread that makes a call; the caller joins it."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def refused(repository, name, override=None):
    """Return the code and message of a load that fails."""
    with pytest.raises(ServerError) as caught:
        repository.load(name, override)
    return caught.value.code, caught.value.message


# ------------------------------------------------------------------------------------- serving


def test_requests_in_flight_finish_before_finalize(models, repository, gates):
    write_model(models, "m", source=GATED)
    repository.load("m")
    gates.of("m").may_answer.clear()
    answers = send(repository, "m")
    gates.of("m").is_executing.wait()
    repository.unload("m")
    assert states(repository) == [("m", 1, "UNLOADING", "")]
    with pytest.raises(ServerError, match="has no available versions"):
        repository.find("m")
    gates.of("m").may_answer.set()
    assert answers.wait().error is None
    assert settled(repository) == [("m", 1, "UNAVAILABLE", "unloaded")]
    assert gates.log == ["m answers", "m is finalized"]


def test_request_in_flight_uses_an_unloaded_step(models, repository, gates):
    two = ensemble(step("a", {"X": "I"}, {"Y": "mid"}), step("b", {"X": "mid"}, {"Y": "O"}))
    write_model(models, "a", source=GATED)
    write_model(models, "b", source=GATED)
    write_ensemble(models, "e", two)
    repository.load("e")
    gates.of("a").may_answer.clear()
    answers = send(repository, "e", "I")
    gates.of("a").is_executing.wait()
    repository.unload("b")
    gates.of("a").may_answer.set()
    assert answers.wait().error is None
    settled(repository)
    assert gates.log == ["a answers", "b answers", "b is finalized"]


def test_old_model_serves_until_the_new_one_is_loaded(models, repository, gates):
    folder = write_model(models, "m", source=GATED)
    repository.load("m")
    old = repository.find("m")
    gates.of("m").may_start.clear()
    gates.of("m").is_starting.clear()
    (folder / "more").touch()
    loading = in_background(repository.load, "m")
    gates.of("m").is_starting.wait()
    assert repository.find("m") is old
    assert states(repository) == [("m", 1, "READY", "")]
    gates.of("m").may_start.set()
    loading.join()
    assert repository.find("m") is not old


def test_different_models_load_in_parallel(models, repository, gates):
    write_model(models, "slow", source=GATED)
    write_model(models, "m")
    gates.of("slow").may_start.clear()
    loading = in_background(repository.load, "slow")
    gates.of("slow").is_starting.wait()
    repository.load("m")
    assert states(repository) == [("m", 1, "READY", ""), ("slow", 1, "LOADING", "")]
    gates.of("slow").may_start.set()
    loading.join()


def test_loads_of_one_model_are_serialized(models, repository, gates):
    write_model(models, "m", source=GATED)
    gates.of("m").may_start.clear()
    loads = [in_background(repository.load, "m") for _ in range(3)]
    gates.of("m").is_starting.wait()
    gates.of("m").may_start.set()
    for thread in loads:
        thread.join()
    repository.unload("m")
    settled(repository)
    assert gates.log == ["m is finalized"]  # it was loaded once: the others found no change


@pytest.mark.brute_force
def test_concurrent_loads_and_unloads_end_in_the_last_state(models, repository):
    write_model(models, "m")
    write_model(models, "n")
    write_ensemble(models, "e", CHAIN)

    def churn(name):
        for _ in range(10):
            repository.load(name)
            repository.unload(name, with_unused=name == "e")

    threads = [in_background(churn, name) for name in ("m", "e", "n", "e")]
    for thread in threads:
        thread.join()
    for name in "men":
        repository.unload(name)
    assert {state for _, _, state, _ in settled(repository)} == {"UNAVAILABLE"}
    repository.load("e")
    assert send(repository, "e", "I").wait().error is None


def test_model_is_finalized_after_pending_submissions(models):
    write_model(models, "m")
    found = threading.Event()
    given = threading.Event()
    loader = ModelLoader(ManualClock(), MetricRegistry(), OPTIONS)

    def wait_submitted():
        found.set()
        assert given.wait(PATIENCE_S)

    repository = Repository([models], loader, 1, wait_submitted=wait_submitted)
    repository.load("m")
    served = repository.find("m")
    repository.unload("m")
    found.wait()
    answers = Answers()
    served.infer(a_request(array_tensor("X", [1], np.float32), model_name="m", sink=answers))
    given.set()
    assert answers.wait().error is None
    repository.close()


# -------------------------------------------------------------------------------------- failures


def reasons(repository):
    """Return the reason of each model in the index with failures; all models are ready."""
    entries = repository.index(with_failures=True)
    assert {entry.state for entry in entries} == {State.READY}
    return {entry.name: entry.reason for entry in entries}


@pytest.mark.parametrize(
    ("broken", "text", "reason"),
    [
        ("1/model.py", "class", "Internal: SyntaxError: "),
        ("config.pbtxt", "garbage {", "Internal: failed to read text proto from"),
    ],
)
def test_index_reports_why_the_previous_load_still_serves(models, repository, broken, text, reason):
    file = write_model(models, "m", VECTOR) / broken
    write_model(models, "other", VECTOR)
    repository.load_all()
    assert reasons(repository) == {"m": "", "other": ""}
    sound = file.read_text()
    file.write_text(text)
    repository.load_all()
    found = reasons(repository)
    assert found["m"].startswith("the previous load still serves; the newest load failed: ")
    assert reason in found["m"]
    assert found["other"] == ""
    assert [entry.reason for entry in repository.index()] == ["", ""]
    file.write_text(sound)
    repository.load_all()
    assert reasons(repository) == {"m": "", "other": ""}


def test_ensemble_that_no_longer_fits_is_unloaded(models, repository):
    folder = write_model(models, "m")
    write_ensemble(models, "e", CHAIN)
    repository.load("e")
    (folder / "config.pbtxt").write_text(VECTOR.replace("FP32", "INT32"))
    repository.load("m")
    assert settled(repository) == [("e", 1, "UNAVAILABLE", "unloaded"), ("m", 1, "READY", "")]


def test_unreadable_step_continues_to_serve(models, repository):
    folder = write_model(models, "m")
    repository.load("m")
    (folder / "config.pbtxt").write_text("max_batch_sise: 8")
    write_ensemble(models, "e", CHAIN)
    repository.load("e")
    assert send(repository, "e", "I").wait().error is None


# ------------------------------------------------------------------------------------- overrides

SOURCE = """
import pathlib
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])

    def execute(self, requests):
        assert self.folder.is_dir()
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())
        ]) for r in requests]
"""


def files(**more):
    return Override(CONFIG, {"1/model.py": SOURCE.encode(), **more})


def temporary():
    return list(Path(tempfile.gettempdir()).iterdir())


def test_override_files_exist_as_long_as_the_model(repository):
    repository.load("v", files())
    assert send(repository, "v").wait().error is None
    (folder,) = temporary()
    assert (folder / "1" / "model.py").is_file()
    repository.unload("v")
    repository._draining.join()
    assert temporary() == []


def test_new_override_files_replace_the_old_ones(repository):
    repository.load("v", files())
    before = temporary()
    repository.load("v", files())  # equal files are not detected
    repository._draining.join()
    assert len(temporary()) == 1
    assert temporary() != before


@pytest.mark.parametrize(
    "override",
    [
        pytest.param(Override(None, {"1/model.py": b""}), id="no config"),
        pytest.param(Override("{", {"1/model.py": b""}), id="bad config"),
        pytest.param(files(**{"../x": b"x"}), id="path out"),
        pytest.param(files(**{"1/model.py/x": b"x"}), id="path through a file"),
        pytest.param(files(**{"a\0b": b"x"}), id="path with a zero"),
    ],
)
def test_refused_override_leaves_no_files(repository, override, tmp_path, caplog):
    assert refused(repository, "v", override) == (
        Code.INTERNAL,
        "failed to load 'v', failed to poll from model repository",
    )
    assert temporary() == []
    assert not (tmp_path / "x").exists()
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert message.startswith(
        ("Poll failed for model directory 'v': ", "failed to load 'v': files of the load request: ")
    )


def test_failed_override_leaves_no_files_after_unload(repository):
    refused(repository, "v", files(**{"1/model.py": b"class"}))
    repository.unload("v")
    assert temporary() == []


# ----------------------------------------------------------------------------------------- cycles


def process_resources():
    """Return the counts of threads, open files, modules and temporary directories."""
    gc.collect()
    return (
        threading.active_count(),
        len(list(Path("/proc/self/fd").iterdir())),
        len(sys.modules),
        len(sys.meta_path),
        len(temporary()),
    )


@pytest.mark.slow
def test_load_cycles_leak_nothing(models, repository):
    folder = write_model(models, "m", VECTOR + "instance_group { count: 2 }")
    (folder / "1" / "helper.py").write_text("x = 1")
    source = (folder / "1" / "model.py").read_text()
    (folder / "1" / "model.py").write_text(f"import helper\n{source}")
    write_ensemble(models, "e", CHAIN)

    def cycle():
        repository.load("e")
        repository.load("v", files())
        assert send(repository, "e", "I").wait().error is None
        repository.unload("m")
        repository.unload("e")
        repository.unload("v")
        repository._draining.join()

    for _ in range(3):
        cycle()
    before = process_resources()
    for _ in range(15):
        cycle()
    until(lambda: all(map(operator.le, process_resources(), before)), "the end of what it has left")


# -- namespaces


def test_ensemble_switches_to_another_namespace_if_its_step_is_removed(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for repository in (one, two):
        write_model(repository, "m")
    write_ensemble(two, "e", CHAIN)
    loader = ModelLoader(ManualClock(), MetricRegistry(), OPTIONS)
    repository = Repository([one, two], loader, load_threads=2, namespaced=True)
    try:
        assert repository.load_all()
        with pytest.raises(ServerError, match="There are 2 identifiers of model 'm'"):
            repository.find("m")
        shutil.rmtree(two / "m")
        assert repository.load_all()
        assert repository.find("m").namespace == str(one)
        assert send(repository, "e", "I").wait().error is None
        write_model(two, "m")
        assert repository.load_all()
        assert [served.id for served in repository.all()] == [
            f"{one}::m",
            f"{two}::e",
            f"{two}::m",
        ]
    finally:
        repository.close()


def test_failed_version_is_not_ready(models, repository):
    write_model(models, "m", source=BROKEN)
    refused(repository, "m")
    with pytest.raises(ServerError) as caught:
        repository.find("m", 1)
    assert (caught.value.code, caught.value.message) == (
        Code.UNAVAILABLE,
        "Request for unknown model: 'm' version 1 is not at ready state",
    )
