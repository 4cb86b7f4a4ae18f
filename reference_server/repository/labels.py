"""The labels of a model's outputs: read from its folder, or taken over from an ensemble's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reference_server.config.schema import ModelConfig
from reference_server.core.errors import internal, invalid_arg
from reference_server.repository.served import ServedModel

Labels = Mapping[str, tuple[str, ...]]


def labels_of(config: ModelConfig, folder: Path, steps: Sequence[ServedModel]) -> Labels:
    """The labels by output; `steps` are the models of an ensemble, in its order.

    Raises ServerError if a file cannot be read.
    """
    return {**_of_steps(config, steps), **_read(config, folder)}


def _of_steps(config: ModelConfig, steps: Sequence[ServedModel]) -> dict[str, tuple[str, ...]]:
    """Those of an ensemble's outputs, as the models have them that make these outputs."""
    labels: dict[str, tuple[str, ...]] = {}
    for step, model in zip(config.ensemble, steps, strict=True):
        labels.update(
            {
                step.outputs[name]: lines
                for name, lines in model.labels.items()
                if name in step.outputs
            }
        )
    return labels


def _read(config: ModelConfig, folder: Path) -> dict[str, tuple[str, ...]]:
    labels: dict[str, tuple[str, ...]] = {}
    for output in config.signature.outputs:
        if output.labels_file:
            path = folder / output.labels_file
            try:
                # Not splitlines: Triton ends a label at a line feed and nowhere else.
                labels[output.name] = tuple(path.read_bytes().decode().split("\n"))
            except FileNotFoundError as error:
                raise internal(
                    f"failed to open text file for read {path}: No such file or directory"
                ) from error
            except (OSError, UnicodeDecodeError) as error:
                raise invalid_arg(f"failed to read label file {path}: {error}") from error
    return labels
