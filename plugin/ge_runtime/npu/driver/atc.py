"""ATC, CANN's compiler: from model.onnx to model.om, and the record of what it was made of.

A record lies beside each file that was made here. Where it names the same graph, options and
compiler, and the file is the one it speaks of, there is nothing to do.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.installation import cann_version, read_text_or_none

_CHUNK: Final = 2**20
_TOLD_LINES: Final = 20
"""Of what ATC says when it fails: the end, where the reason is."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What a compiled file was made of."""

    source_sha256: str
    """Of the .onnx file; where its weights are in other files, of those as well."""
    flags: tuple[str, ...]
    """That decide what is made: shapes, gears, chip, precision."""
    compiler: str
    """Which ATC it was."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Flags that name a file: the SHA-256 of its content."""

    def describes(self, om: Path) -> bool:
        """Whether the file at `om` was made of just this."""
        try:
            there = json.loads(record_path(om).read_text(encoding="utf-8"))
            return bool(there == self.as_json(om))
        except (OSError, ValueError):
            return False

    def as_json(self, om: Path) -> dict[str, object]:
        """The record with the file that it is about. Raises OSError if that is not there."""
        files = {"files": dict(self.files)} if self.files else {}
        return {
            "source_sha256": self.source_sha256,
            "flags": list(self.flags),
            "compiler": self.compiler,
            **files,
            "om_sha256": sha256_of(om),
        }

    def write(self, om: Path) -> None:
        """Put it beside the file."""
        text = json.dumps(self.as_json(om), indent=2) + "\n"
        record_path(om).write_text(text, encoding="utf-8")


class Atc:
    """The compiler that the environment has."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path = path
        self._environment = environment

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Atc:
        """The `atc` on PATH. Raises ArtifactFault, with the cure, if there is none."""
        found = shutil.which("atc", path=environment.get("PATH"))
        if found is None:
            raise ArtifactFault(
                "found no `atc` on PATH, expected CANN's compiler: run `source "
                "/usr/local/Ascend/cann/set_env.sh`, or of the folder that CANN is installed in"
            )
        return cls(Path(found), environment)

    @property
    def identity(self) -> str:
        """What tells this compiler from others: CANN's version if it says one, and its bytes."""
        variables = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
        homes = [Path(self._environment[each]) for each in variables if each in self._environment]
        versions = (version for home in homes if (version := _version(home)))
        # Its bytes as well: an installation may say no version.
        return ", ".join([*islice(versions, 1), f"atc {sha256_of(self._path)[:16]}"])

    def compile(self, source: Path, om: Path, flags: Sequence[str]) -> None:
        """Make `om` of `source`; replaced at once, when all is well. May take many minutes.

        Raises ArtifactFault with what ATC says if it fails.
        """
        # In om's own folder: a rename replaces at once, and does not go across file systems.
        with tempfile.TemporaryDirectory(dir=om.parent, prefix=".build_") as folder:
            output = Path(folder) / "model"
            command = [str(self._path), "--framework=5", f"--model={source}", f"--output={output}"]
            done = subprocess.run(
                [*command, *flags],
                env=dict(self._environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",  # it may speak another language than the locale's
                check=False,
            )
            # Some versions put the system and architecture into the name.
            made = sorted(Path(folder).glob("*.om"))
            if done.returncode != 0 or len(made) != 1:
                said = "\n".join(done.stdout.splitlines()[-_TOLD_LINES:])
                raise ArtifactFault(
                    f"{source}: atc failed with exit code {done.returncode}; it was called with "
                    f"{' '.join(flags)} and said:\n{said}"
                )
            made[0].replace(om)


def own_precision(chip: str) -> str:
    """The `--precision_mode_v2` that keeps most of a graph's own types on a chip.

    The matrix units of 310 and 310P compute FP16 and INT8 alone: with `origin` an FP32 MatMul or
    Conv goes to the AI CPU there, which is slow, or cannot be compiled.
    """
    halves = chip.startswith("Ascend310") and not chip.startswith("Ascend310B")
    return "fp16" if halves else "origin"


def sha256_of(path: Path) -> str:
    """Of a file's content, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def content_of(path: Path) -> str:
    """SHA-256 of a file, or of all files of a folder with their names. Raises OSError."""
    if not path.is_dir():
        return sha256_of(path)
    digest = hashlib.sha256()
    for each in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{each.relative_to(path)}\0{sha256_of(each)}\0".encode())
    return digest.hexdigest()


def ensure_content(path: Path, digest: str) -> None:
    """Raises ArtifactFault, or OSError, if the file is not what it was when it had this SHA-256."""
    if sha256_of(path) != digest:
        raise ArtifactFault(
            f"{path}: found another content than when it was loaded, expected the same: "
            "a file is replaced by unloading the model first, or as a new version"
        )


def record_path(om: Path) -> Path:
    """Where the record of a file lies."""
    return om.with_name(f"{om.name}.json")


def recorded_flag(om: Path, digest: str, name: str) -> str | None:
    """The value of a flag that a file was compiled with; None where no record of it tells.

    digest: SHA-256 of the file. A record may be written by hand, of files that were made elsewhere.
    """
    try:
        record = json.loads(record_path(om).read_text(encoding="utf-8"))
        if record["om_sha256"] == digest:
            values = (flag.partition("=") for flag in record["flags"])
            return next((str(value) for flag, _, value in values if flag == name), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _version(home: Path) -> str:
    """What an installation of CANN says of its version, all parts of it; "" if nothing."""
    text = read_text_or_none(home / "version.cfg")
    return cann_version(home) or "" if text is None else " ".join(text.split())
