"""What only a device can answer, what is assumed until it has, and the probe that asks it.

docs/ascend.md shows these as a table, which a test holds against this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ge_runtime.cli.settle import executions, frameworks, loads, machine
from ge_runtime.cli.settle.lab import Answer

Probe: TypeAlias = Callable[..., Answer]
"""(lab) -> answer. Raises DriverFault, Absent, or anything."""


@dataclass(frozen=True)
class Question:
    """An open point."""

    number: int
    text: str
    assumed: str
    """What ge_runtime takes for the answer meanwhile."""
    otherwise: str
    """What would be wrong if the answer were another."""
    probe: Probe
    risk: str = ""
    """What asking may do to a device; "" if it does nothing that serving does not."""


QUESTIONS: Final = (
    Question(
        1,
        "What does execute_async answer while the same model executes on another stream?",
        "nothing that can be relied on: a model belongs to one lane, which has one stream",
        "nothing; a code would let a mistake be found on a device, too",
        executions.one_model_on_two_streams,
        risk="two executions share a workspace: wrong results, or an exception of the AI core",
    ),
    Question(
        2,
        "Which code does execute give for a buffer too few, or too short?",
        "500002, after which the lane is made anew as after any failure of CANN's own; 145000 in "
        "older releases, after which it is not",
        "nothing while buffers are what the model asks for; a code of a lost device would give the "
        "card up for a mistake",
        executions.buffers_that_do_not_fit,
    ),
    Question(
        3,
        "Do workspace, weights and buffers need more than 64 bytes of alignment?",
        "64 is enough: malloc's blocks start there, and a slot's buffers within its block",
        "slots would have to be laid out by that multiple, `ascend/stream_executor.py`",
        loads.memory_alignment,
        risk="an address that the AI core cannot use ends in its exception, and the context's end",
    ),
    Question(
        4,
        "Does query_size need a device?",
        "yes: it is asked after set_device",
        "nothing; `ge-runtime inspect` could tell sizes on a machine without a card",
        loads.sizes_without_a_device,
    ),
    Question(
        5,
        "Can a model be executed after the wait for it ran out of time (507046)?",
        "no: the card counts as lost, as what still runs may write its buffers at any time",
        "a wait would be enough, and the process could go on",
        executions.after_a_time_limit,
    ),
    Question(
        6,
        "Do WEIGHT_PATH_PTR and WITHOUT_GRAPH_INT32 of load_with_config pass pyACL?",
        "no: neither is used; weights lie in the .om",
        "nothing; weights in files of their own could be served",
        loads.options_of_a_load,
    ),
    Question(
        7,
        "Can a model's weights lie in device memory of another process (IPC)?",
        "no: processes that are to share weights use the device service",
        "nothing; weights could be shared without the service",
        loads.weights_of_another_process,
    ),
    Question(
        8,
        "Which Python, NumPy, torch and torch_npu fit this CANN?",
        "those of Huawei's tables, which `ge-runtime doctor` has",
        "doctor's tables would be wrong",
        machine.versions,
    ),
    Question(
        9,
        "Which calls of pyACL hold Python's lock (GIL)?",
        "all but the waits, as the open-source binding does: so only queued copies and executions",
        "if the waits held it, too, lanes of one process would stand still for each other",
        machine.pythons_lock,
    ),
    Question(
        10,
        "Does torchair make a GE graph of what torch.export gives?",
        "no: torch models come through ONNX, or torchair compiles the module",
        "nothing; a shorter way for torch models",
        frameworks.torch_export,
    ),
    Question(
        11,
        "May a gear be set while another thread submits to the same stream?",
        "no: setting, copies and execution of a lane are under one lock; but lanes of one card "
        "set gears while others execute",
        "if a setter waited for all streams, lanes would not overlap; if it failed, they must not",
        executions.gear_while_the_stream_works,
    ),
    Question(
        12,
        "What does execute_async cost with other addresses than before?",
        "more than with the same: a slot's addresses never change",
        "nothing; two slots on one lane in turn may cost more than one",
        executions.changed_addresses,
    ),
    Question(
        13,
        "Which names of GE-PY 0.0.1 are still there, with which arguments?",
        "all that are used",
        "the engine ge_session refuses such a GE-PY, and names what it lacks",
        frameworks.ge_py,
    ),
    Question(
        14,
        "Does registering shared memory as page-locked make queued copies from it possible?",
        "yes, by host_register_v2, but not on Linux up to 5.10, nor where the call is refused, as "
        "documented for 310P and 310B: there the device service copies at once",
        "copies would hold up all Python threads of the device service, or fail when they run",
        machine.registered_memory,
        risk="up to CANN 8.1, a queued copy of memory that is not page-locked may fail in any way",
    ),
    Question(
        15,
        "What are the tensors of a model with gears called, and which dims does it tell?",
        "names are node:port:name or plain, the gear's input is last, the outputs' dims are the "
        "largest gear's until one is set, and then that one's",
        "outputs would not be found by their names, or the table of gears would be wrong",
        loads.what_a_model_tells,
    ),
    Question(
        16,
        "Is the device memory of a process that was killed free at once?",
        "yes, or within seconds: the device service is started again after it",
        "its models would not fit before the driver has cleared up",
        machine.memory_of_the_dead,
    ),
    Question(
        17,
        "How exactly does GE-PY tell the numbers of a tensor?",
        "floats with six decimals and truth values not at all, but all of them to the bit if they "
        "are read as integers of their size",
        "the engine ge_session would answer with numbers that are not those of the graph",
        frameworks.ge_numbers,
    ),
    Question(
        18,
        "What does a model with gears of image sizes tell, and is it right at each of them?",
        "as one with other gears: the gear's input is last, height and width of its image are "
        "open, gears are pairs of height and width, the outputs' dims those of the gear that was "
        "set",
        "such models could not be planned, or would be executed at a wrong size",
        loads.what_a_model_of_images_tells,
    ),
)

_STARTED: Final[tuple[Probe, ...]] = (loads.imported_weights, machine.holds_memory)
"""By other probes."""

PROBES: Final[Mapping[str, Probe]] = {
    probe.__name__: probe for probe in (*(each.probe for each in QUESTIONS), *_STARTED)
}
"""By name, with those that other probes start."""
