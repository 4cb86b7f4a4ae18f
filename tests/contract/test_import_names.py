"""Names of the model API during the import of a model's file, on both hosts and the real server.

Triton adds the C++ names to `triton_python_backend_utils` after the model's file has run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.recordings import Recording, asked_live, recorded_rows, repository_folder
from contract.wire import index
from support.servers import start_tritonserver

from reference_server.testing import open_repository

pytestmark = pytest.mark.oracle

HELD_BACK = (
    *("Tensor", "InferenceRequest", "InferenceResponse", "TritonError", "TritonModelException"),
    *("Logger", "MetricFamily", "PreferredMemory", "TRITONSERVER_MEMORY_CPU"),
    *("TRITONSERVER_MEMORY_GPU", "get_model_dir", "is_model_ready", "load_model", "unload_model"),
)
#: One of each kind; `lists_the_names` has all. Each model starts a process.
READ = ("Tensor", "Logger", "TRITONSERVER_MEMORY_CPU", "load_model")
CLASS = "class TritonPythonModel:\n    def execute(self, requests{}){}:\n        return []\n"
PLAIN = CLASS.format("", "")
PB_UTILS = "import triton_python_backend_utils as pb_utils\n"
FUTURE = "from __future__ import annotations\n"

#: The file of each model, by the model's name.
PATTERNS: dict[str, str] = {
    **{f"reads_{name}": f"{PB_UTILS}x = pb_utils.{name}\n{PLAIN}" for name in READ},
    "imports_a_class": f"from triton_python_backend_utils import Tensor\n{PLAIN}",
    "imports_two": f"from triton_python_backend_utils import ModelConfig, Logger\n{PLAIN}",
    "imports_under_a_name": f"from triton_python_backend_utils import Logger as log\n{PLAIN}",
    "imports_all": f"from triton_python_backend_utils import *\nx = Tensor\n{PLAIN}",
    "imports_all_of_python": f"from triton_python_backend_utils import *\nx = np.int8\n{PLAIN}",
    "imports_natively": f"from c_python_backend_utils import Tensor, MetricKind\n{PLAIN}",
    "annotates": PB_UTILS + CLASS.format(": list[pb_utils.InferenceRequest]", ""),
    "annotates_a_result": PB_UTILS + CLASS.format("", " -> list[pb_utils.InferenceResponse]"),
    "annotates_later": FUTURE
    + PB_UTILS
    + CLASS.format(": list[pb_utils.InferenceRequest]", " -> list[pb_utils.InferenceResponse]"),
    "annotates_in_text": PB_UTILS + CLASS.format(": 'list[pb_utils.InferenceRequest]'", ""),
    "annotates_a_variable": f"{PB_UTILS}x: pb_utils.Tensor\n{PLAIN}",
    "annotates_a_variable_later": f"{FUTURE}{PB_UTILS}x: pb_utils.Tensor\n{PLAIN}",
    "annotates_a_local": f"{PB_UTILS}def f():\n    x: pb_utils.Tensor = None\nf()\n{PLAIN}",
    "annotates_for_checkers": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    f"    from triton_python_backend_utils import Tensor\n{PLAIN}",
    "defaults": f"{PB_UTILS}def f(m=pb_utils.TRITONSERVER_MEMORY_CPU): pass\n{PLAIN}",
    "derives": f"{PB_UTILS}class E(pb_utils.TritonModelException): pass\n{PLAIN}",
    "class_attribute": f"{PB_UTILS}{PLAIN}    log = pb_utils.Logger\n",
    "calls": f"{PB_UTILS}pb_utils.Logger.log_info('x')\n{PLAIN}",
    "calls_a_function_that_reads": f"{PB_UTILS}def f():\n    return pb_utils.Tensor\nf()\n{PLAIN}",
    "catches": f"{PB_UTILS}try:\n    x = pb_utils.Logger\nexcept AttributeError:\n    x = None\n"
    f"assert x is None\n{PLAIN}",
    "asks_for_none": f"{PB_UTILS}assert getattr(pb_utils, 'Logger', None) is None\n{PLAIN}",
    "asks_for_the_name": f"{PB_UTILS}assert not hasattr(pb_utils, 'Tensor')\n{PLAIN}",
    "lists_the_names": f"{PB_UTILS}assert not {{*{HELD_BACK!r}}} & {{*dir(pb_utils)}}\n{PLAIN}",
    "reads_python_names": f"{PB_UTILS}x = pb_utils.ModelConfig, pb_utils.triton_string_to_numpy, "
    "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, pb_utils.np, pb_utils.serialize_byte_tensor\n"
    + PLAIN,
    "helper_reads": f"import helper\n{PLAIN}",
    "helper_reads_later": f"{PLAIN}    def initialize(self, args):\n        import helper\n",
    "initialize_reads": f"{PB_UTILS}{PLAIN}    def initialize(self, args):\n"
    f"        {{getattr(pb_utils, name) for name in {HELD_BACK!r}}}\n",
    "initialize_imports": f"{PLAIN}    def initialize(self, args):\n"
    f"        from triton_python_backend_utils import {', '.join(HELD_BACK)}\n",
    "initialize_finds_no_other_name": f"{PB_UTILS}{PLAIN}    def initialize(self, args):\n"
    "        pb_utils.ResponseIterator\n",
    "thread_reads": f"{PB_UTILS}import concurrent.futures as c\n"
    f"with c.ThreadPoolExecutor() as t:\n    t.submit(lambda: pb_utils.Tensor).result()\n{PLAIN}",
}
#: The models that the other process loads as well: one of each moment at which a name is read.
IN_A_PROCESS = (
    *("reads_Tensor", "imports_all", "imports_natively", "annotates", "annotates_later"),
    *("calls_a_function_that_reads", "lists_the_names", "reads_python_names", "helper_reads"),
    *("helper_reads_later", "initialize_reads", "initialize_finds_no_other_name", "thread_reads"),
)
HELPER = f"{PB_UTILS}x = pb_utils.Tensor\n"
CONFIG = """
    backend: "python"
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    instance_group [ { kind: KIND_CPU } ]
"""
#: The location of the module, which differs, and frames of the import system, which are left out
#: here.
_LOCATION = re.compile(r"/[^)]*/triton_python_backend_utils\.py|  <frozen importlib.*\n")

Outcomes = Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """A model whose file uses names."""

    name: str

    @property
    def files(self) -> tuple[str, ...]:
        """Return everything that determines the outcome."""
        return PATTERNS[self.name], HELPER, CONFIG


ROWS = [*map(Row, PATTERNS)]


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    with repository_folder("importing") as root:
        folder = root / "repository"
        for name, source in PATTERNS.items():
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "1" / "model.py").write_text(source)
            (folder / name / "config.pbtxt").write_text(CONFIG)
            if "helper" in source:
                (folder / name / "1" / "helper.py").write_text(HELPER)
        yield folder


recorded = recorded_rows("import_names", ROWS, lambda row: row.files, repository="repository")


def outcomes(index: Iterable[dict[str, str]]) -> Outcomes:
    """Return the reason of each model's failed load; '' if it is ready."""
    return {entry["name"]: _LOCATION.sub("", entry.get("reason", "")) for entry in index}


