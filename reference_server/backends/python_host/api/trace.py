"""`InferenceTrace`: what ties a request to those that are sent on its behalf."""

from __future__ import annotations

from reference_server.backends.python_host.api.native import MODULE, NotConstructible
from reference_server.core.request import RequestTrace


class InferenceTrace(NotConstructible):
    """The trace of a request, to be handed to the requests that its model sends."""

    __slots__ = ("_trace",)
    __module__ = MODULE

    _trace: RequestTrace | None

    @classmethod
    def _of(cls, trace: RequestTrace | None) -> InferenceTrace:
        self = object.__new__(cls)
        self._trace = trace
        return self

    def get_context(self) -> str | None:
        """The trace's context as JSON text; None, since only OpenTelemetry has one."""
        return None
