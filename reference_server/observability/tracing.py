"""Traces of requests with timestamps and tensors, in the format of Triton's trace file.

A traced request has a `Trace`; other requests have None and no overhead. Texts that Triton writes
without escapes are escaped here, so that the file is always JSON.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from reference_server.core import byte_strings
from reference_server.core.byte_strings import element_bytes
from reference_server.core.ports import Clock
from reference_server.core.request import InferRequest, Parameter
from reference_server.core.telemetry import Sample
from reference_server.core.tensor import DataType, Tensor
from reference_server.observability.sampling import SpanContext, TraceLevel, Tracer

log = logging.getLogger(__name__)


class FileMode:
    """The mode `triton`: traces are written to files."""

    follows_callers = False

    def __init__(self, path: str, clock: Clock) -> None:
        self._file = TraceFile(path)
        self._ids = itertools.count(1)
        self._clock = clock

    def tracer(self, level: TraceLevel, rate: int, count: int, log_frequency: int) -> FileTracer:
        return FileTracer(level, rate, count, log_frequency, self._file, self._ids, self._clock)

    def settings(self, log_frequency: int) -> Mapping[str, Sequence[str]]:
        return {
            "log_frequency": [str(log_frequency)],
            "trace_file": [self._file.path],
            "trace_mode": ["triton"],
        }

    def samples(self) -> Mapping[str, Sequence[Sample]]:
        """Return no metrics: as in Triton, this mode has none."""
        return {}

    def close(self) -> None:
        self._file.close()


class FileTracer(Tracer):
    """Writes the traces of one setting to files.

    With `log_frequency` N, each numbered file has N traces; with 0 the file itself has all traces.
    """

    def __init__(
        self,
        level: TraceLevel,
        rate: int,
        count: int,
        log_frequency: int,
        file: TraceFile,
        ids: Iterable[int],
        clock: Clock,
    ) -> None:
        super().__init__(level, rate, count, log_frequency)
        self._file = file
        self._ids = iter(ids)
        self._clock = clock
        self._kept: list[str] = []  # elements of traces for the next numbered file
        self._traces_kept = 0
        self._retired = False

    @property
    def fault_of_mode(self) -> str:
        return "" if self._file.path else "trace file name is not given"

    def _start(self, caller: SpanContext | None) -> Trace:
        return Trace(_Tree(self, self._ids, self._clock))

    def collect(self, elements: Sequence[str]) -> None:
        """Write or keep the elements of a complete trace."""
        if not self.log_frequency:
            self._file.append(elements)
            return
        with self._lock:
            self._kept.extend(elements)
            self._traces_kept += 1
            if self._traces_kept < self.log_frequency and not self._retired:
                return
            full, self._kept, self._traces_kept = self._kept, [], 0
        self._file.write_part(full)

    def retire(self) -> None:
        """Write the kept traces. Each trace that completes later is written to its own file."""
        with self._lock:
            self._retired = True
            rest, self._kept, self._traces_kept = self._kept, [], 0
        if rest:
            self._file.write_part(rest)


class _Tree:
    """The traces of a request and its ensemble steps, written when all of them are closed."""

    def __init__(self, tracer: FileTracer, ids: Iterable[int], clock: Clock) -> None:
        self.clock = clock
        self.level = tracer.level
        self._tracer = tracer
        self._ids = iter(ids)
        self._lock = threading.Lock()
        self._traces: list[Trace] = []
        self._open = 0

    def enter(self, trace: Trace) -> int:
        with self._lock:
            self._traces.append(trace)
            self._open += 1
            return next(self._ids)

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open:
                return
        # Triton writes the newest trace first.
        self._tracer.collect([text for trace in reversed(self._traces) for text in trace.elements])


class Trace:
    """The trace of one request or of one step of an ensemble; a RequestTrace."""

    __slots__ = ("_parent_id", "_tree", "elements", "id")

    def __init__(self, tree: _Tree, parent_id: int = 0) -> None:
        self._tree = tree
        self._parent_id = parent_id
        self.elements: list[str] = []
        self.id = tree.enter(self)

    @property
    def context(self) -> str:
        """Empty, because other processes cannot add to a trace in a file."""
        return ""

    def record(
        self, name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Parameter]
    ) -> None:
        """Do nothing: Triton's file format has no such element."""

    def child(self) -> Trace:
        return Trace(self._tree, self.id)

    def stamp(self, name: str, ns: int | None = None) -> None:
        if self._tree.level & TraceLevel.TIMESTAMPS:
            moment = self._tree.clock.monotonic_ns() if ns is None else ns
            self._add(f'"timestamps":[{{"name":"{name}","ns":{moment}}}]')

    def accepted(self, model: str, version: int, request: InferRequest) -> None:
        if self._tree.level & TraceLevel.TIMESTAMPS:
            head = f'"model_name":{_quoted(model)},"model_version":{version}'
            if request.id:
                head += f',"request_id":{_quoted(request.id)}'
            if self._parent_id:
                head += f',"parent_id":{self._parent_id}'
            self._add(head)
        self.stamp("REQUEST_START")
        self.stamp("QUEUE_START")
        # Triton reports no input without elements.
        self._tensors(
            "TENSOR_QUEUE_INPUT", [given for given in request.inputs.values() if given.byte_size]
        )

    def answered(
        self, outputs: Sequence[Tensor], execution_ns: tuple[int, int, int] | None = None
    ) -> None:
        """Record the response. This closes the trace of an ensemble step."""
        self._tensors("TENSOR_BACKEND_OUTPUT", outputs)
        if not self._parent_id:
            self.stamp("INFER_RESPONSE_COMPLETE")
        if execution_ns is not None:
            start_ns, input_end_ns, output_start_ns = execution_ns
            self.stamp("COMPUTE_START", start_ns)
            self.stamp("COMPUTE_INPUT_END", input_end_ns)
            self.stamp("COMPUTE_OUTPUT_START", output_start_ns)
            self.stamp("COMPUTE_END")
        self.stamp("REQUEST_END")
        if self._parent_id:
            self.close()

    def close(self) -> None:
        self._tree.leave()

    def _tensors(self, activity: str, tensors: Iterable[Tensor]) -> None:
        if self._tree.level & TraceLevel.TENSORS:
            for tensor in tensors:
                self._add(f'"activity":"{activity}","tensor":{_tensor(tensor)}')

    def _add(self, members: str) -> None:
        self.elements.append(f'{{"id":{self.id},{members}}}')


