"""What an execution means for its requests: answered, given again, or left to their senders."""

from __future__ import annotations

from collections.abc import Sequence

from reference_server.backends.python_host.api.constants import (
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
)
from reference_server.backends.python_host.api.request import InferenceRequest
from reference_server.backends.python_host.api.response import InferenceResponse
from reference_server.backends.python_host.senders import Senders
from reference_server.core.errors import ServerError
from reference_server.core.response import InferResponse

Answer = InferenceResponse | None

_NOT_ITERATIVE = (
    "Failed to release request: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, "
    "while the model is not configured to handle such a flag."
)
_SENT_AND_RETURNED = (
    "Unable to send response. Non-decoupled model cannot send more than one response."
)


def answers(
    returned: object, received: Sequence[InferenceRequest], senders: Senders
) -> Sequence[Answer]:
    """What `execute` returned, as one answer per request. Raises ServerError if it is not that."""
    count = len(received)
    if senders.is_decoupled:
        if returned is not None:
            raise senders.failure(
                f"Python model '{senders.name}' is using the decoupled mode and the execute "
                "function must return None."
            )
        return [None] * count
    if returned is None:
        return [None] * count
    if not isinstance(returned, list):
        raise senders.failure(
            f"Expected a list in the execute return, found type '{type(returned)}'."
        )
    if len(returned) != count:
        raise senders.failure(
            "Number of InferenceResponse objects do not match the number of InferenceRequest "
            f"objects. InferenceRequest(s) size is:{count}, and InferenceResponse(s) size is:"
            f"{len(returned)}\n"
        )
    for request, answer in zip(received, returned, strict=True):
        if answer is None:
            continue
        if not isinstance(answer, InferenceResponse):
            raise senders.failure(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(answer)}'."
            )
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            raise senders.failure(
                "Expected a None object in the execute function return list for reschduled "
                f"request, found type '{type(answer)}'."
            )
    return returned


def responses(
    received: Sequence[InferenceRequest], answers: Sequence[Answer], senders: Senders
) -> Sequence[InferResponse | None]:
    """The server's responses for `answers`; None where it is the sender's affair.

    A request without an answer has a sender from now on, which lives as long as the model keeps it
    or the request.
    """
    responses: list[InferResponse | None] = []
    for request, answer in zip(received, answers, strict=True):
        response: InferResponse | None = None
        if answer is None:
            request.get_response_sender()
        elif (sender := request._settle()) is None or sender._retire():
            response = senders.respond(request._request, answer)
        else:
            sender._fail(senders.failure(_SENT_AND_RETURNED))
        responses.append(response)
    return responses


def given_again(
    received: Sequence[InferenceRequest], senders: Senders, *, is_iterative: bool
) -> frozenset[int]:
    """The places of the requests that the model gets once more.

    Those that cannot be given again end with an error, unless they have ended already.
    """
    places = [
        place
        for place, request in enumerate(received)
        if request._release_flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    ]
    if not is_iterative:
        for place in places:
            received[place].get_response_sender()._fail(senders.failure(_NOT_ITERATIVE))
        return frozenset()
    return frozenset(place for place in places if received[place].get_response_sender()._retire())


def failed(received: Sequence[InferenceRequest], error: ServerError) -> bool:
    """End all requests that are still open with `error`; False if nobody has used a sender.

    Then all are still to be answered, by whoever is told of the error.
    """
    if all(request._sender is None for request in received):
        for request in received:
            request._is_answered = True
        return False
    for request in received:
        request.get_response_sender()._fail(error)
    return True
