"""npu_ge's parameters one by one, save those that make gears: kept, left out or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config import ATC_FLAGS

SHAPE: Final = "ge.inputShape"
DIMS: Final = "ge.dynamicDims"
SHAPES: Final = (SHAPE, DIMS, "ge.dynamicNodeType")
"""Options of GE that say which sizes a graph is compiled for."""

_OFF: Final = ("0", "false", "off", "")
_DIAGNOSTICS: Final = {
    "profiling": "profile the server's process with msprof; the metrics ge_runtime_* tell what "
    "launches cost",
    "dump_graph": "dump the graph where it is compiled: DUMP_GE_GRAPH=2 with atc",
    "dump_data": "`ge-runtime conformance` compares what the model answers",
}
_MANAGED: Final = {
    "ge.constLifecycle": "weights are held once for each device",
    "ge.exec.reuseZeroCopyMemory": "memory is planned from the model, inputs and outputs apart",
    "ge.exec.staticMemoryPolicy": "models of a device share one workspace",
    "ge.featureBaseRefreshable": "workspace is planned at load and stays where it is",
    "ge.graph_compiler_cache_dir": "models are compiled before they are served",
    "ge.graph_key": "models are compiled before they are served",
}
"""Options whose purpose ge_runtime serves by itself."""
_REFUSED: Final = {
    "ge.exec.deviceId": ("cards are named in device_ids", "name it there"),
    "ge.session_device_id": ("cards are named in device_ids", "name it there"),
    "ge.socVersion": ("a model is compiled before it is served", "give it to atc: --soc_version"),
    "ge.graphMemoryMaxSize": (
        "memory is planned from the model",
        "cap the workspace: parameter workspace_pool_mib",
    ),
    "ge.variableMemoryMaxSize": ("memory is planned from the model", "nothing replaces it"),
    "ge.compileHybridMode": (
        "a request that no gear holds is refused",
        "add a gear that holds the largest",
    ),
    "ge.exec.precision_mode": (
        "ATC's successor of it is precision_mode_v2",
        "write ge.exec.precision_mode_v2 with fp16, origin or mixed_float16",
    ),
}


def convert_parameters(parameters: Mapping[str, str], report: ConversionReport) -> dict[str, str]:
    """The parameters that are kept, each as it is for ge_runtime; all others are reported."""
    kept: dict[str, str] = {}
    for name, value in parameters.items():
        if name.isupper() or name in ("device_ids", "device_exec_blocks"):
            kept[name] = value
        elif name == "static_model":
            kept[name] = "0" if value.lower() in _OFF else "1"
        elif name == "instance_exec_blocks":
            _instance_blocks(value, report)
        elif name in _DIAGNOSTICS:
            _diagnostic(name, value, report)
        else:
            family, _, option = name.partition(".")
            if family in ("graph", "session") and option:
                kept |= _option(name, f"ge.{option.removeprefix('ge.')}", value, report)
            elif family == "ge" and option:
                why = "npu_ge reads it from --backend-config only, and ignored it here"
                report.refuse(name, value, why, f"write graph.{name} to have it")
            elif family == "global":
                report.leave_out(name, value, "npu_ge never passed it on")
            else:
                why = "npu_ge knows no such parameter, and ignored it"
                report.refuse(name, value, why)
    return kept


def _instance_blocks(value: str, report: ConversionReport) -> None:
    name = "instance_exec_blocks"
    if value == "1":
        report.leave_out(name, value, "a batch is executed by one engine")
        return
    why = "a batch is cut by gears, not into equal parts; npu_ge mixed up its rows"
    report.refuse(name, value, why, "give device_exec_blocks for engines that work side by side")


def _diagnostic(name: str, value: str, report: ConversionReport) -> None:
    if value.lower() in _OFF:
        report.leave_out(name, value, "it is off")
    else:
        report.refuse(name, value, "no such switch in ge_runtime", _DIAGNOSTICS[name])


def _option(name: str, option: str, value: str, report: ConversionReport) -> dict[str, str]:
    """name: as in config.pbtxt. option: as GE has it. Gives the parameter, if it is kept."""
    if option in SHAPES:
        return {}
    if option == "ge.externalWeight" and value != "0":
        report.refuse(name, value, "weights are loaded from the .om, one file for all")
        return {}
    if option in ATC_FLAGS:
        return {f"{name.partition('.')[0]}.{option}": value}
    if option in _MANAGED:
        report.leave_out(name, value, _MANAGED[option])
    elif option == "ge.graphRunMode" and value == "0":
        report.leave_out(name, value, "everything is inference")
    elif option == "ge.graphRunMode":
        report.refuse(name, value, "ge_runtime does not train")
    elif option in _REFUSED:
        report.refuse(name, value, *_REFUSED[option])
    else:
        why = "ge_runtime compiles with ATC, and knows no flag that is this option"
        report.refuse(name, value, why, "see `atc --help`, compile model.om yourself with its flag")
    return {}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing of the configuration that cannot be kept."""

    name: str
    """A parameter, a field, or a tensor."""
    value: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.why}; {self.cure}"


@dataclass(slots=True)
class ConversionReport:
    """Collects what a conversion refuses, misses and leaves out. For one thread."""

    dropped: Collection[str]
    """The names that may be lost, as the user said."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, each with the reason why nothing is lost; what was dropped."""
    used: set[str] = field(default_factory=set)
    """Of `dropped`, those that stood in the way."""

    def refuse(self, name: str, value: str, why: str, cure: str = "") -> None:
        """It cannot be kept: a problem, unless it may be lost. cure: what else could be done."""
        if name in self.dropped:
            self.used.add(name)
            self.notes.append(f"{name} = {value}: dropped")
            return
        drop = f"--drop {name}"
        self.problems.append(Problem(name, value, why, f"{cure}, or {drop}" if cure else drop))

    def require(self, name: str, value: str, why: str, cure: str) -> None:
        """Something is not known without which nothing can be converted."""
        self.problems.append(Problem(name, value, why, cure))

    def leave_out(self, name: str, value: str, why: str) -> None:
        """It is not in the new configuration, and nothing is lost."""
        self.notes.append(f"{name} = {value}: left out, {why}")
