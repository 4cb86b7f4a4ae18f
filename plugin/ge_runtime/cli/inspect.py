"""`ge-runtime inspect`: shows a model folder's contents and its memory plan."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ge_runtime.batching.cost import CostModel
from ge_runtime.cli.command import EXIT_NO, Command, add_model
from ge_runtime.cli.config_pbtxt import ensure_model, read_graph_config, read_runtime_config
from ge_runtime.cli.padding import Padding, padding_of
from ge_runtime.cli.tensor_matches import TENSOR_HEADER, TensorMatch, inputs_of, outputs_of
from ge_runtime.components import suffixes
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import (
    Artifact,
    experimental_notes,
    find_artifact,
    find_artifacts,
    for_chip,
)
from ge_runtime.engines.backend import DeviceSettings, open_backend
from ge_runtime.engines.base import Limited, Signature
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.gearing import (
    Footprint,
    Gearing,
    adapt_threads,
    answer_slots,
    overlap_lines,
    with_graph_gears,
)
from ge_runtime.errors import ArtifactFault, ConfigFault
from ge_runtime.memory.machine import (
    MemoryLimit,
    ReadLimits,
    host_bytes,
    lacking,
    limits_table,
    read_limits,
    refusal,
)
from ge_runtime.memory.plan import Plan, aligned_columns
from ge_runtime.scheduling.executor import BatchRules
from ge_runtime.scheduling.kept_costs import KeptCosts, cores_of_process
from ge_runtime.specs import ROWS

_DESCRIPTION: Final = """\
Show the contents of a model folder and its memory plan, without serving it.

MODEL_DIR is a Triton model folder: config.pbtxt and version folders that contain model.onnx,
model.pt2, model.om, model.air, or the graphs in the parameter `stages`. The report contains
  - the engine that executes the graph, and the reason for the choice;
  - the inputs and outputs of the graph, and their use in config.pbtxt;
  - the sizes of executions: limits and gears;
  - the padding that recorded requests (parameter `histogram`) cause, with and without `unpad`;
  - the memory plan: inputs, outputs and workspace of every gear, and the shared memory;
  - the memory of this machine: RAM, control groups, address space.

The graph is opened and analysed, but not executed. Workspace is the memory for the graph's
intermediate results. Results that are not needed at the same time share bytes; peak/bound is 1.00
if no way of sharing needs less. Workspace is calculated for the order of operations in the graph.
An engine that fuses operations needs less; an engine that copies tensors to other layouts needs
more.
"""

_EPILOG: Final = """\
examples:
  ge-runtime inspect model_repository/text_encoder
  ge-runtime inspect model_repository/text_encoder --version 2 --format json | jq .memory

