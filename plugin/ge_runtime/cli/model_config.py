"""The RuntimeConfig of a model folder, read without a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ge_runtime.cli.field_names import misspelt
from ge_runtime.cli.text_format import parse
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault, RuntimeFault
from ge_runtime.specs import DType

_MOST_NAMES: Final = 5


def config_file(path: Path) -> Path:
    """The config.pbtxt that is at `path`, or in the model's folder there."""
    return path / "config.pbtxt" if path.is_dir() else path


def ensure_model(folder: Path) -> None:
    """Raises RuntimeFault, with where a model may be, unless one with a graph is in `folder`.

    Raises ConfigFault if its config.pbtxt cannot be read.
    """
    if not config_file(folder).is_file() or not folder.is_dir():
        found = "no config.pbtxt" if folder.is_dir() else "a file" if folder.exists() else "nothing"
        models = sorted(file.parent.name for file in folder.glob("*/config.pbtxt"))
        hint = ""
        if models:
            more = ", ..." if len(models) > _MOST_NAMES else ""
            hint = f"; it holds models: {', '.join(models[:_MOST_NAMES])}{more}"
        elif config_file(folder.parent).is_file() and folder.exists():
            hint = f"; that is {folder.parent}"
        raise RuntimeFault(f"{folder}: found {found}, expected the folder of a model{hint}")
    config = read_model_config(folder)
    if config.get("platform") == "ensemble":
        fault = "platform: found ensemble, expected a model with a graph of its own"
        raise ConfigFault(str(config["name"]), [fault])


def read_model_config(path: Path) -> dict[str, object]:
    """The mapping that Triton hands to the model whose folder, or config.pbtxt, is at `path`.

    Fields that config.pbtxt leaves out are left out, save `name`, which is then the folder's.
    Raises ConfigFault if it is not in protobuf's text format, or nearly names a field of Triton's;
    OSError if there is none.
    """
    file = config_file(path)
    folder = file.resolve().parent.name
    try:
        config = {"name": folder, **parse(file.read_text(encoding="utf-8"))}
    except ValueError as error:
        raise ConfigFault(folder, [f"{file.name}: {error}"]) from error
    if faults := misspelt(config):
        raise ConfigFault(folder, [f"{file.name}: {fault}" for fault in faults])
    return config


def read_runtime_config(path: Path) -> RuntimeConfig:
    """What that configuration says to the runtime.

    Which outputs the model's own code makes is said in its code, which is not run: those of BYTES
    are taken to be such, as no graph makes them. Raises ConfigFault, or OSError, as above.
    """
    config = read_model_config(path)
    outputs, parameters = config.get("output"), config.get("parameters")
    passes = parameters if isinstance(parameters, Mapping) else {}
    derived = [
        str(output.get("name"))
        for output in (outputs if isinstance(outputs, list) else [])
        if isinstance(output, Mapping)
        and output.get("data_type") == DType.BYTES.config_name
        and f"pass.{output.get('name')}" not in passes
    ]
    return RuntimeConfig.parse(config, cores=1, derived=derived)
