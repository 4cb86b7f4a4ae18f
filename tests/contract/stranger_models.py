"""Models with patterns from public repositories; the lines of HEAD precede each model."""

#: The first lines of all files.
HEAD = """\
import numpy as np
import triton_python_backend_utils as pb_utils


def respond(requests, text):
    row = np.array([text], dtype=object)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", row)]) for _ in requests]
"""

#: The rest of each file, by name of the model.
PATTERNS = {
    # A signal handler, installed by a library that expects the main thread.
    "alarm": """
import signal
class TritonPythonModel:
    def execute(self, requests):
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        return respond(requests, "installed")
""",
    # argparse, from the script that the model once was.
    "argument_parser": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--beams", type=int, default=4)
arguments = parser.parse_args()
class TritonPythonModel:
    def execute(self, requests):
        return respond(requests, str(arguments.beams))
if __name__ == "__main__":
    raise SystemExit("not a script any more")
""",
    # asyncio.run in `execute`.
    "asyncio_run": """
import asyncio
async def fetch():
    return await asyncio.to_thread(lambda: "fetched")
class TritonPythonModel:
    def execute(self, requests):
        return respond(requests, asyncio.run(fetch()))
""",
    # Calls to two other models at once, from `async def execute`.
    "calls_neighbours": """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        row = pb_utils.Tensor("X", np.array([3], np.float32))
        answers = await asyncio.gather(
            *(
                pb_utils.InferenceRequest(
                    model_name=name, inputs=[row], requested_output_names=["TEXT"]
                ).async_exec()
                for name in ("lazy_import", "worker_thread")
            )
        )
        told = [
            pb_utils.get_output_tensor_by_name(answer, "TEXT").as_numpy()[0].decode()
            for answer in answers
        ]
        return respond(requests, str(told))
""",
    # A model call from a forked child.
    "child_asks_the_server": """
import multiprocessing
fork = multiprocessing.get_context("fork")
def call(end):
    row = pb_utils.Tensor("X", np.ones(1, np.float32))
    request = pb_utils.InferenceRequest(
        model_name="lazy_import", inputs=[row], requested_output_names=["TEXT"]
    )
    try:
        answer = request.exec()
        end.send(pb_utils.get_output_tensor_by_name(answer, "TEXT").as_numpy()[0].decode())
    except pb_utils.TritonModelException as error:
        end.send(str(error))
class TritonPythonModel:
    def execute(self, requests):
        end, childs = fork.Pipe()
        process = fork.Process(target=call, args=(childs,))
        process.start()
        text = end.recv()
        process.join()
        return respond(requests, text)
""",
    # A forked child that logs and makes tensors as its model does.
    "child_calls_back": """
import multiprocessing
fork = multiprocessing.get_context("fork")
def child(end):
    pb_utils.Logger.log_info("in the child")
    end.send(pb_utils.Tensor("T", np.ones(3, np.float32)).shape())
class TritonPythonModel:
    def execute(self, requests):
        end, childs = fork.Pipe()
        process = fork.Process(target=child, args=(childs,))
        process.start()
        text = str(end.recv())
        process.join()
        return respond(requests, text)
""",
    # contextvars and threading.local, set in `initialize` and read in `execute`.
    "context_variables": """
import contextvars
import threading
tenant = contextvars.ContextVar("tenant", default="none")
local = threading.local()
class TritonPythonModel:
    def initialize(self, args):
        tenant.set("first")
        local.session = "second"
    def execute(self, requests):
        return respond(requests, f"{tenant.get()} {local.session}")
""",
    # sqlite3 in memory: opened in `initialize`, and used by the same thread in `execute`.
    "database": """
import sqlite3
class TritonPythonModel:
    def initialize(self, args):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table seen (value real)")
    def execute(self, requests):
        for request in requests:
            row = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.database.executemany("insert into seen values (?)", [(float(v),) for v in row])
        total = self.database.execute("select sum(value) from seen").fetchone()
        return respond(requests, str(total))
    def finalize(self):
        self.database.close()
""",
    # os.environ, set before a library reads it, and given to a program.
    "environment": """
import os
import subprocess
import sys
os.environ["STRANGERS_HOME"] = "/models/cache"
class TritonPythonModel:
    def execute(self, requests):
        program = "import os; print(os.environ['STRANGERS_HOME'])"
        told = subprocess.check_output([sys.executable, "-c", program], text=True)
        return respond(requests, told.strip())
""",
    # os.fork and os.waitpid: a child that computes, and ends with a code.
    "forked_child": """
import os
class TritonPythonModel:
    def execute(self, requests):
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
        return respond(requests, str(os.waitstatus_to_exitcode(status)))
""",
    # Helpers beside the model: `import helper`, `from . import`, and a package.
    "helper_module": """
import helper
from package.names import NAME
from . import helper as same
class TritonPythonModel:
    def execute(self, requests):
        return respond(requests, f"{helper.WHO} {same.WHO} {NAME}")
""",
    # A `helper.py` whose content differs from another model's `helper.py`.
    "helper_of_the_same_name": """
import helper
class TritonPythonModel:
    def execute(self, requests):
        return respond(requests, helper.WHO)
""",
    # Imports in `initialize` and `execute`, by name and by statement.
    "lazy_import": """
class TritonPythonModel:
    def initialize(self, args):
        import importlib
        self.decimal = importlib.import_module("decimal")
    def execute(self, requests):
        from fractions import Fraction
        return respond(requests, f"{self.decimal.Decimal('1.50')} {Fraction(3, 6)}")
""",
    # logging.basicConfig, a logger of the module, and warnings that are caught.
    "logging_set_up": """
import logging
import warnings
logging.basicConfig(level=logging.INFO)
logger = logging.getLogger(__name__)
class TritonPythonModel:
    def execute(self, requests):
        logger.info("executing")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("old")
        told = (
            f"{logger.name} {logger.isEnabledFor(logging.INFO)} {[str(w.message) for w in caught]}"
        )
        return respond(requests, told)
""",
    # asyncio.get_event_loop() in `initialize`, run in `execute`.
    "loop_in_initialize": """
import asyncio
async def fetch(number):
    await asyncio.sleep(0)
    return number
class TritonPythonModel:
    def initialize(self, args):
        self.loop = asyncio.get_event_loop()
    def execute(self, requests):
        fetched = self.loop.run_until_complete(asyncio.gather(fetch(1), fetch(2)))
        return respond(requests, str(fetched))
""",
    # An event loop on a thread of the model's own, as engines for language models have one.
    "loop_on_a_thread": """
import asyncio
import threading
class TritonPythonModel:
    def initialize(self, args):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
    def execute(self, requests):
        slept = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "slept"), self.loop)
        return respond(requests, slept.result())
    def finalize(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
""",
    # The arguments of `initialize`: paths, names, and the configuration with its parameters.
    "model_arguments": """
import json
import os
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        folder = os.path.join(args["model_repository"], args["model_version"])
        output = pb_utils.get_output_config_by_name(config, "TEXT")
        self.told = [
            config["parameters"]["max_length"]["string_value"],
            os.path.isfile(os.path.join(folder, "model.py")),
            args["model_instance_name"],
            pb_utils.triton_string_to_numpy(output["data_type"]).__name__,
        ]
    def execute(self, requests):
        return respond(requests, str(self.told))
""",
    # Optional modules: a model checks that a module is available before it imports it.
    "module_search": """
import importlib.util
NAMES = ("helper", "no_such_module", "json")
class TritonPythonModel:
    def execute(self, requests):
        found = [name for name in NAMES if importlib.util.find_spec(name) is not None]
        import helper
        return respond(requests, f"{found} {helper.WHO}")
""",
    # A model with its own packages, in an archive of a Python environment beside its code.
    "own_environment": """
import os
import sys
import own_package
class TritonPythonModel:
    def execute(self, requests):
        folder = os.path.realpath(sys.prefix)
        is_inside = os.path.realpath(own_package.__file__).startswith(folder + os.sep)
        is_activated = os.path.realpath(os.environ["OWN_ENVIRONMENT"]) == folder
        text = f"{own_package.NAME} {is_inside} {is_activated} {os.access(folder, os.W_OK)}"
        return respond(requests, text)
""",
    # The model's own module, found by its name.
    "own_module": """
import sys
SETTING = "own"
class TritonPythonModel:
    def execute(self, requests):
        module = sys.modules[__name__]
        return respond(requests, f"{__name__} {module.SETTING} {module.__file__ == __file__}")
""",
    # sys.path with the folder of the model's sources, then an import from there.
    "path_edit": """
import os
import sys
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))
import text_tools
class TritonPythonModel:
    def execute(self, requests):
        return respond(requests, text_tools.clean(" a  b "))
