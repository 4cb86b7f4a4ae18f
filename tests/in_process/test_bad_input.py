"""Wrong use of the API ends with an error of a documented class: nothing hangs, nothing crashes."""

import asyncio
import gc
import logging
import os
import queue
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from in_process.cases import write_models

import tritonserver as ts

EXPLICIT = ts.ModelControlMode.EXPLICIT
COUNT = {"COUNT": np.array([2], np.int32)}
#: A model that waits for an event before it answers, and reports its end by another one.
GATED = """
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.events = threading.gates

    def execute(self, requests):
        self.events["open"].wait(60)
        count = [pb_utils.get_input_tensor_by_name(each, "COUNT").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("N", each)]) for each in count]

    def finalize(self):
        self.events["finalized"].set()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = write_models(tmp_path_factory.mktemp("models"))
    gated = root / "gated"
    (gated / "1").mkdir(parents=True)
    config = (root / "stream" / "config.pbtxt").read_text()
    (gated / "config.pbtxt").write_text(config.replace("decoupled: true", "decoupled: false"))
    (gated / "1" / "model.py").write_text(GATED)
    return str(root)


@pytest.fixture
def gates(monkeypatch):
    made = {"open": threading.Event(), "finalized": threading.Event()}
    monkeypatch.setattr(threading, "gates", made, raising=False)
    yield made
    made["open"].set()


@pytest.fixture(scope="module")
def server(root):
    started = start(root, "echo", "stream")
    yield started
    started.stop()


def start(root, *models, **options):
    mode = {"model_control_mode": EXPLICIT, "startup_models": list(models)}
    return ts.Server(model_repository=root, **mode, **options).start(wait_until_ready=True)


# -- the life of servers


def test_a_lost_server_finalizes_its_models(root, gates):
    server = start(root, "gated")
    model = server.model("gated")
    del server
    gc.collect()
    gates["open"].set()
    assert len(list(model.infer(inputs=COUNT))) == 1  # the model keeps the server
    del model
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "stop of a lost server":
            thread.join()
    assert gates["finalized"].is_set()


def test_requests_that_a_stop_abandons_end_with_an_error(root, gates):
    server = start(root, "gated", exit_timeout=0)
    responses = queue.SimpleQueue()
    waiting = server.model("gated").infer(inputs=COUNT, response_queue=responses)
    with pytest.raises(ts.InternalError, match="Exit timeout expired"):
        server.stop()
    with pytest.raises(ts.UnavailableError, match="Server stopped before the response"):
        next(waiting)
    assert list(waiting) == []
    assert responses.get_nowait().final
    with pytest.raises(ts.InvalidArgumentError, match="Server not started"):
        server.stop()


def test_models_of_a_stopped_server_are_unavailable_and_the_server_starts_again(root):
    server = start(root, "stream")
    model = server.model("stream")
    server.stop()
    for call in (model.ready, model.metadata, lambda: model.infer(inputs=COUNT)):
        with pytest.raises(ts.UnavailableError, match="Server not ready"):
            call()
    with pytest.raises(ts.InvalidArgumentError, match="Server not started"):
        ts.Model(server, "stream")
    server.start()
    assert len(list(server.model("stream").infer(inputs=COUNT))) == 3
    server.stop()


def test_two_servers_run_in_one_process(root, server):
    other = start(root, "stream", server_id="other")
    family = ts.MetricFamily(ts.MetricKind.GAUGE, "shared_gauge", "Both report it")
    metric = ts.Metric(family)
    metric.set_value(3)
    assert [each.metadata()["name"] for each in (server, other)] == ["triton", "other"]
    assert all("shared_gauge 3" in each.metrics() for each in (server, other))
    assert not other.model("echo").ready()
    other.stop()
    assert len(list(server.model("stream").infer(inputs=COUNT))) == 3
    del metric, family
    gc.collect()
    assert "shared_gauge" not in server.metrics()


def test_metrics_are_collected_while_the_event_loop_is_busy(server):
    release, released = threading.Event(), []
    loop = server._engine.running.loop
    loop.call_soon_threadsafe(lambda: released.append(release.wait(10)))
    assert "nv_inference_count" in server.metrics()
    assert not released
    release.set()


def test_a_forked_process_cannot_use_the_server(server):
    waiting = server.model("stream").infer(inputs=COUNT)
    calls = (server.ready, server.stop, server.metrics, lambda: next(waiting), server.models)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if not child:
        names = []
        for call in calls:
            try:
                call()
            except Exception as error:
                names.append(type(error).__name__)
        os.write(writing, " ".join(names).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read().split() == ["UnavailableError"] * len(calls)
    os.waitpid(child, 0)
    assert len(list(waiting)) == 3


def test_a_process_that_stops_no_server_exits_silently(root):
    # Only a process of its own shows what happens at the exit of the interpreter.
    code = f"""if True:
        import numpy, tritonserver
        mode = tritonserver.ModelControlMode.EXPLICIT
        options = dict(model_repository={root!r}, startup_models=["stream"])
        server = tritonserver.Server(model_control_mode=mode, **options).start()
        count = {{"COUNT": numpy.ones(1, numpy.int32)}}
        waiting = server.model("stream").infer(inputs=count)
        kept = numpy.from_dlpack(next(waiting).outputs["N"])
    """
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- the log


def test_log_callback_receives_records_and_its_exceptions_are_suppressed(root, capsys):
    records = []

    def callback(*record):
        records.append(record)
        raise RuntimeError("raised in the callback")

    server = start(root, "stream", log_info=True, log_callback=callback)
    server.stop()
    level, file, line, when, text = records[0]
    assert (level, text) == (ts.LogLevel.INFO, "loading: stream:1")
    assert (file, type(line), type(when)) == ("rollout.py", int, int)
    assert "RuntimeError: raised in the callback" in capsys.readouterr().err


def test_log_callback_can_neither_block_the_server_nor_call_itself(root):
    found, refused, models = [], [], []
    log = logging.getLogger("reference_server")

    def callback(level, file, line, when, text):
        log.info("a record of the callback itself")
        other = threading.Thread(target=log.info, args=("a record of another thread",))
        if text.startswith("loading"):
            other.start()
            other.join()  # would wait for a lock of the log
        found.append(text)
        for model in models:
            try:
                model.ready()
            except ts.UnavailableError as error:
                refused.append(str(error))

    server = ts.Server(
        model_repository=root,
        model_control_mode=EXPLICIT,
        startup_models=["stream"],
        log_info=True,
        log_callback=callback,
    )
    server.start()
    models.append(server.model("stream"))
    server.stop()
    assert "a record of another thread" in found
    assert "a record of the callback itself" not in found
    # The event loop's thread, which must not wait for itself, logs the shutdown.
    assert "call on the thread of its event loop" in refused[0]


def test_the_log_is_as_before_when_the_server_has_stopped(root, tmp_path):
    logger = logging.getLogger("reference_server")
    before = logger.handlers[:], logger.propagate, logger.level
    file = tmp_path / "log"
    start(root, "stream", log_verbose=1, log_file=str(file)).stop()
    assert (logger.handlers, logger.propagate, logger.level) == before
    assert "successfully loaded 'stream'" in file.read_text()
    with pytest.raises(ts.InternalError, match="Failed to open log file"):
        start(root, log_file=str(tmp_path / "missing" / "log"))


# -- options


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"log_callback": 1}, TypeError, "log_callback: found 1; expected a function or None"),
        ({"startup_models": "stream"}, TypeError, "startup_models: found str 'stream'"),
        ({"cache_config": {"local": 1}}, TypeError, "value of cache_config: found int 1"),
        ({"exit_timeout": 2**32}, TypeError, "exit_timeout: found 4294967296; expected an integer"),
        ({"metrics_interval": 2.5}, TypeError, "metrics_interval: found 2.5; expected an integer"),
        ({"cache_config": {"redis": {"size": 1}}}, ts.InvalidArgumentError, "libtritoncache_redis"),
        ({"startup_models": ["nothing"]}, ts.InternalError, "failed to load all models"),
        ({"startup_models": ["broken"]}, ts.InternalError, "failed to load all models"),
        ({"model_repository": ["/nowhere"]}, ts.InternalError, "/nowhere"),
    ],
)
def test_options_are_checked_at_the_start(root, options, error, text):
    given = {"model_repository": root, "model_control_mode": EXPLICIT} | options
    server = ts.Server(**given)
    with pytest.raises(error, match=text):
        server.start()
    with pytest.raises(ts.InvalidArgumentError, match="Server not started"):
        server.ready()


def test_options_reach_the_server(root):
    server = ts.Server(
        model_repository=[root],
        server_id="named",
        model_control_mode=ts.ModelControlMode.POLL,
        exit_on_error=False,
        strict_readiness=False,
        rate_limiter_mode=ts.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[ts.RateLimiterResource("R", 2, 0)],
        cache_config={"local": {"size": 1 << 20}},
        metrics_configuration={"": {"summary_latencies": "true"}},
        metrics=False,
    ).start()
    assert server.metadata()["name"] == "named"
    assert server.models()["broken", 1].state == "UNAVAILABLE"
    assert server.ready()
    text = server.metrics()
    assert "nv_cache_num_entries_per_model" in text or "nv_cache" in text
    assert "nv_inference_request_summary_us" in text
    assert "nv_cpu_utilization" not in text
    assert server.poll_model_repository() is None
    with pytest.raises(ts.UnsupportedError, match="before the start"):
        server.register_model_repository(root)
    server.stop()


# -- requests and tensors


def test_inputs_of_any_layout_arrive(server):
    array = np.arange(6, dtype=">f4").reshape(3, 2).T
    (response,) = server.model("echo").infer(inputs={"FLOAT": array})
    assert np.array_equal(np.from_dlpack(response.outputs["FLOAT_OUT"]), array)


def test_bytes_lie_at_the_address_in_wire_form(server):
    (response,) = server.model("echo").infer(inputs={"TEXT": [["héllo\0"]]})
    tensor = response.outputs["TEXT_OUT"]
    text = "héllo\0".encode()
    memory = (np.ctypeslib.ctypes.c_char * tensor.size).from_address(tensor.data_ptr)
    assert bytes(memory) == len(text).to_bytes(4, "little") + text
    assert tensor.to_bytes_array().tolist() == [[text]]


def test_memory_that_is_no_tensor_is_refused():
    text = ts.Tensor.from_bytes_array(["abc"])
    text.shape = [2]
    with pytest.raises(ts.InvalidArgumentError, match="BYTES tensor of shape"):
        text.to_bytes_array()
    gpu = ts.MemoryBuffer(0, ts.MemoryType.GPU, 0, 4, None)
    tensor = ts.Tensor(ts.DataType.FP32, [1], gpu)
    for use in (tensor.__dlpack__, tensor.to_host, tensor.bytes_view):
        with pytest.raises(ts.UnsupportedError):
            use()
    half = ts.Tensor(ts.DataType.BF16, [1], ts.Tensor.from_dlpack(np.zeros(1)).memory_buffer)
    with pytest.raises(ts.InvalidArgumentError, match="BF16 to DLPack"):
        half.__dlpack__()


def test_a_full_queue_does_not_keep_responses_from_the_iterator(server):
    responses = queue.Queue(maxsize=1)
    found = list(server.model("stream").infer(inputs=COUNT, response_queue=responses))
    assert [each.final for each in found] == [False, False, True]
    assert responses.get_nowait() is found[0]


def test_a_task_that_gives_up_loses_no_response(root, gates):
    server = start(root, "gated")

    async def ask():
        responses = server.model("gated").async_infer(inputs=COUNT)
        impatient = asyncio.ensure_future(anext(responses))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        gates["open"].set()
        return [each.final async for each in responses]

    assert asyncio.run(ask()) == [True]
    server.stop()


def test_the_queue_of_an_event_loop_that_has_ended_is_ignored(root, gates):
    server = start(root, "gated")

    async def ask():
        return server.model("gated").async_infer(inputs=COUNT, response_queue=asyncio.Queue())

    responses = asyncio.run(ask())
    gates["open"].set()

    async def read():
        return [each.final async for each in responses]

    assert asyncio.run(read()) == [True]
    server.stop()


def test_a_cancelled_request_ends(root, gates):
    server = start(root, "gated")
    model = server.model("gated")
    first = model.infer(inputs=COUNT)
    second = model.infer(inputs=COUNT)
    second.cancel()
    gates["open"].set()
    with pytest.raises(ts.UnknownError):
        next(second)
    assert [each.error for each in first] == [None]
    first.cancel()
    server.stop()
