"""A folder exported by optimum, transformers or sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from ge_runtime.discovery.graph import Graph
from ge_runtime.errors import ArtifactFault
from ge_runtime.steps.answers import POOLINGS
from ge_runtime.steps.json_files import read_fields, read_json
from ge_runtime.steps.pictures import ImageProcessor
from ge_runtime.steps.samples import EXTRACTOR, reads_normalization
from ge_runtime.steps.texts import read_tokenizer

_GRAPHS: Final = ("model.onnx", "onnx/model.onnx")
_PARTS: Final = ("encoder_model.onnx", "decoder_model.onnx", "text_model.onnx", "vision_model.onnx")
_MODULES: Final = ("Transformer", "Pooling", "Normalize")
"""The modules of sentence-transformers that are supported."""
PREPROCESSOR: Final = "preprocessor_config.json"
TOKENIZER: Final = "tokenizer.json"
IDS: Final = "input_ids"
"""The graph's input of token ids."""


class Kind(Enum):
    """The content of requests."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Export:
    """The files of an exported model."""

    folder: Path
    graph: Path
    kind: Kind
    config: Mapping[str, Any]
    """The fields of config.json; empty if the file is missing."""

    @classmethod
    def read(cls, folder: Path) -> Export | None:
        """Return the export in a folder; None for any other folder.

        Raises:
            ArtifactFault: A file is damaged, or describes an unsupported model.
        """
        graph = next((folder / name for name in _GRAPHS if (folder / name).is_file()), None)
        described = [name for name in (TOKENIZER, PREPROCESSOR) if (folder / name).is_file()]
        if graph is None:
            parts = [name for name in _PARTS if list(folder.rglob(name))]
            if described and parts:
                raise ArtifactFault(
                    f"{folder}: found {', '.join(parts)}, expected one graph, model.onnx; models "
                    "of several graphs are not supported"
                )
            return None
        if not described:
            if (folder / "tokenizer_config.json").is_file():
                raise ArtifactFault(
                    f"{folder}: found no {TOKENIZER}, expected one; write it with "
                    "`AutoTokenizer.from_pretrained(...).save_pretrained(...)` of transformers"
                )
            return None
        if PREPROCESSOR not in described:
            kind = Kind.TEXT
            read_tokenizer(folder / TOKENIZER)
        elif read_fields(folder / PREPROCESSOR).get("feature_extractor_type") == EXTRACTOR:
            kind = Kind.AUDIO
            reads_normalization(folder / PREPROCESSOR)
        else:
            kind = Kind.IMAGE
            ImageProcessor.read(folder / PREPROCESSOR)
            if TOKENIZER in described:
                raise ArtifactFault(
                    f"{folder}: found {TOKENIZER} and {PREPROCESSOR}, expected one of them; models "
                    "of texts and images together are not supported"
                )
        config = folder / "config.json"
        found = cls(folder, graph, kind, read_fields(config) if config.is_file() else {})
        found.pooling()
        return found

    def fields(self, name: str) -> Mapping[str, Any]:
        """Return the object of a JSON file of the folder; empty if it is missing."""
        file = self.folder / name
        return read_fields(file) if file.is_file() else {}

    def is_for(self, task: str) -> bool:
        """Return whether config.json names an architecture for a task, e.g. CTC; "" is any task."""
        names = [str(name) for name in self.config.get("architectures") or ()]
        return any("For" in name and name.endswith(task) for name in names)

    def pooling(self) -> tuple[str, bool]:
        """Return the pooling ("" if no file describes it), and whether vectors are normalized.

        Raises:
            ArtifactFault: A file of sentence-transformers describes an unsupported model.
        """
        listed = self.folder / "modules.json"
        folder, normalize = self.folder / "1_Pooling", False
        if listed.is_file():
            modules = read_json(listed)
            if not (isinstance(modules, list) and all(isinstance(each, dict) for each in modules)):
                raise ArtifactFault(f"{listed}: found no list of modules, expected one")
            kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
            unknown = next((kind for kind in kinds if kind not in _MODULES), None)
            if unknown:
                raise ArtifactFault(
                    f"{listed}: found the module '{unknown}', expected only {', '.join(_MODULES)}"
                )
            normalize = "Normalize" in kinds
            if "Pooling" not in kinds:
                return "", normalize
            folder = self.folder / str(modules[kinds.index("Pooling")].get("path", ""))
        file = folder / "config.json"
        if not file.is_file():
            return "", normalize
        fields = self.fields(str(file.relative_to(self.folder)))
        prefix = "pooling_mode_"
        found = [
            key.removeprefix(prefix).removesuffix("_tokens").removesuffix("_token")
            for key, value in fields.items()
            if key.startswith(prefix) and value is True
        ] or [str(fields.get("pooling_mode", ""))]
        if len(found) != 1 or found[0] not in POOLINGS:
            raise ArtifactFault(
                f"{file}: found pooling mode {', '.join(found) or 'none'}, expected one of: "
                f"{', '.join(POOLINGS)}"
            )
        return found[0], normalize

    def fix_sizes(self, graph: Graph) -> None:
        """Fix the dims of images to the size that the image processor makes.

        Exporters make all dims free, including the channels, and executions of the graph at
        different sizes cannot show which sizes are right.

        Raises:
            ArtifactFault: The graph has other inputs, or an input of another size.
        """
        names = [port.name for port in graph.inputs]
        if self.kind is Kind.TEXT and IDS not in names:
            raise ArtifactFault(f"{self.graph}: found inputs {', '.join(names)}, expected '{IDS}'")
        if self.kind is not Kind.IMAGE:
            return
        (port, *others) = graph.inputs
        height, width = ImageProcessor.read(self.folder / PREPROCESSOR).size
        channels_last = port.dims[-1] == 3 and port.dims[1] != 3
        sides = (height, width, 3) if channels_last else (3, height, width)
        fits = len(port.dims) == 4 and all(
            isinstance(dim, str) or dim == side
            for dim, side in zip(port.dims[1:], sides, strict=False)
        )
        if not fits or others:
            found = [list(one.dims) for one in graph.inputs]
            raise ArtifactFault(
                f"{self.graph}: found inputs with dims {found}, expected one with "
                f"{[port.dims[0], *sides]}, as {PREPROCESSOR} describes"
            )
        graph.inputs = (replace(port, dims=(port.dims[0], *sides)),)
