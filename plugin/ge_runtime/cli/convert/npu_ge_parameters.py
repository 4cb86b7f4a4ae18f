"""Convert npu_ge's parameters except those for gears: each is kept, omitted or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from ge_runtime.config import ATC_FLAGS

SHAPE: Final = "ge.inputShape"
DIMS: Final = "ge.dynamicDims"
SHAPES: Final = (SHAPE, DIMS, "ge.dynamicNodeType")
"""Options of GE for the sizes that a graph is compiled for."""

_OFF: Final = ("0", "false", "off", "")
_DIAGNOSTICS: Final = {
    "profiling": "profile the server's process with msprof; the metrics ge_runtime_* show the cost "
    "of launches",
    "dump_graph": "dump the graph during compilation: DUMP_GE_GRAPH=2 with atc",
    "dump_data": "`ge-runtime conformance` compares the model's outputs",
}
_MANAGED: Final = {
    "ge.constLifecycle": "weights exist once for each device",
    "ge.exec.reuseZeroCopyMemory": "inputs and outputs are planned separately",
    "ge.exec.staticMemoryPolicy": "models of a device share one workspace",
    "ge.featureBaseRefreshable": "workspace is planned at load and never moves",
    "ge.graph_compiler_cache_dir": "models are compiled before they are served",
    "ge.graph_key": "models are compiled before they are served",
}
"""Options that ge_runtime does not need, with the reason."""
_REFUSED: Final = {
    "ge.exec.deviceId": ("cards are listed in device_ids", "list it there"),
    "ge.session_device_id": ("cards are listed in device_ids", "list it there"),
    "ge.socVersion": ("a model is compiled before it is served", "pass it to atc: --soc_version"),
    "ge.graphMemoryMaxSize": (
        "memory is planned from the model",
        "limit the workspace: parameter workspace_pool_mib",
    ),
    "ge.variableMemoryMaxSize": ("memory is planned from the model", "nothing replaces it"),
    "ge.compileHybridMode": (
        "a request larger than every gear is refused",
        "add a gear for the largest request",
    ),
    "ge.exec.precision_mode": (
        "in ATC precision_mode_v2 replaces it",
        "use ge.exec.precision_mode_v2 with fp16, origin or mixed_float16",
    ),
}


def convert_parameters(parameters: Mapping[str, str], report: ConversionReport) -> dict[str, str]:
    """Return the parameters to keep, with ge_runtime's values; report all others."""
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
                why = "npu_ge reads it only from --backend-config, and ignored it here"
                report.refuse(name, value, why, f"use graph.{name} to apply it")
            elif family == "global":
                report.omit(name, value, "npu_ge never passed it on")
            else:
                why = "npu_ge has no such parameter, and ignored it"
                report.refuse(name, value, why)
    return kept


def _instance_blocks(value: str, report: ConversionReport) -> None:
    name = "instance_exec_blocks"
    if value == "1":
        report.omit(name, value, "one engine executes a batch")
        return
    why = "a batch is divided by gears, not into equal parts; npu_ge mixed up the rows"
    report.refuse(name, value, why, "use device_exec_blocks for parallel engines")


def _diagnostic(name: str, value: str, report: ConversionReport) -> None:
    if value.lower() in _OFF:
        report.omit(name, value, "it is off")
    else:
        report.refuse(name, value, "ge_runtime has no such option", _DIAGNOSTICS[name])


def _option(name: str, option: str, value: str, report: ConversionReport) -> dict[str, str]:
    """Return the parameter if it is kept. `name`: in config.pbtxt; `option`: GE's name."""
    if option in SHAPES:
        return {}
    if option == "ge.externalWeight" and value != "0":
        report.refuse(name, value, "weights are loaded from the .om only")
        return {}
    if option in ATC_FLAGS:
        return {f"{name.partition('.')[0]}.{option}": value}
    if option in _MANAGED:
        report.omit(name, value, _MANAGED[option])
    elif option == "ge.graphRunMode" and value == "0":
        report.omit(name, value, "ge_runtime only runs inference")
    elif option == "ge.graphRunMode":
        report.refuse(name, value, "ge_runtime does not train")
    elif option in _REFUSED:
        report.refuse(name, value, *_REFUSED[option])
    else:
        why = "ge_runtime compiles with ATC, and has no flag for this option"
        report.refuse(name, value, why, "compile model.om yourself with a flag of `atc --help`")
    return {}


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the configuration that cannot be converted."""

    name: str
    """Name of a parameter, field, tensor or option."""
    value: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.why}; {self.cure}"


@dataclass(slots=True)
class ConversionReport:
    """The problems and notes of a conversion. Not thread-safe."""

    dropped: Collection[str]
    """Names given with --drop."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Omitted and dropped parts, with reasons."""
    used: set[str] = field(default_factory=set)
    """Names in `dropped` that were refused."""

    def refuse(self, name: str, value: str, why: str, cure: str = "") -> None:
        """Add a problem that --drop NAME resolves, or a note if the name is in `dropped`."""
        if name in self.dropped:
            self.used.add(name)
            self.notes.append(f"{name} = {value}: dropped")
            return
        drop = f"--drop {name}"
        self.problems.append(Problem(name, value, why, f"{cure}, or {drop}" if cure else drop))

    def require(self, name: str, value: str, why: str, cure: str) -> None:
        """Add a problem that only a change of the input resolves."""
        self.problems.append(Problem(name, value, why, cure))

    def omit(self, name: str, value: str, why: str) -> None:
        """Note that a part is not in the new configuration, without effect on the model."""
        self.notes.append(f"{name} = {value}: omitted, {why}")
