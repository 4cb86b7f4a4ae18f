"""Tests of the effects of models on others in the same process: the table of docs/hosts.md."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from server.backends import kit

from reference_server.backends.process_host.instance import ProcessInstance, Supervision
from reference_server.backends.python_host.api.server_access import NO_CALLS
from reference_server.core.health import Health
from reference_server.core.ports import SystemClock
from reference_server.observability.metric_registry import MetricRegistry

pytestmark = pytest.mark.brute_force

PAGE = Path(__file__).resolve().parents[3] / "docs" / "hosts.md"
#: Runs the code that it is given, and answers with what it leaves in R. Names last.
MODEL = """
import helper
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            globals()["R"] = None
            exec(code, globals())
            text = np.array([str(globals()["R"])], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
        return responses
"""


@dataclass(frozen=True)
class Row:
    """One model runs `change`; another runs `look` before and after it; then `undo` runs.

    `inline` and `process` are True if the result of `look` changes on that host.
    """

    change: str
    look: str
    undo: str = "pass"
    inline: bool = True
    process: bool = False


TRIES = """
import fcntl
try:
    with open(FILE, "w") as file: fcntl.{}(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    R = "let in"
except BlockingIOError:
    R = "kept out"
"""
#: By what the page calls them.
ROWS = {
    "globals of `model.py`": Row("SETTING = 1", "R = globals().get('SETTING')", inline=False),
    "modules beside `model.py`, with any names": Row(
        "helper.setting = 1", "R = getattr(helper, 'setting', 0)", inline=False
    ),
    "`asyncio.get_event_loop()`": Row(
        "import asyncio; asyncio.get_event_loop().mine = 1",
        "import asyncio; R = hasattr(asyncio.get_event_loop(), 'mine')",
        inline=False,
    ),
    "`threading.local`, `contextvars`": Row(
        "import decimal; decimal.getcontext().prec = 3",
        "import decimal; R = decimal.getcontext().prec",
        "decimal.getcontext().prec = 28",
        inline=False,
    ),
    "`os.environ`": Row(
        "import os; os.environ['HOSTS_PAGE'] = '1'",
        "import os; R = os.environ.get('HOSTS_PAGE')",
        "del os.environ['HOSTS_PAGE']",
    ),
    "`os.chdir`, `os.umask`": Row(
        "import os; BEFORE = os.getcwd(); os.chdir('/')",
        "import os; R = os.getcwd()",
        "os.chdir(BEFORE)",
    ),
    "POSIX locks (`fcntl.lockf`)": Row(
        "import fcntl; HELD = open(FILE, 'w'); fcntl.lockf(HELD, fcntl.LOCK_EX)",
        TRIES.format("lockf"),
        "HELD.close()",
        inline=False,
        process=True,
    ),
    "locks of open files (`fcntl.flock`, `filelock`)": Row(
        "import fcntl; HELD = open(FILE, 'w'); fcntl.flock(HELD, fcntl.LOCK_EX)",
        TRIES.format("flock"),
        "HELD.close()",
        process=True,
    ),
    "`signal.signal`": Row(
        "import signal\ntry: signal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
        "except ValueError: pass",
        "import signal; R = signal.getsignal(signal.SIGUSR2)",
        inline=False,
    ),
    "filters of `warnings`": Row(
        "import warnings; BEFORE = warnings.filters[:]; warnings.simplefilter('ignore')",
        "import warnings; R = len(warnings.filters)",
        "warnings.filters[:] = BEFORE",
    ),
    "`logging.basicConfig`, levels of loggers": Row(
        "import logging; logging.getLogger('page').setLevel(7)",
        "import logging; R = logging.getLogger('page').level",
        "logging.getLogger('page').setLevel(0)",
    ),
    "`sys.path`": Row(
        "import sys; sys.path.append('/page')",
        "import sys; R = '/page' in sys.path",
        "sys.path.remove('/page')",
    ),
    "`sys.stdout` replaced": Row(
        "import io, sys; BEFORE = sys.stdout; sys.stdout = io.StringIO()",
        "import sys; R = type(sys.stdout).__name__",
        "sys.stdout = BEFORE",
    ),
    "`atexit`": Row(
        "import atexit; atexit.register(int)",
        "import atexit; R = atexit._ncallbacks()",
        "atexit.unregister(int)",
    ),
    "`faulthandler`": Row(
        "import faulthandler; BEFORE = faulthandler.is_enabled()\n"
        "faulthandler.disable() if BEFORE else faulthandler.enable(open('/dev/null', 'w'))",
        "import faulthandler; R = faulthandler.is_enabled()",
        "faulthandler.enable() if BEFORE else faulthandler.disable()",
    ),
    "functions of installed modules replaced": Row(
        "import wave; BEFORE = wave.open; wave.open = None",
        "import wave; R = wave.open is None",
        "wave.open = BEFORE",
    ),
    "seeds of `random` and `numpy.random`": Row(
        "import random; BEFORE = random.getstate(); random.seed(7)",
        "import random; R = random.getstate()",
        "random.setstate(BEFORE)",
    ),
    "`socket.setdefaulttimeout`, `torch.set_default_dtype`": Row(
        "import socket; socket.setdefaulttimeout(77)",
        "import socket; R = socket.getdefaulttimeout()",
        "socket.setdefaulttimeout(None)",
    ),
    "the GIL's switch interval, `gc.disable`, limits of recursion": Row(
        "import sys; BEFORE = sys.getrecursionlimit(); sys.setrecursionlimit(BEFORE + 1)",
        "import sys; R = sys.getrecursionlimit()",
        "sys.setrecursionlimit(BEFORE)",
    ),
}


class Models:
    """Two models on separate threads."""

    def __init__(self, make, folder):
        self._threads = [ThreadPoolExecutor(1) for _ in range(2)]
        files = {"1/helper.py": ""}
        self._models = [make(kit.model_file(folder, MODEL, files, name=name)) for name in "ab"]
        self._each("open")

    def _each(self, verb):
        for thread, model in zip(self._threads, self._models, strict=True):
            thread.submit(getattr(model, verb)).result()

    def does(self, number, code):
        array = kit.np.array([code.encode()], dtype=object)
        return self._threads[number].submit(kit.said, self._models[number], CODE=array).result()

    def close(self):
        self._each("close")
        for thread in self._threads:
            thread.shutdown()


def in_a_process(file):
    return ProcessInstance(
        kit.spec(file), Supervision(), SystemClock(), MetricRegistry(), NO_CALLS, Health()
    )


@pytest.fixture(scope="module", params=["inline", "process"])
def host(request, tmp_path_factory):
    make = kit.instance if request.param == "inline" else in_a_process
    models = Models(make, tmp_path_factory.mktemp("sharing"))
    yield request.param, models
    models.close()


@pytest.mark.parametrize("name", ROWS)
def test_effects_on_other_models_are_as_the_page_says(host, name, tmp_path):
    where, models = host
    row = ROWS[name]
    file = f"FILE = {str(tmp_path / 'lock')!r}\n"
    before = models.does(1, file + row.look)
    models.does(0, file + row.change)
    try:
        after = models.does(1, file + row.look)
    finally:
        models.does(0, row.undo)
    assert (before != after) is getattr(row, where)


def test_the_page_has_a_row_for_each():
    said = {True: "shared", False: "own"}
    table = dict(
        re.findall(r"^\| (.+?) \| (shared|own|no effect) \|", PAGE.read_text(), re.MULTILINE)
    )
    # Locks without effect, and handlers that no model may install.
    special = {"POSIX locks (`fcntl.lockf`)": "no effect", "`signal.signal`": "no effect"}
    expected = {name: special.get(name, said[row.inline]) for name, row in ROWS.items()}
    assert {name: table.get(name) for name in ROWS} == expected
