"""BLS calls of models: permissions, readiness, and calls during reloads."""

import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from server.support.clock import ManualClock
from server.support.model_folders import OPTIONS
from server.support.requests import PATIENCE_S, Answers, a_request
from support.waiting import until

from reference_server.core.errors import Code, ServerError
from reference_server.core.portability import ROWS
from reference_server.core.request import InferRequest
from reference_server.core.tensor import DataType, Tensor
from reference_server.observability.metric_registry import MetricRegistry
from reference_server.repository.bls import BlsCalls, InstanceCalls
from reference_server.repository.loader import ModelLoader
from reference_server.repository.manager import Repository
from reference_server.scheduling.deadlocks import InstanceGroup, Member
from reference_server.scheduling.instance_scheduler import InstanceScheduler

pytestmark = pytest.mark.brute_force

#: Sends each number of IN to the model `asked`, in parallel.
ASKS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from concurrent.futures import ThreadPoolExecutor

    class TritonPythonModel:
        def initialize(self, args):
            try:
                self.ready = pb_utils.is_model_ready("asked")
            except pb_utils.TritonModelException as error:
                self.ready = str(error)

        def ask(self, number):
            request = pb_utils.InferenceRequest(
                model_name="asked",
                inputs=[pb_utils.Tensor("IN", np.array([number]))],
                requested_output_names=[],
            )
            answer = request.exec()
            if answer.has_error():
                return answer.error().message()
            return answer.output_tensors()[0].as_numpy()[0].item()

        def execute(self, requests):
            numbers = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(self.ask, numbers.tolist()))
            text = np.array([f"{self.ready}: {answers}"], object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])]
"""
ANSWERS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -r.inputs()[0].as_numpy())])
                for r in requests
            ]
"""
CONFIG = """
    backend: "python"
    input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
    output [
      { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] },
      { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    ]
"""


@pytest.fixture
def asked(models):
    """The folders of two models; the model `asks` calls `asked`."""
    for name, source in (("asks", ASKS), ("asked", ANSWERS)):
        folder = models / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(textwrap.dedent(source))
        (models / name / "config.pbtxt").write_text(CONFIG)
    return models


@pytest.fixture(params=["inline", "process"])
def opened(asked, request):
    """A function that returns a loaded repository and the BLS calls of an instance."""
    repositories = []

    def open_one(*, is_explicit=True):
        loader = ModelLoader(
            ManualClock(now_ns=10**15),
            MetricRegistry(),
            replace(
                OPTIONS,
                auto_complete_config=request.param == "inline",  # it would start extra processes
                python_backend={"host": request.param},
            ),
        )
        repository = Repository([asked], loader, load_threads=2)
        repositories.append(repository)
        repository.load_all()
        loader.calls.connect(repository, is_explicit=is_explicit)
        return repository, loader.calls.for_instance(Member(InstanceGroup("m", 1), "m_0"))

    yield open_one
    for repository in repositories:
        repository.close()


def asked_answers(repository, *numbers):
    answers = Answers()
    array = np.array(numbers)
    tensor = Tensor("IN", DataType.INT64, array.shape, array=array)
    repository.find("asks").infer(InferRequest("asks", {"IN": tensor}, answers))
    response = answers.wait()
    assert response.error is None, response.error
    return response.outputs[0].array()[0].decode()


NOT_READY = (
    "Failed to check model readiness: Failed to process the request for model 'asks_0', message: "
    "Server not ready"
)


def test_server_is_not_ready_before_calls_are_connected(opened):
    repository, _ = opened()
    assert asked_answers(repository, 5, 6) == f"{NOT_READY}: [-5, -6]"


def test_no_request_is_lost_during_a_reload(asked, opened):
    repository, _ = opened()

    def reload():
        for number in range(1, 4):
            source = textwrap.dedent(ANSWERS) + "\n" * number
            (asked / "asked" / "1" / "model.py").write_text(source)
            repository.load("asked")

    with ThreadPoolExecutor(1) as pool:
        reloading = pool.submit(reload)
        while not reloading.done():
            assert asked_answers(repository, *range(1, 9)).endswith(str([-n for n in range(1, 9)]))
        reloading.result()


#: Loads itself with one instance, on another thread.
LOADS_ITSELF = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from concurrent.futures import ThreadPoolExecutor

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]
            self.config = json.loads(args["model_config"])

        def execute(self, requests):
            self.config["instance_group"] = [{"kind": "KIND_CPU", "count": 1}]
            with ThreadPoolExecutor(1) as pool:
                pool.submit(pb_utils.load_model, "asks", config=json.dumps(self.config)).result()
            text = np.array([self.name], object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])]
