"""Model repositories on disk, of models so small that they load at once."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from reference_server.core.profiles import V2_51
from reference_server.options import ServerOptions

#: Options of a loader that imitates the verified release.
OPTIONS = ServerOptions((), profile=V2_51)

VECTOR = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())
                ])
                for r in requests
            ]
"""

#: A model that cannot start; the text is that of its exception.
BROKEN = """
    class TritonPythonModel:
        def initialize(self, args):
            raise RuntimeError("init no good")
"""


def write_model(
    repository: Path,
    name: str,
    config: str | None = VECTOR,
    source: str | None = IDENTITY,
    *,
    versions: Sequence[object] = (1,),
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write one model's folder; without a source its version folders are empty."""
    folder = repository / name
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    for version in versions:
        (folder / str(version)).mkdir()
        if source is not None:
            (folder / str(version) / "model.py").write_text(textwrap.dedent(source))
    for path, text in (files or {}).items():
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def write_ensemble(repository: Path, name: str, config: str, **more: object) -> Path:
    """Write the folder of a model that has no code."""
    return write_model(repository, name, config, None, **more)
