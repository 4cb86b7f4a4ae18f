"""Names of a graph's classes, from the files beside it and from its metadata."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ge_runtime.discovery.configuration import Configuration
from ge_runtime.engines.analysis.onnx_file import KEY, VALUE, OnnxFile
from ge_runtime.engines.analysis.protobuf import fields
from ge_runtime.errors import ArtifactFault
from ge_runtime.steps.json_files import read_fields

LABEL_FILE: Final = "labels.txt"
_METADATA: Final = 14
"""The field of an .onnx file with metadata properties, encoded like properties of external data."""
_PROPERTIES: Final = ("id2label", "names", "labels", "classes", "class_names")
"""Metadata properties that exporters use; Ultralytics uses `names`."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The names of classes, in the order of their numbers."""

    names: tuple[str, ...]
    source: str

    def attach(self, found: Configuration) -> bool:
        """Set the label file of the output with one value for each name; return whether it exists.

        A note is added to the configuration.
        """
        for at, tensor in enumerate(found.outputs):
            if tensor.dims == (len(self.names),):
                found.outputs[at] = replace(tensor, label_filename=LABEL_FILE)
                found.notes.append(f"Labels of output '{tensor.name}': {self.source}.")
                return True
        found.notes.append(
            f"Labels in {self.source} are not used: no output has dims [ {len(self.names)} ]."
        )
        return False

    def write(self, folder: Path) -> None:
        """Write the label file into the folder of a model."""
        text = "".join(f"{' '.join(name.split())}\n" for name in self.names)
        (folder / LABEL_FILE).write_text(text, encoding="utf-8")


def find_labels(folder: Path, graph: Path) -> Labels | None:
    """Return the labels of a graph, or None; `folder` has the files that describe the graph.

    Raises:
        ArtifactFault: config.json is no JSON object, or its id2label does not number the labels.
    """
    config = folder / "config.json"
    if config.is_file() and (named := read_fields(config).get("id2label")):
        names = _in_order(named)
        if names is None:
            raise ArtifactFault(
                f"{config}: found id2label {named!r}, expected a name for each number from 0"
            )
        return Labels(names, "id2label in config.json")
    lines = folder / LABEL_FILE
    if lines.is_file():
        return Labels(tuple(lines.read_text(encoding="utf-8").splitlines()), LABEL_FILE)
    metadata = _metadata(graph) if graph.suffix == ".onnx" else {}
    for name in _PROPERTIES:
        try:
            found = ast.literal_eval(metadata.get(name, ""))
        except (SyntaxError, ValueError):
            found = metadata.get(name, "").split(",")
        # A single name is some other text, not a list of classes.
        names = _in_order(found)
        if names and len(names) > 1:
            return Labels(names, f"metadata property '{name}'")
    return None


def _metadata(graph: Path) -> dict[str, str]:
    """Return the metadata properties of an .onnx file."""
    found = {}
    for number, _, content in fields(memoryview(OnnxFile.read(graph).model)):
        if number == _METADATA:
            entry = {part: bytes(text).decode() for part, _, text in fields(content)}
            found[entry.get(KEY, "")] = entry.get(VALUE, "")
    return found


def _in_order(found: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - of a file
    if isinstance(found, Mapping):
        by_number = {str(number): str(name) for number, name in found.items()}
        numbers = [str(number) for number in range(len(by_number))]
        return tuple(by_number[one] for one in numbers) if {*numbers} == {*by_number} else None
    if isinstance(found, list | tuple):
        return tuple(str(name).strip() for name in found)
    return None
