"""What a load request puts in place of the repository: a configuration, and files.

Files are written below a directory of their own, never outside of it, which lives for as long as
a model that was loaded from it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.core.errors import internal, invalid_arg


@dataclass(frozen=True, slots=True)
class Override:
    """`config` is JSON that replaces config.pbtxt; `files` replace all of the model's folder.

    `files` maps paths within the folder to contents.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


class FileDirectory:
    """A model's folder made of given files alone; removed when its last holder lets go.

    Made with one holder. Any thread.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Write `files`. Raises ServerError if a path leads out, or nowhere."""
        self.path = Path(tempfile.mkdtemp(prefix="folder"))
        self._lock = threading.Lock()
        self._holders = 1
        try:
            for name, content in files.items():
                target = _inside(self.path, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except OSError as error:
            self.release()
            raise internal(f"failed to write the files of a load request: {error}") from error
        except BaseException:
            self.release()
            raise

    def hold(self) -> None:
        """Keep the directory until `release`."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Let go; the last to do so removes the directory."""
        with self._lock:
            self._holders -= 1
            left = self._holders
        if not left:
            shutil.rmtree(self.path, ignore_errors=True)


def _inside(directory: Path, name: str) -> Path:
    """The path of the file `name` below `directory`. Raises ServerError if it is none."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.endswith("/") or ".." in parts or "\0" in name:
        raise invalid_arg(f"'{name}' names no file within the model's directory")
    return directory.joinpath(*parts)


def parse_config(text: str) -> ConfigProto:
    """The configuration in the JSON `text`. Raises ServerError with Triton's text."""
    config = ConfigProto()
    try:
        if not isinstance(json.loads(text), dict):
            raise TypeError("Root element must be a message.")
        json_format.Parse(text, config)
    except (json_format.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise invalid_arg(f"Invalid config override: {error}") from error
    return config