""",
    # A file that is loaded by its path, with importlib.util.
    "plugin_file": """
import importlib.util
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        path = Path(__file__).with_name("plugin.py")
        spec = importlib.util.spec_from_file_location("plugin", path)
        self.plugin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.plugin)
    def execute(self, requests):
        return respond(requests, self.plugin.run())
""",
    # A multiprocessing.Pool from `initialize` that maps a function over objects of the model.
    "pool_map": """
import multiprocessing
class Document:
    def __init__(self, words):
        self.words = words
def count(document):
    return Document(len(document.words))
class TritonPythonModel:
    def initialize(self, args):
        self.pool = multiprocessing.get_context("fork").Pool(1)
    def execute(self, requests):
        documents = [Document(["a", "b"]), Document(["c"])]
        counted = [document.words for document in self.pool.map(count, documents)]
        return respond(requests, str(counted))
    def finalize(self):
        self.pool.close()
        self.pool.join()
""",
    # A ProcessPoolExecutor that is made in `initialize` and runs a function of the model.
    "process_pool_executor": """
from concurrent.futures import ProcessPoolExecutor
def normalise(row):
    return [value / 2 for value in row]
class TritonPythonModel:
    def initialize(self, args):
        self.executor = ProcessPoolExecutor(max_workers=1)
    def execute(self, requests):
        responses = []
        for request in requests:
            row = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().tolist()
            text = str(self.executor.submit(normalise, row).result())
            tensor = pb_utils.Tensor("TEXT", np.array([text], dtype=object))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses
    def finalize(self):
        self.executor.shutdown()
