"""What a recipe is: one artifact of the model repository, how to make it and what it depends on.

Values only. `artifacts` executes recipes; a module with models to offer exports its own
`RECIPES: tuple[Recipe, ...]`, and `__main__` joins them. Importing such a module must be cheap:
heavy libraries (onnx, torch, ...) are imported inside `build`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one artifact is made.

    model: the model's name, which is its folder in the repository.
    file: the artifact's name in the version folder `1`, such as `model.onnx`.
    build: writes the artifact to the path it is given, whose suffix is that of `file`, and reports
        what takes long through its module's logger. It works from `inputs` alone, so the same
        inputs give the same artifact whatever was built before.
    inputs: what decides the result: files (by content) and literal texts such as a pinned hash.
        The source files that do the work belong here, so that a changed recipe builds again.
    needs_torch: made only on request (`--torch`), since serving needs no torch.
    """

    model: str
    file: str
    build: Callable[[Path], None]
    inputs: tuple[Path | str, ...]
    needs_torch: bool = False

    def target(self, repository: Path) -> Path:
        """The artifact's path in `repository`."""
        return repository / self.model / "1" / self.file

    def digest(self) -> str:
        """SHA-256 over the inputs, in hexadecimal: equal digests promise equal artifacts.

        Raises FileNotFoundError if an input file is missing. Reads the files; blocks.
        """
        total = hashlib.sha256()
        for item in self.inputs:
            content = item.encode() if isinstance(item, str) else item.read_bytes()
            # Hashing each input first keeps the border between two of them: "ab","c" is not "a","bc".
            total.update(hashlib.sha256(content).digest())
        return total.hexdigest()
