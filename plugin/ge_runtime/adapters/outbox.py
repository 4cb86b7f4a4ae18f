"""The outbox: responses that leave by their requests' senders while a model still executes."""

from __future__ import annotations

import traceback
from queue import Queue
from threading import Thread

from ge_runtime.adapters.responses import PbUtils, Request


class Outbox:
    """Sends responses on a thread of its own, in the order in which they are put.

    tritonserver takes 0.16 ms for each, most of it waiting; meanwhile the model executes.
    """

    def __init__(self, pb_utils: PbUtils, instance_name: str) -> None:
        """instance_name: for people."""
        self._final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._log = pb_utils.Logger.log_error
        self._name = instance_name
        self._left: Queue[tuple[Request, object] | None] = Queue()
        self._thread = Thread(target=self._send_all, name=f"{instance_name}-outbox", daemon=True)
        self._thread.start()

    def put(self, request: Request, response: object) -> None:
        """Send the one response to this request; returns at once."""
        self._left.put((request, response))

    def drain(self) -> None:
        """Returns when all that was put is sent."""
        self._left.join()

    def close(self) -> None:
        """Send what is left, and end the thread. Safe to call twice."""
        self._left.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        while (item := self._left.get()) is not None:
            try:
                self._send(*item)
            finally:
                del item  # the request's memory is the server's
                self._left.task_done()

    def _send(self, request: Request, response: object) -> None:
        try:
            # With its flag in one call: sent in two, tritonserver dies if the client has cancelled.
            request.get_response_sender().send(response, self._final)
        except Exception as error:
            # The sender is closed, so nobody can answer this request any more.
            text = "".join(traceback.format_exception(error)).rstrip()
            self._log(f"{self._name}: a response could not be sent: {text}")
