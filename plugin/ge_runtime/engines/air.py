"""An AIR file: a graph for a session of GE, and what it takes and gives.

AIR files are what torchair's `dynamo_export` and GE-PY's `Graph.save_to_air` write. There is no
way from ONNX to a session in Python: an ONNX graph becomes a model.om, by `ge-runtime build`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_runtime.ascend.atc import ensure_content, sha256_of
from ge_runtime.ascend.driver import ACL_DTYPES
from ge_runtime.ascend.ge_py import GeProcess, Graph, GraphValue, graph_inputs, graph_outputs
from ge_runtime.ascend.ge_session_executor import UNSUPPORTED_DTYPES
from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import ArtifactFault


@dataclass(frozen=True, slots=True)
class AirFile:
    """A file that GE-PY has read once."""

    path: Path
    ge: GeProcess
    digest: str
    """SHA-256 of its content."""
    signature: Signature

    @classmethod
    def open(cls, path: Path, ge: GeProcess, outputs: Sequence[str]) -> AirFile:
        """The file at `path`. Raises ArtifactFault.

        outputs: the names of the graph's results in their order, as an AIR graph has none for them.
        """
        try:
            digest = sha256_of(path)
            graph = _load(path, ge)
            signature = _signature(path, graph_inputs(graph), graph_outputs(graph), outputs)
        except OSError as error:
            raise ArtifactFault(f"{path}: {error.strerror}") from error
        except (RuntimeError, ValueError, AttributeError) as error:
            raise ArtifactFault(
                f"{path}: GE cannot read it: {error}; expected an AIR file of this CANN, as "
                "torchair's dynamo_export writes it; of a model.onnx `ge-runtime build` makes a "
                "model.om"
            ) from error
        return cls(path, ge, digest, signature)

    def graph(self) -> Graph:
        """The graph, read anew: one is of one session.

        Raises RuntimeError as GE does, and ArtifactFault if the file is another by now, or gone.
        """
        try:
            ensure_content(self.path, self.digest)
        except OSError as error:
            raise ArtifactFault(f"{self.path}: {error.strerror}") from error
        return _load(self.path, self.ge)


def _load(path: Path, ge: GeProcess) -> Graph:
    graph = ge.py.graph.Graph(path.parent.parent.name or "graph")
    graph.load_from_air(str(path))
    return graph


def _signature(
    path: Path, inputs: Sequence[GraphValue], results: Sequence[GraphValue], names: Sequence[str]
) -> Signature:
    if len(results) != len(names):
        found = f"{len(results)} result(s)" if results else "no node NetOutput"
        raise ArtifactFault(
            f"{path}: found {found}, expected one for each output of config.pbtxt, in its order: "
            f"{', '.join(names)}"
        )
    return Signature(
        inputs=tuple(_tensor(path, value, value.name) for value in inputs),
        outputs=tuple(
            _tensor(path, value, name) for value, name in zip(results, names, strict=True)
        ),
    )


def _tensor(path: Path, value: GraphValue, name: str) -> GraphTensor:
    dtype = ACL_DTYPES.get(value.dtype)
    if dtype is None or dtype in UNSUPPORTED_DTYPES:
        lacked = ", ".join(each.value for each in UNSUPPORTED_DTYPES)
        raise ArtifactFault(
            f"{path}: '{name}': found type {dtype.value if dtype else value.dtype}, expected one "
            f"that GE-PY has tensors of: Triton's but {lacked} and BYTES; a model.om can have more"
        )
    return GraphTensor(name, dtype, value.dims)
