"""`ge-runtime inspect`: what a model folder holds, and the memory that it will take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ge_runtime.cli.arguments import add_model, new_command
from ge_runtime.cli.inspection import Inspection
from ge_runtime.cli.model_config import ensure_model, read_model_config, read_runtime_config
from ge_runtime.components import suffixes
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.artifact import find_artifact, find_artifacts
from ge_runtime.engines.backend import DeviceSettings, open_backend
from ge_runtime.engines.base import Signature
from ge_runtime.engines.compiled import with_compiled_gears
from ge_runtime.engines.contract import Contract
from ge_runtime.engines.footprint import Footprint, answer_slots
from ge_runtime.engines.gearing import Gearing
from ge_runtime.errors import ArtifactFault, ConfigFault, shown
from ge_runtime.memory.plan import Plan

if TYPE_CHECKING:
    from ge_runtime.cli.arguments import Subparsers

DISAGREE: Final = 1
"""The exit code where config.pbtxt and the graph do not agree."""

_DESCRIPTION: Final = """\
Show what a model folder holds and what it takes, before it is served.

MODEL_DIR is a Triton model folder: config.pbtxt beside version folders that hold model.onnx,
model.pt2, model.om, model.air, or the graphs that the parameter `stages` names. Shown are
  - the engine that executes the graph, and why it was chosen;
  - the graph's inputs and outputs, and beside each what config.pbtxt makes of it;
  - the sizes that executions have: limits and gears;
  - the memory plan: for every gear inputs, answers and workspace, and what is shared.

The graph is opened and analysed, and not executed. Workspace is what the graph's intermediate
results take if those that are not live together share bytes; peak/bound is 1.00 where no better
way to share exists. It is what the graph asks for, at its own order of operations: an engine that
fuses operations takes less, one that keeps copies in layouts of its own takes more.
"""

_EPILOG: Final = """\
examples:
  ge-runtime inspect model_repository/text_encoder
  ge-runtime inspect model_repository/text_encoder --version 2 --format json | jq .memory

Exit codes: 0 config.pbtxt and graph agree, 1 they do not, 2 arguments or input that cannot be used.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `inspect` to the commands."""
    parser = new_command(
        subparsers,
        "inspect",
        help_="show a model's engine, signature, gears and memory plan",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_model(parser)
    add = parser.add_argument
    add("--format", choices=("text", "json"), default="text", help="of what is printed (text)")
    parser.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    inspection = inspect(given.folder, given.version)
    if given.format == "json":
        print(json.dumps(inspection.as_json(), indent=2))
    else:
        print("\n".join(inspection.lines()))
    return DISAGREE if inspection.faults else 0


def inspect(folder: Path, version: int | None = None) -> Inspection:
    """What the model in `folder` holds; in its highest version, if none is given.

    Raises RuntimeFault or OSError for what cannot be read or opened.
    """
    ensure_model(folder)
    version_dir = version_folder(folder, version)
    if not any(entry.suffix in suffixes().values() for entry in version_dir.iterdir()):
        find_artifact(version_dir, "auto")  # raises, before faults that only graphs can have
    config = read_runtime_config(folder)
    artifacts = find_artifacts(
        version_dir, config.engine, config.stages, device_kind=config.device_kind
    )
    names = [spec.name for spec in config.outputs]
    with ExitStack() as opened:
        backend = open_backend(
            config.devices[0],
            DeviceSettings(0, config.workspace_pool_bytes, config.ge_options),
            engine=artifacts[0].engine,
        )
        opened.callback(backend.close)
        engine = backend.open(artifacts, threads=config.intra_op_threads, outputs=names)
        opened.callback(engine.close)
        config = config_for(folder, config, engine.signature)
        if engine.shapes is not None:
            files = shown(*(artifact.path for artifact in artifacts))
            config = with_compiled_gears(config, engine.shapes, files)
        gearing = Gearing.of(config, version_dir)
        plan: Plan | None = None
        faults: Sequence[str] = ()
        try:
            contract = Contract.between(config, engine.signature)
        except ConfigFault as fault:
            faults = fault.faults
        else:
            footprint = Footprint(contract, config.batched, config.packing)
            plan = footprint.plan(engine, gearing.planned, answer_slots=answer_slots(config))
        return Inspection(
            version_dir,
            config,
            artifacts,
            engine.signature,
            gearing,
            plan,
            faults,
            backend.hardware,
        )


def config_for(folder: Path, config: RuntimeConfig, signature: Signature) -> RuntimeConfig:
    """The configuration where outputs that the graph lacks are made by the model's own code."""
    given = {tensor.name for tensor in signature.outputs}
    derived = [spec.name for spec in config.outputs if spec.name not in given]
    if not derived:
        return config
    derived += [spec.name for spec in config.derived]
    return RuntimeConfig.parse(read_model_config(folder), cores=1, derived=derived)


def version_folder(folder: Path, version: int | None) -> Path:
    """The folder of this version, or of the highest. Raises ArtifactFault if there is none."""
    versions = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    if version is None and versions:
        version = versions[-1]
    if version not in versions:
        found = f"versions {', '.join(map(str, versions))}" if versions else "no version"
        expected = "a folder named 1" if version is None else f"a folder named {version}"
        raise ArtifactFault(f"{folder}: found {found}, expected {expected}")
    return folder / str(version)