""",
    # multiprocessing.shared_memory, filled by a child.
    "shared_memory_block": """
import multiprocessing
from multiprocessing import shared_memory
fork = multiprocessing.get_context("fork")
def fill(name):
    block = shared_memory.SharedMemory(name)
    np.ndarray(4, np.uint8, block.buf)[:] = 5
    block.close()
class TritonPythonModel:
    def initialize(self, args):
        self.block = shared_memory.SharedMemory(create=True, size=4)
    def execute(self, requests):
        process = fork.Process(target=fill, args=(self.block.name,))
        process.start()
        process.join()
        return respond(requests, str(bytes(self.block.buf[:4])))
    def finalize(self):
        self.block.close()
        self.block.unlink()
""",
    # A signal handler that is installed only if the model runs on the main thread.
    "signal_handler": """
import signal
import threading
class TritonPythonModel:
    def initialize(self, args):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, lambda number, frame: None)
        self.told = "installed if possible"
    def execute(self, requests):
        return respond(requests, self.told)
""",
    # A pool of spawned processes, as CUDA requires; each imports the model's file.
    "spawned_pool": """
import multiprocessing
def square(number):
    return number * number
class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return respond(requests, str(pool.map(square, [2, 3])))
""",
    # A subprocess whose output is read.
    "subprocess_run": """
