"""Executions: what happens between a RUN and its DONE, in the device service."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ge_runtime.engines.base import GraphTensor
from ge_runtime.errors import (
    Abandoned,
    EngineFault,
    EngineLost,
    OutOfMemory,
    RuntimeFault,
    ServiceFault,
    forget_frames,
)
from ge_runtime.service.arenas import ALIGNMENT
from ge_runtime.service.channel import Channel
from ge_runtime.service.executions import (
    LAYOUT_AT,
    NOWHERE,
    Done,
    Spot,
    pack_done,
    unpack_layout,
    unpack_run,
)
from ge_runtime.service.fair import Ticket
from ge_runtime.service.protocol import Broken, Kind, fault_as_json
from ge_runtime.service.sealed import sealed_file
from ge_runtime.service.tenancy import Loan, Tenant
from ge_runtime.specs import Array, DType, Tensors

if TYPE_CHECKING:
    from ge_runtime.service.server import Server

_log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 256
"""Layouts whose arrays are kept. Fixed gears have few; without, most are seen once."""


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of an execution."""

    inputs: Tensors
    outputs: Mapping[str, Array | None]
    allocates: tuple[str, ...]
    """The outputs that are None."""


def serve_runs(server: Server, channel: Channel, tenant: Tenant, loan: Loan) -> None:
    """Execute what one connection asks for, one after the other. Raises PeerGone and Broken."""
    signature = loan.volume.engine.signature
    units, exclusive = server.units(loan.volume), loan.volume.exclusive
    what = f"{tenant} of {loan.name}"
    known: dict[bytes, _Call] = {}
    version = tenant.version
    while True:
        kind, body = channel.receive()
        if kind is not Kind.RUN:
            raise Broken(f"found a message of kind {kind.name}, expected an execution")
        sequence, within_s = unpack_run(body)
        layout = body[LAYOUT_AT:]
        if version != tenant.version or len(known) >= _MOST_KNOWN:
            known.clear()
            version = tenant.version
        call = known.get(layout)
        if call is None:
            try:
                call = known[layout] = _call(layout, tenant, signature.inputs, signature.outputs)
            except Broken as broken:
                fault = ServiceFault(f"the device service refuses an execution: {broken}")
                channel.send(pack_done(Done(sequence, 0.0, 0.0, fault=fault_as_json(fault))))
                continue
        ticket = Ticket(
            tenant.process,
            units,
            tenant.weight,
            tenant.priority,
            math.inf if within_s == math.inf else server.clock.now() + within_s,
            exclusive,
            loan.volume.expected_s,
            what,
        )
        _execute(server, channel, tenant, loan, sequence, ticket, call)


def _call(
    data: bytes,
    tenant: Tenant,
    inputs: tuple[GraphTensor, ...],
    outputs: tuple[GraphTensor, ...],
) -> _Call:
    """The arrays that a layout means. Raises Broken."""
    layout = unpack_layout(data)
    if len(layout.inputs) != len(inputs):
        raise Broken(f"found {len(layout.inputs)} inputs, expected {len(inputs)}")
    given = {
        tensor.name: tenant.arenas.view(spot, _dtype(tensor))
        for tensor, spot in zip(inputs, layout.inputs, strict=True)
    }
    wanted: dict[str, Array | None] = {}
    for place, spot in layout.outputs:
        if place >= len(outputs) or outputs[place].name in wanted:
            raise Broken(f"found output {place}, expected each once, of {len(outputs)}")
        tensor = outputs[place]
        to_allocate = spot[0] == NOWHERE and not spot[2]
        wanted[tensor.name] = None if to_allocate else tenant.arenas.view(spot, _dtype(tensor))
    allocates = tuple(name for name, array in wanted.items() if array is None)
    return _Call(given, wanted, allocates)


def _dtype(tensor: GraphTensor) -> np.dtype[np.generic]:
    if tensor.dtype is DType.BYTES:
        raise Broken(f"found '{tensor.name}' of BYTES, expected elements of a fixed size")
    return tensor.dtype.numpy


def _execute(
    server: Server,
    channel: Channel,
    tenant: Tenant,
    loan: Loan,
    sequence: int,
    ticket: Ticket,
    call: _Call,
) -> None:
    """One execution, in its turn, and its answer. Raises PeerGone."""
    volume = loan.volume
    loan.ticket = ticket
    fault: Exception | None = None
    results: Tensors = {}
    took_s = 0.0
    try:
        server.turns.enter(ticket)
    except (Abandoned, EngineLost) as without_a_turn:
        fault = without_a_turn
        waited_s = 0.0
    else:
        waited_s = ticket.waited_s
        started = time.perf_counter()
        try:
            results = volume.engine.run(call.inputs, call.outputs)
        except RuntimeFault as error:
            fault = error
        except Exception as error:  # a defect of the engine's
            _log.exception("an execution for %s failed", ticket.what)
            fault = error
        took_s = time.perf_counter() - started
        server.turns.leave(ticket, took_s)
        volume.note(took_s, failed=fault is not None)
        tenant.note(took_s, waited_s, failed=fault is not None)
    loan.ticket = None
    file: int | None = None
    allocated: tuple[tuple[int, Spot], ...] = ()
    if fault is None and call.allocates:
        try:
            file, allocated = _in_a_file(results, call, volume.engine.signature.outputs)
        except RuntimeFault as error:
            fault = error
    if fault is not None:
        forget_frames(fault)  # which hold arrays of the client's memory
        channel.send(pack_done(Done(sequence, waited_s, took_s, fault=fault_as_json(fault))))
        if isinstance(fault, EngineLost):
            server.end(f"the device is lost, {ticket.what} was told: {fault}", patience_s=0.0)
    elif file is not None:
        try:
            channel.send(pack_done(Done(sequence, waited_s, took_s, allocated)), [file])
        finally:
            os.close(file)
    else:
        channel.send(pack_done(Done(sequence, waited_s, took_s)))


def _in_a_file(
    results: Tensors, call: _Call, outputs: tuple[GraphTensor, ...]
) -> tuple[int, tuple[tuple[int, Spot], ...]]:
    """What the engine allocated, in a file of its own: its descriptor, and what lies where.

    Raises EngineFault for BYTES, and OutOfMemory.
    """
    places = [tensor.name for tensor in outputs]
    spots: list[tuple[int, Spot]] = []
    end = 0
    for name in call.allocates:
        array = results[name]
        if array.dtype.hasobject:
            raise EngineFault(f"output '{name}': found BYTES, expected elements of a fixed size")
        start = -(-end // ALIGNMENT) * ALIGNMENT
        spots.append((places.index(name), (0, start, array.shape)))
        end = start + array.nbytes
    try:
        file = sealed_file("answer", max(1, end))
        try:
            for name, (_, (_, start, _)) in zip(call.allocates, spots, strict=True):
                _write(file, results[name], start)
        except BaseException:
            os.close(file)
            raise
    except OSError as error:
        raise OutOfMemory(f"the device service: no file for {end:,} bytes: {error}") from error
    return file, tuple(spots)


def _write(descriptor: int, array: Array, start: int) -> None:
    """The array's bytes from there on: no mapping costs as little."""
    left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while left:
        written = os.pwrite(descriptor, left, start)
        left, start = left[written:], start + written