@pytest.fixture(scope="module")
def real(oracle_installed: None, repository: Path) -> Outcomes:
    """Return the real server's outcomes of the models that are loaded on it."""
    with start_tritonserver(
        repository,
        ready_path="/v2/health/live",
        exit_on_error=False,
        disable_auto_complete_config=None,
        model_control_mode="explicit",
        load_model=[row.name for row in asked_live(ROWS)],
        model_load_thread_count=8,
        allow_grpc=False,
        allow_metrics=False,
    ) as server:
        return outcomes(index(server.http).values())


@pytest.mark.parametrize("row", asked_live(ROWS), ids=lambda row: row.name)
def test_the_real_server_answers_as_recorded(row: Row, real: Outcomes, recorded: Recording[str]):
    recorded.check(row, real[row.name], lambda _, said: said)


@pytest.mark.parametrize(
    ("host", "release", "models"),
    [
        ("inline", "2.51", PATTERNS),
        ("process", "2.51", IN_A_PROCESS),
        ("inline", "newest", IN_A_PROCESS),
    ],
    ids=["inline-2.51", "process-2.51", "inline-newest"],
)
def test_files_that_use_names_load_or_fail_as_in_triton(
    recorded: Recording[str], repository: Path, host: str, release: str, models: Iterable[str]
):
    options = [f"--triton-version={release}", f"--backend-config=python,host={host}"]
    options += ["--disable-auto-complete-config", "--exit-on-error=false"]
    with open_repository(repository, models=[*models], options=options) as opened:
        reply = opened.http("POST", "/v2/repository/index")
    here = outcomes(entry for entry in reply.json() if "state" in entry)
    assert here == {name: recorded.said(Row(name)) for name in models}