Exit codes: 0 config.pbtxt agrees with the graph and the memory is sufficient, 1 otherwise,
2 invalid arguments or input.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add = parser.add_argument
    add("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def _run(given: argparse.Namespace) -> int:
    inspection = inspect(given.folder, given.version, read_limits)
    if given.format == "json":
        print(json.dumps(inspection.as_json(), indent=2))
    else:
        print("\n".join(inspection.lines()))
    return EXIT_NO if inspection.faults or inspection.short else 0


COMMAND: Final = Command(
    name="inspect",
    help="show a model's engine, signature, gears and memory plan",
    description=_DESCRIPTION,
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)


def inspect(folder: Path, version: int | None = None, read: ReadLimits = read_limits) -> Inspection:
    """Inspect a version of the model in `folder`, by default the highest.

    `read` returns the memory limits of the machine. Raises RuntimeFault if the configuration or
    the graph cannot be used.
    """
    ensure_model(folder)
    version_dir = version_folder(folder, version)
    if not any(entry.suffix in suffixes().values() for entry in version_dir.iterdir()):
        find_artifact(version_dir, "auto")  # raises ArtifactFault
    config = read_runtime_config(folder)
    artifacts = find_artifacts(
        version_dir, config.engine, config.stages, device_kind=config.device_kind
    )
    limits = read()  # before the graph is opened, because the plan includes its weights
    with ExitStack() as opened:
        backend = open_backend(
            config.devices[0], DeviceSettings.of(config), engine=artifacts[0].engine
        )
        opened.callback(backend.close)
        artifacts = for_chip(artifacts, backend.hardware)
        engine = backend.open(artifacts, threads=config.intra_op_threads, outputs=config.results)
        opened.callback(engine.close)
        config = config_for(folder, config, engine.signature)
        config = with_graph_gears(config, engine, artifacts)
        gearing = Gearing.of(config, version_dir)
        plan: Plan | None = None
        padding: Padding | None = None
        faults: Sequence[str] = ()
        try:
            contract = Contract.between(config, engine.signature)
        except ConfigFault as fault:
            faults = fault.faults
        else:
            footprint = Footprint.of(config, contract)
            adapt_threads(config, [engine], footprint, gearing.planned)
            plan = footprint.plan(engine, gearing.planned, answer_slots=answer_slots(config))
            if gearing.histogram is not None and gearing.histogram.total:
                terms = BatchRules.of(config, contract).terms
                cost = _cost(config, artifacts, terms, version_dir, backend.hardware)
                padding = padding_of(config, gearing.gears, gearing.histogram, cost, terms)
        return Inspection(
            version_dir,
            config,
            artifacts,
            engine.signature,
            gearing,
            plan,
            faults,
            backend.hardware,
            limits,
            tuple(engine.unplanned) if isinstance(engine, Limited) else (),
            padding,
        )


def _cost(
    config: RuntimeConfig,
    artifacts: Sequence[Artifact],
    terms: tuple[tuple[str, ...], ...],
    version_dir: Path,
    hardware: str,
) -> CostModel | None:
    """Return the given cost of executions, or that kept by an earlier start; None if unknown."""
    if (own := config.cost) is not None:
        return CostModel(*own[:3], terms, own.growth_s)
    kept = KeptCosts.of(config, artifacts, terms, version_dir, hardware, cores_of_process())
    costs = kept and kept.load()
    return costs.cost if costs else None


def config_for(folder: Path, config: RuntimeConfig, signature: Signature) -> RuntimeConfig:
    """Return the configuration in which the model's code computes outputs that the graph lacks.

    Tensors that would stay in the device service become outputs, because no service is used.
    """
    given = {tensor.name for tensor in signature.outputs}
    derived = [spec.name for spec in config.outputs if spec.name not in given]
    if not derived:
        return config.with_resident_as_computed()
    derived += [spec.name for spec in config.derived]
    # Parsed again, because other rules apply to outputs of the model's code.
    parsed = RuntimeConfig.parse(read_graph_config(folder), cores=1, derived=derived)
    return parsed.with_resident_as_computed()


def version_folder(folder: Path, version: int | None) -> Path:
    """Return the folder of a version, by default the highest. Raises ArtifactFault."""
    versions = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    if version is None and versions:
        version = versions[-1]
    if version not in versions:
        found = f"versions {', '.join(map(str, versions))}" if versions else "no version"
        expected = "a folder named 1" if version is None else f"a folder named {version}"
        raise ArtifactFault(f"{folder}: found {found}, expected {expected}")
    return folder / str(version)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of one version of a model."""

    version_dir: Path
    config: RuntimeConfig
    artifacts: Sequence[Artifact]
    signature: Signature
    gearing: Gearing
    plan: Plan | None
    """The memory plan; None if there are faults."""
    faults: Sequence[str]
    """Disagreements between config.pbtxt and the graph."""
    hardware: str
    """Name of the device."""
    limits: Sequence[MemoryLimit]
    """Memory limits of the machine before the graph was opened."""
    unplanned: Sequence[str]
    """Descriptions of memory that is not in the plan."""
    padding: Padding | None = None
    """The padding of recorded requests; None if no sizes were recorded."""

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that one instance needs."""
        if self.plan is None:
            return 0
        on_host, engines = self.config.device_kind == "cpu", len(self.config.places)
        weights = self.plan.weights_bytes * on_host
        return weights + host_bytes(self.plan, on_host=on_host, engines=engines)

    @property
    def short(self) -> str:
        """The error of a load on this machine; empty if the memory is sufficient."""
        short = lacking(self.host_bytes, self.limits)
        return refusal(self.host_bytes, short[0]) if short else ""

    @property
    def inputs(self) -> list[TensorMatch]:
        """The graph's inputs with their sources, then other inputs of requests."""
        return inputs_of(self.config, self.signature)

    @property
    def outputs(self) -> list[TensorMatch]:
        """The graph's outputs with their uses, then outputs from other sources."""
        return outputs_of(self.config, self.signature)

    def lines(self) -> list[str]:
        """Return the report as text."""
        count = len(self.config.places)
        engines = f" of each of {count} engines" if count > 1 else ""
        sections = {
            "Engine": self._engines(),
            "Inputs": aligned_columns([TENSOR_HEADER, *self.inputs], "<<<"),
            "Outputs": aligned_columns([TENSOR_HEADER, *self.outputs], "<<<"),
            "Sizes": [*self._sizes(), *self.gearing.report],
            "Padding": self.padding.lines() if self.padding else [],
            f"Memory{engines}, in bytes": self._planned(),
            "This machine, in bytes": self._machine(),
            "Faults": list(self.faults),
        }
        lines = [f"{self.config.model}, version {self.version_dir.name}"]
        for title, body in sections.items():
            if body:
                lines += ["", title, *(f"  {line}".rstrip() for line in body)]
        return lines

    def as_json(self) -> dict[str, object]:
        """Return the report as values for JSON."""
        return {
            "model": self.config.model,
            "version": int(self.version_dir.name),
            "engines": [
                {"engine": each.engine, "file": each.path.name, "reason": each.reason}
                for each in self.artifacts
            ],
            "inputs": [match._asdict() for match in self.inputs],
            "outputs": [match._asdict() for match in self.outputs],
            "hardware": self.hardware,
            "limits": self._limits,
            "gears": [
                {"axes": axes, "sizes": sizes} for axes, sizes in self.gearing.tables.items()
            ],
            "reproducible": self.config.reproducible,
            "padding": self.padding and self.padding._asdict(),
            "memory": _memory(self.plan) if self.plan else None,
            "unplanned": list(self.unplanned),
            "machine": {
                "host_bytes": self.host_bytes,
                "limits": [asdict(limit) for limit in self.limits],
                "refused": self.short,
            },
            "faults": list(self.faults),
        }

    def _planned(self) -> list[str]:
        if self.plan is None:
            return []
        more = overlap_lines(self.config, self.artifacts, self.plan)
        unplanned = [f"not planned: {line}" for line in self.unplanned]
        return [*self.plan.table(), *(["", *more] if more else []), *unplanned]

    def _machine(self) -> list[str]:
        if self.plan is None:
            return []
        table = limits_table(self.host_bytes, self.limits)
        return [*table, *([self.short] if self.short else [])]

    def _engines(self) -> list[str]:
        engines = [f"{each.engine}, because {each.reason}" for each in self.artifacts]
        engines += experimental_notes(self.artifacts, self.config.device_kind)
        if self.config.device_kind != "cpu":
            engines.append(f"{self.config.devices[0]} is {self.hardware}")
        return engines

    @property
    def _limits(self) -> dict[str, int]:
        rows = {ROWS: self.config.rows} if self.config.batched else {}
        return {**rows, **self.config.limits}

    def _free(self, axis: str) -> str:
        """Describe the sizes of an axis without gears."""
        axis_sizes = self.config.axis_sizes
        least, step = axis_sizes.minimums.get(axis, 1), axis_sizes.steps.get(axis, 1)
        words = "free: as large as a batch needs"
        words += f", at least {least}" if least > 1 else ""
        return words + (f", multiples of {step}" if step > 1 else "")

    def _sizes(self) -> list[str]:
        limits, tables = self._limits, self.gearing.tables
        geared = {axis for axes in tables for axis in axes}
        rows = [
            (axis, str(limits[axis]), self._free(axis)) for axis in limits if axis not in geared
        ]
        rows += [
            (",".join(axes), _times(limits[axis] for axis in axes), ", ".join(map(_times, table)))
            for axes, table in tables.items()
        ]
        lines = aligned_columns([("", "limit", "gears"), *rows], "<><")
        if self.config.reproducible:
            lines += ["reproducible: each request at its own gear, with all of its rows"]
        return lines


def _memory(plan: Plan) -> dict[str, object]:
    known = plan.workspace_known
    return {
        "weights_bytes": plan.weights_bytes,
        "workspace_bytes": plan.workspace_bytes if known else None,
        "unsized_results": plan.unsized,
        "inputs_bytes": plan.inputs_bytes,
        "answers_bytes": plan.answers_bytes,
        "answer_slots": plan.answer_slots,
        "device_io_bytes": plan.device_io_bytes,
        "state_bytes": plan.state_bytes,
        "total_bytes": plan.total_bytes,
        "lower_bound_bytes": plan.lower_bound,
        "unshared_bytes": plan.unshared_bytes,
        "gears": [
            {
                "sizes": dict(gear.sizes),
                "inputs_bytes": gear.inputs_bytes,
                "answers_bytes": gear.answers_bytes,
                "workspace_bytes": gear.workspace_bytes if known else None,
                "workspace_bound_bytes": gear.workspace_bound if known else None,
            }
            for gear in plan.gears
        ],
    }


def _times(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))