"""


def test_a_model_may_remove_the_instance_that_loads_it(asked, opened):
    """The load does not wait until this instance is closed, which would never happen."""
    (asked / "asks" / "1" / "model.py").write_text(textwrap.dedent(LOADS_ITSELF))
    group = "instance_group { kind: KIND_CPU count: 2 }"
    (asked / "asks" / "config.pbtxt").write_text(CONFIG + group)
    repository, _ = opened()
    assert [asked_answers(repository), asked_answers(repository)] == ["asks_0_1", "asks_0_0"]


def test_an_instance_that_a_load_removes_may_load_its_model(asked, opened, monkeypatch):
    """The client's load waits for the instance without a claim on the model."""
    (asked / "asks" / "1" / "model.py").write_text(textwrap.dedent(LOADS_ITSELF))
    config = asked / "asks" / "config.pbtxt"
    config.write_text(CONFIG + "instance_group { kind: KIND_CPU count: 2 }")
    repository, _ = opened()
    executing, joining = threading.Event(), threading.Event()
    load, join = InstanceCalls.load, InstanceScheduler.join_removed

    def load_while_joined(*arguments, **options):
        executing.set()
        assert joining.wait(PATIENCE_S)
        load(*arguments, **options)

    def join_noted(scheduler):
        joining.set()
        join(scheduler)

    monkeypatch.setattr(InstanceCalls, "load", load_while_joined)
    monkeypatch.setattr(InstanceScheduler, "join_removed", join_noted)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(asked_answers, repository)
        assert executing.wait(PATIENCE_S)
        config.write_text(CONFIG + "instance_group { kind: KIND_CPU count: 1 }")
        loaded = pool.submit(repository.load, "asks")
        assert answer.result(PATIENCE_S) == "asks_0_1"
        loaded.result(PATIENCE_S)
    assert asked_answers(repository) == "asks_0_0"


LOADS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            {}
"""


@pytest.mark.parametrize(
    ("calls", "cycle"),
    [
        ({"asks": "pb_utils.load_model('asks')"}, "'asks' waits for 'asks'"),
        ({"asks": "pb_utils.unload_model('asks')"}, "'asks' waits for 'asks'"),
        (
            {"asks": "pb_utils.load_model('asked')", "asked": "pb_utils.load_model('asks')"},
            "'asked' waits for 'asks', 'asks' waits for 'asked'",
        ),
    ],
)
def test_loads_that_would_wait_for_each_other_are_refused(asked, opened, calls, cycle, caplog):
    repository, _ = opened()
    for name, call in calls.items():
        (asked / name / "1" / "model.py").write_text(textwrap.dedent(LOADS.format(call)))
    with pytest.raises(ServerError) as caught:
        repository.load("asks")
    assert f"since loads wait for each other: {cycle}; expected" in caught.value.message
    assert not repository._claimed
    assert not repository._waits
    assert ROWS["load-deadlock"].text in caplog.text


def test_a_thread_of_initialize_may_load_its_model(asked, opened):
    """The load does not wait for it."""
    repository, _ = opened()
    done = asked / "done"
    loads = f"pb_utils.load_model('asks'), open({str(done)!r}, 'w').close()"
    lines = f"import threading; threading.Thread(target=lambda: ({loads})).start()"
    (asked / "asks" / "1" / "model.py").write_text(textwrap.dedent(LOADS.format(lines)))
    repository.load("asks")
    until(done.exists, "the end of the thread's call")


@pytest.mark.parametrize("opened", ["inline"], indirect=True)
def test_models_can_load_models_only_with_explicit_control(opened):
    _, calls = opened(is_explicit=False)
    for change in (
        lambda: calls.load("asked", None, {}),
        lambda: calls.unload("asked", unload_dependents=False),
    ):
        with pytest.raises(ServerError, match="explicit model load / unload is not") as caught:
            change()
        assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize("opened", ["inline"], indirect=True)
def test_names_outside_the_repository_are_refused(opened):
    _, calls = opened()
    for name in ("", ".", "..", "../asked", "asked/1", "missing"):
        with pytest.raises(ServerError, match="failed to poll from model repository"):
            calls.load(name, None, {})


def test_a_failed_call_does_not_count_as_waiting():
    """A defect of the called model's scheduler does not start a wait."""

    class Loaded:
        def __init__(self, name):
            self.group = InstanceGroup(name, 1)
            self.config = SimpleNamespace(name=name)
            self.breaks = False

        def infer(self, request):
            if self.breaks:
                raise ValueError("a defect")

    class Models:
        def find(self, name, version):
            return loaded[name]

    loaded = {"a": Loaded("a"), "b": Loaded("b")}
    calls = BlsCalls(ManualClock())
    calls.connect(Models(), is_explicit=False)
    one, other = (calls.for_instance(Member(model.group, name)) for name, model in loaded.items())
    loaded["b"].breaks = True
    with pytest.raises(ValueError, match="a defect"):
        one.infer(a_request(model_name="b"), halted=[])
    other.infer(a_request(model_name="a"), halted=[])
    loaded["b"].breaks = False
    with pytest.raises(ServerError, match="wait for each other"):
        one.infer(a_request(model_name="b"), halted=[])
