"""Handing a response to the sink of its request."""

from __future__ import annotations

import logging

from reference_server.core.defects import Contained
from reference_server.core.request import InferRequest, ResponseSink
from reference_server.core.response import InferResponse

log = logging.getLogger(__name__)

#: Neither a defect of a trace nor a full disk costs the answer.
TRACING = Contained("what became of a request was not traced")


def deliver(sink: ResponseSink, response: InferResponse) -> None:
    """Send `response` to `sink`. Any thread; an exception of the sink is logged and ends here.

    So a defect of whoever takes an answer ends neither an instance nor the answers of others.
    """
    try:
        sink.send(response)
    except Exception:
        name, version = response.model_name, response.model_version
        log.exception("a response of %s version %d to '%s' was lost", name, version, response.id)


def answer(request: InferRequest, response: InferResponse) -> None:
    """The same for the only response to a request that no instance has executed.

    Ends its trace, if it has one.
    """
    if request.trace is not None:
        with TRACING:
            request.trace.answered(response.outputs)
    deliver(request.sink, response)
