"""A sequence batcher with virtual time and instances that the test controls."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from server.support.clock import SECOND_NS
from server.support.configs import model_config
from server.support.requests import Answers, a_request, array_tensor

from reference_server.core.errors import ServerError
from reference_server.core.request import InferRequest, InferResponse, SequenceFlag
from reference_server.scheduling.sequence_strategies import sequence_queue
from reference_server.scheduling.work_queue import Batch

FLAGS = {
    "": SequenceFlag.NONE,
    "start": SequenceFlag.START,
    "end": SequenceFlag.END,
    "both": SequenceFlag.START | SequenceFlag.END,
}
TENSORS = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""


class Stage:
    """Calls a queue as the instance scheduler does: after each event, for idle instances.

    `batches` are the started batches, as (instance, ids); the id of a null request is empty.
    `refused` has the errors by id.
    """

    def __init__(
        self, batching: str = "", *, max_batch_size: int = 4, more: str = "", **initial: bytes
    ) -> None:
        text = (
            f"max_batch_size: {max_batch_size} sequence_batching {{ {batching} }} {TENSORS} {more}"
        )
        config = model_config(text)
        assert config.sequence_batching is not None
        self.work = sequence_queue(config, config.sequence_batching, initial)
        self.instances = len(config.instance_names)
        self.now = 0
        self.busy: dict[int, Batch] = {}
        self.batches: list[tuple[int, list[str]]] = []
        self.refused: dict[str, ServerError] = {}

    def ask(
        self, name: str, key: int | str, flags: str = "", shape: int = 1, **fields: object
    ) -> InferRequest:
        """Send a request of sequence `key`. Raises ServerError if it is refused immediately."""
        request = a_request(
            array_tensor("X", [[1.0] * shape], "float32"),
            id=name,
            correlation_id=key,
            flags=FLAGS[flags],
            batch_key=(shape,),
            queued_ns=self.now,
            **({"sink": Answers()} | fields),
        )
        self.work.offer(request, self.now)
        self.look()
        return request

    def look(self) -> None:
        """Start the batches that the queue returns for idle instances."""
        for instance in range(self.instances):
            if instance not in self.busy and len(self.work):
                batch = self.work.take(instance, self.now)
                if batch:
                    for request in batch:
                        request.is_started = True
                    self.busy[instance] = batch
                    self.batches.append((instance, [request.id for request in batch]))
        for request, error in self.work.refused(self.now):
            assert request.id not in self.refused
            self.refused[request.id] = error

    def finish(self, instance: int = 0, again: Collection[str] = ()) -> Batch:
        """End the execution of an instance; the requests named in `again` are rescheduled."""
        batch = self.busy.pop(instance)
        wanted = [request for request in batch if request.id in again]
        self.work.finished(instance, batch, wanted, self.now)
        self.look()
        return batch

    def answer(self, instance: int = 0, **outputs: object) -> Batch:
        """Answer all requests of an execution, then end it."""
        for request in self.busy[instance]:
            tensors = [array_tensor(name, value) for name, value in outputs.items()]
            request.sink.send(InferResponse("m", 1, request.id, tensors))
        return self.finish(instance)

    def drain(self) -> None:
        """End executions until no instance is busy."""
        while self.busy:
            self.finish(next(iter(self.busy)))

    def wait(self, seconds: float) -> None:
        """Advance the time, and call the queue at each of its deadlines."""
        end = self.now + round(seconds * SECOND_NS)
        while (at := self.work.next_deadline_ns()) is not None and at <= end:
            assert at > self.now or not self.waits_in_vain(), "the timer would fire endlessly"
            self.now = max(self.now, at)
            self.look()
        self.now = end

    def waits_in_vain(self) -> bool:
        """Return whether a call at the queue's deadline changes nothing."""
        before = self.work.next_deadline_ns(), len(self.work), len(self.batches)
        self.look()
        return before == (self.work.next_deadline_ns(), len(self.work), len(self.batches))

    @property
    def ids(self) -> list[list[str]]:
        """The ids of the started batches of all instances."""
        return [ids for _, ids in self.batches]


def seen(request: InferRequest, name: str) -> Mapping[str, object]:
    """Return the type and value of an input."""
    tensor = request.inputs[name]
    return {"type": tensor.datatype.value, "value": tensor.array().tolist()}