def _tensor(tensor: Tensor) -> str:
    assert tensor.datatype is not None
    shape = ",".join(map(str, tensor.shape))
    return (
        f'{{"name":{_quoted(tensor.name)},"data":{_quoted(_data(tensor, tensor.datatype))},'
        f'"shape":"{shape}","dtype":"{tensor.datatype.value}"}}'
    )


def _data(tensor: Tensor, datatype: DataType) -> str:
    """Return the elements as a C++ stream prints them. As in Triton, half floats are left out."""
    if datatype in (DataType.FP16, DataType.BF16):
        return ""
    try:
        elements = tensor.array().ravel().tolist()
    except byte_strings.Malformed:  # the model reports this error
        return ""
    if datatype is DataType.BYTES:
        texts = (element_bytes(element).decode("utf-8", "backslashreplace") for element in elements)
        return ",".join(map(_quoted, texts))
    if datatype in (DataType.FP32, DataType.FP64):
        return ",".join(f"{element:g}" for element in elements)
    return ",".join(str(int(element)) for element in elements)


def _quoted(text: str) -> str:
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)


class TraceFile:
    """The trace files: one array in the file itself, or arrays in numbered files. Thread-safe.

    Write errors are logged, and never reported to a client.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._stream: TextIO | None = None

    def append(self, elements: Iterable[str]) -> None:
        """Add elements to the array of the file itself, which `close` ends."""
        text = ",".join(elements)
        if not text:
            return
        with self._lock:
            try:
                if self._stream is None:
                    self._stream = Path(self.path).open("w", encoding="utf-8")  # noqa: SIM115
                    self._stream.write("[" + text)
                else:
                    self._stream.write("," + text)
            except OSError as error:
                log.error("cannot write traces to '%s': %s", self.path, error)

    def write_part(self, elements: Iterable[str]) -> None:
        """Write an array to the next of the files `<path>.0`, `<path>.1`, ..."""
        path = Path(f"{self.path}.{next(self._numbers)}")
        try:
            path.write_text(f"[{','.join(elements)}]", encoding="utf-8")
        except OSError as error:
            log.error("cannot write traces to '%s': %s", path, error)

    def close(self) -> None:
        """End the array of the file itself, if it has elements."""
        with self._lock:
            if self._stream is not None:
                try:
                    self._stream.write("]")
                    self._stream.close()
                except OSError as error:
                    log.error("cannot write traces to '%s': %s", self.path, error)
                self._stream = None