import subprocess
import sys
class TritonPythonModel:
    def execute(self, requests):
        command = [sys.executable, "-c", "import sys; print(sys.argv[1:], sys.stdin.read())", "a"]
        ran = subprocess.run(command, input="b", capture_output=True, text=True, check=True)
        return respond(requests, ran.stdout)
""",
    # A temporary folder with a file lock, cleaned up in `finalize` and by atexit.
    "temporary_folder": """
import atexit
import fcntl
import tempfile
from pathlib import Path
class TritonPythonModel:
    def initialize(self, args):
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.folder.cleanup)
    def execute(self, requests):
        with (Path(self.folder.name) / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return respond(requests, str(sorted(p.name for p in Path(self.folder.name).iterdir())))
    def finalize(self):
        self.folder.cleanup()
""",
    # A child that sleeps, ended by Process.terminate().
    "terminated_child": """
import multiprocessing
import time
class TritonPythonModel:
    def execute(self, requests):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(timeout=3)
        text = f"exit code {child.exitcode}"
        child.kill()
        child.join()
        return respond(requests, text)
""",
    # Labels beyond ASCII in a file that is opened without an encoding.
    "text_file": """
import os
class TritonPythonModel:
    def execute(self, requests):
        folder = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(folder, "labels.txt")) as file:
            text = file.read().strip()
        return respond(requests, text)
""",
    # Objects of the model's classes, pickled and unpickled by the threads of an executor.
    "thread_pool_pickle": """
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
@dataclass
class Entry:
    name: str
class TritonPythonModel:
    def initialize(self, args):
        self.executor = ThreadPoolExecutor(max_workers=2)
    def execute(self, requests):
        wire = self.executor.submit(pickle.dumps, Entry("a")).result()
        entry = self.executor.submit(pickle.loads, wire).result()
        return respond(requests, f"{entry} {type(entry) is Entry}")
    def finalize(self):
        self.executor.shutdown()
""",
    # An exception in a helper's helper: its type, its text and its lines reach the client.
    "uncaught_exception": """
import json
def parse(text):
    return json.loads(text)
class TritonPythonModel:
    def execute(self, requests):
        return parse("{")
""",
    # A worker process with a queue each way, ended by a sentinel in `finalize`.
    "worker_process": """
import multiprocessing
fork = multiprocessing.get_context("fork")
def work(tasks, results):
    for row in iter(tasks.get, None):
        results.put(sum(row))
class TritonPythonModel:
    def initialize(self, args):
        self.tasks, self.results = fork.Queue(), fork.Queue()
        self.worker = fork.Process(target=work, args=(self.tasks, self.results))
        self.worker.start()
    def execute(self, requests):
        responses = []
        for request in requests:
            self.tasks.put(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().tolist())
            text = np.array([str(self.results.get(timeout=20))], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
    def finalize(self):
        self.tasks.put(None)
        self.worker.join()
""",
    # A thread of the model that takes work from a queue.
    "worker_thread": """
import queue
import threading
from concurrent.futures import Future
class TritonPythonModel:
    def initialize(self, args):
        self.work = queue.Queue()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
    def run(self):
        for row, future in iter(self.work.get, None):
            future.set_result(row * 2)
    def execute(self, requests):
        responses = []
        for request in requests:
            future = Future()
            self.work.put((pb_utils.get_input_tensor_by_name(request, "X").as_numpy(), future))
            text = np.array([str(future.result().tolist())], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
    def finalize(self):
        self.work.put(None)
        self.thread.join()
""",
    # DLPack without a copy, and a view that is written to.
    "zero_copy": """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            row = np.from_dlpack(tensor)
            array = tensor.as_numpy()
            array += 1
            text = np.array([f"{row.dtype} {row.shape} {array.tolist()}"], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
""",
}
