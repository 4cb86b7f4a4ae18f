"""Recipes: one artifact of the model repository each, how to make it and what it depends on.

`artifacts` has those of all models.

`build_all` makes what is missing or out of date, and leaves the rest alone. An artifact appears
complete or not at all: it is written beside its place and renamed into it. Its stamp, the recipe's
digest, lies in `.cache/` of the same version folder, so that it travels with the artifact; servers
ignore folders whose names are not numbers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


class BuildError(Exception):
    """An artifact cannot be built; the message says what is at fault and what to do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one artifact is made.

    model: the model's name, which is its folder in the repository.
    file: the artifact's name in the version folder `1`, such as `model.onnx`.
    build: writes the artifact to the path it is given, whose suffix is that of `file`, and reports
        what takes long through its module's logger. It works from `inputs` alone, so the same
        inputs give the same artifact whatever was built before. Raises BuildError.
    inputs: the files whose content decides the result. The sources that do the work are among
        them, so that a changed recipe builds again; see `sources`.
    needs_torch: made only on request (`--torch`), since serving needs no torch.
    same_as: the recipe of an equal artifact elsewhere. Where that one is current, it gets a second
        name instead of being built twice.
    """

    model: str
    file: str
    build: Callable[[Path], None]
    inputs: tuple[Path, ...]
    needs_torch: bool = False
    same_as: Recipe | None = None

    def target(self, repository: Path) -> Path:
        """The artifact's path in `repository`."""
        return repository / self.model / "1" / self.file

    def digest(self) -> str:
        """SHA-256 over the inputs, in hexadecimal: equal digests promise equal artifacts.

        Raises FileNotFoundError if an input file is missing. Reads the files; blocks.
        """
        total = hashlib.sha256()
        for path in self.inputs:
            # A hash of hashes, so that a byte that moves from one file to the next counts.
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()


def sources(*modules: str) -> tuple[Path, ...]:
    """The source files of these modules of model_factory, as inputs of a recipe."""
    return tuple(Path(__file__).with_name(f"{module}.py") for module in modules)


logger = logging.getLogger(__name__)


def build_all(recipes: Iterable[Recipe], repository: Path, *, force: bool = False) -> int:
    """Bring the artifacts of `recipes` in `repository` up to date; returns how many were built.

    force: build those that are current, too.
    Raises what a recipe's `build` raises; artifacts made before stay.
    Blocks for as long as the recipes take, and reports each artifact in one or two log lines.
    """
    built = 0
    for recipe in recipes:
        name = f"{recipe.model}/1/{recipe.file}"
        if not force and is_current(recipe, repository):
            logger.info("%s is up to date", name)
            continue
        logger.info("%s: building", name)
        started = time.monotonic()
        build_one(recipe, repository)
        size = recipe.target(repository).stat().st_size
        seconds = time.monotonic() - started
        logger.info("%s: built in %.1f s, %.0f kB", name, seconds, size / 1e3)
        built += 1
    return built


def is_current(recipe: Recipe, repository: Path) -> bool:
    """Whether the artifact exists, whole, as this recipe would build it.

    Reads the recipe's inputs and the stamp, but not the artifact, of which only the size is
    compared: a copy that was cut short shows there, and 90 MB need not be hashed at every start.
    """
    target = recipe.target(repository)
    try:
        return _stamp_path(target).read_text() == _stamp(recipe, target)
    except FileNotFoundError:
        return False


def build_one(recipe: Recipe, repository: Path) -> None:
    """Build one artifact, current or not, and its stamp.

    Two processes that build the same artifact at once both succeed; the last one stays.
    Raises what `recipe.build` raises, and leaves an artifact from before as it was.
    """
    target = recipe.target(repository)
    stamp_path = _stamp_path(target)
    stamp_path.parent.mkdir(parents=True, exist_ok=True)
    draft = stamp_path.with_name(f"{os.getpid()}-{target.name}")
    try:
        if recipe.same_as and is_current(recipe.same_as, repository):
            _link(recipe.same_as.target(repository), draft)
        else:
            recipe.build(draft)
        # The old stamp goes first: interrupted between here and the end, the artifact counts
        # as out of date rather than as something it is not.
        stamp_path.unlink(missing_ok=True)
        draft.replace(target)
        stamp_path.write_text(_stamp(recipe, target))
    finally:
        draft.unlink(missing_ok=True)


def _link(source: Path, path: Path) -> None:
    """Give the file a second name, or a copy where the file system has one name for each."""
    try:
        path.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, path)


def _stamp_path(target: Path) -> Path:
    return target.parent / ".cache" / f"{target.name}.stamp"


def _stamp(recipe: Recipe, target: Path) -> str:
    return f"{recipe.digest()} {target.stat().st_size}\n"
