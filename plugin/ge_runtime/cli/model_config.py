"""The RuntimeConfig of a model folder, read without a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ge_runtime.cli.text_format import parse
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import ConfigFault
from ge_runtime.specs import DType


def config_file(path: Path) -> Path:
    """The config.pbtxt that is at `path`, or in the model's folder there."""
    return path / "config.pbtxt" if path.is_dir() else path


def read_model_config(path: Path) -> dict[str, object]:
    """The mapping that Triton hands to the model whose folder, or config.pbtxt, is at `path`.

    Fields that config.pbtxt leaves out are left out, save `name`, which is then the folder's.
    Raises ConfigFault if it is not in protobuf's text format, OSError if there is none.
    """
    file = config_file(path)
    folder = file.resolve().parent.name
    try:
        return {"name": folder, **parse(file.read_text(encoding="utf-8"))}
    except ValueError as error:
        raise ConfigFault(folder, [f"{file.name}: {error}"]) from error


def read_runtime_config(path: Path, *, cores: int = 1) -> RuntimeConfig:
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
    return RuntimeConfig.parse(config, cores=cores, derived=derived)
