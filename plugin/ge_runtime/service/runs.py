"""Executions: what happens between a RUN and its DONE, in the device service."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ge_runtime.engines.base import GraphTensor
from ge_runtime.errors import Departed, EngineFault, EngineLost, ServiceFault, forget_frames
from ge_runtime.service.arenas import ALIGNMENT
from ge_runtime.service.channel import Channel, map_sealed, sealed_file
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
from ge_runtime.service.tenancy import Loan, Tenant
from ge_runtime.specs import Array, DType, Tensors

if TYPE_CHECKING:
    from ge_runtime.service.server import Server

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
    except (Departed, EngineLost) as without_a_turn:
        fault = without_a_turn
        waited_s = 0.0
    else:
        waited_s = ticket.waited_s
        started = time.perf_counter()
        try:
            results = volume.engine.run(call.inputs, call.outputs)
        except Exception as error:
            fault = error
        took_s = time.perf_counter() - started
        server.turns.leave(ticket, took_s)
        volume.note(took_s, failed=fault is not None)
        tenant.note(took_s, waited_s, failed=fault is not None)
    loan.ticket = None
    if fault is not None:
        forget_frames(fault)  # which hold arrays of the client's memory
        channel.send(pack_done(Done(sequence, waited_s, took_s, fault=fault_as_json(fault))))
        if isinstance(fault, EngineLost):
            server.end(f"the device is lost: {fault}", patience_s=0.0)
    elif call.allocates:
        _send_allocated(channel, sequence, waited_s, took_s, results, call, loan)
    else:
        channel.send(pack_done(Done(sequence, waited_s, took_s)))


def _send_allocated(
    channel: Channel,
    sequence: int,
    waited_s: float,
    took_s: float,
    results: Tensors,
    call: _Call,
    loan: Loan,
) -> None:
    """Answer with outputs that the engine allocated: in a file of their own."""
    places = [tensor.name for tensor in loan.volume.engine.signature.outputs]
    spots: list[tuple[int, Spot]] = []
    end = 0
    for name in call.allocates:
        array = results[name]
        if array.dtype.hasobject:
            fault = EngineFault(f"output '{name}': found BYTES, expected elements of a fixed size")
            channel.send(pack_done(Done(sequence, waited_s, took_s, fault=fault_as_json(fault))))
            return
        start = -(-end // ALIGNMENT) * ALIGNMENT
        spots.append((places.index(name), (0, start, array.shape)))
        end = start + array.nbytes
    descriptor = sealed_file("answer", max(1, end))
    try:
        with map_sealed(descriptor, max(1, end)) as file:
            memory = np.frombuffer(file, np.uint8)
            for name, (_, (_, start, shape)) in zip(call.allocates, spots, strict=True):
                array = results[name]
                own = memory[start : start + array.nbytes].view(array.dtype).reshape(shape)
                np.copyto(own, array)
                del own
            del memory
        done = Done(sequence, waited_s, took_s, tuple(spots))
        channel.send(pack_done(done), [descriptor])
    finally:
        os.close(descriptor)
