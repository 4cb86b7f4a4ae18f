"""Auto-completion in a process of its own: what the model's file does there stays there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference_server.backends.process_host.link import Handler, Link
from reference_server.backends.process_host.process import ChildProcess, ProcessEnded
from reference_server.backends.process_host.services import write_record
from reference_server.core.errors import internal


class _Attendant:
    """Takes log lines: a model that completes its configuration has no server to ask."""

    def __init__(self, link: Link) -> None:
        self.handlers: Mapping[str, Handler] = {"log": write_record}

    def end(self) -> None:
        pass


def auto_complete(model_file: Path, model_name: str, config: dict[str, Any]) -> dict[str, Any]:
    """`config` as the model's `auto_complete_config` completes it; as it is if it has none.

    Blocks for as long as the model does. Raises ServerError as the inline host does, and if the
    process ends.
    """
    child = ChildProcess(model_name, _Attendant)
    child.start()
    try:
        text = child.ask("complete", str(model_file), model_name, json.dumps(config))
    except ProcessEnded as error:
        raise internal(
            f"Stub process '{model_name}' {error} while it completed the configuration."
        ) from error
    finally:
        child.exit()
    completed: dict[str, Any] = json.loads(text)
    return completed
