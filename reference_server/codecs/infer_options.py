"""How a client wants its answer: which outputs as binary data, as classes, in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reference_server.core.ports import OutputBuffer


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of one output: `classes` > 0 turns it into its best `classes` classes.

    With a `buffer` its bytes go there, and the response only says that they exist.
    """

    binary: bool = False
    classes: int = 0
    buffer: OutputBuffer | None = None


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """The form of a response: `outputs` by name; `default` holds for outputs not named."""

    default: OutputForm = OutputForm()
    outputs: Mapping[str, OutputForm] = field(default_factory=dict)

    def of(self, name: str) -> OutputForm:
        """The form of output `name`."""
        return self.outputs.get(name, self.default)
