"""An engine in the device service, as its client has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ge_runtime.devices import Device
from ge_runtime.engines.artifact import Artifact
from ge_runtime.engines.base import Shapes, Signature
from ge_runtime.errors import ArtifactFault, EngineFault, OutOfMemory
from ge_runtime.memory.lifetimes import Intermediates
from ge_runtime.service.channel import close_all
from ge_runtime.service.content import ensure_same
from ge_runtime.service.executions import NOWHERE, Done, Spot, pack_layout
from ge_runtime.service.protocol import Broken, intermediates_of, signature_of
from ge_runtime.service.rounds import Rounds
from ge_runtime.service.sealed import map_sealed
from ge_runtime.service.staging import Staging
from ge_runtime.specs import Array, Tensors

if TYPE_CHECKING:
    from ge_runtime.service.client import ServiceBackend
    from ge_runtime.service.link import Link

_TO_ALLOCATE: Final[Spot] = (NOWHERE, 0, ())


class ServiceEngine:
    """See `base.Engine`, `base.Limited` and `base.Remote`. Made by `ServiceBackend.open`.

    Arrays in the place's memory are read and written where they lie. Others are copied to and
    from memory that is kept for it: slower, and the same.
    """

    def __init__(
        self,
        place: ServiceBackend,
        artifacts: Sequence[Artifact],
        threads: int,
        outputs: Sequence[str],
    ) -> None:
        self._place = place
        self._paths = [artifact.path.absolute() for artifact in artifacts]
        self._request = {
            "do": "open",
            "artifacts": [[str(a.path.absolute()), a.engine, a.reason] for a in artifacts],
            "threads": threads,
            "outputs": list(outputs),
        }
        self._largest: list[dict[str, list[int]]] | None = None
        self._facts: dict[str, Any] = {}
        self.number = 0
        """In the service that there is, or was."""
        self._rounds = Rounds(place, self)
        self._staging = Staging(place.memory)
        self._signature = Signature((), ())
        self._inputs: list[tuple[str, np.dtype[Any]]] = []
        self._outputs: dict[str, tuple[int, np.dtype[Any]]] = {}

    # ------------------------------------------------------------------------ for the place alone

    def open(self, link: Link) -> None:
        """Open it in this service: for the first time, or in the next service.

        Raises what opening it raises, ArtifactFault if the files are not those that this process
        sees, or no longer those of the first time, and PeerGone.
        """
        facts = link.ask(self._request)
        ensure_same(self._paths, facts["seen"], facts["content"])
        if self._facts and facts["content"] != self._facts["content"]:
            raise ArtifactFault(
                f"{self._paths[0]}: found another content than when the model "
                "was loaded, expected the same; load the model again"
            )
        self.number = facts["engine"]
        if not self._facts:
            self._signature = signature_of(facts["signature"])
            self._inputs = [(t.name, t.dtype.numpy) for t in self._signature.inputs]
            self._outputs = {
                t.name: (place, t.dtype.numpy) for place, t in enumerate(self._signature.outputs)
            }
        self._facts = facts
        if self._largest is not None:
            link.ask({"do": "bind", "engine": self.number, "largest": self._largest})
        self._rounds.join(link, self.number)

    def lose(self) -> None:
        """The service is gone: nothing can be executed until the next `open`."""
        self._rounds.lose()

    def abandon(self) -> None:
        self._rounds.abandon()

    # ------------------------------------------------------------------------------- for lanes

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def shapes(self) -> Sequence[Shapes] | None:
        shapes = self._facts["shapes"]
        return (
            None
            if shapes is None
            else [{name: tuple(dims) for name, dims in one.items()} for one in shapes]
        )

    @property
    def lost(self) -> bool:
        """Until the next service has it."""
        return self._place.lost

    @property
    def compiles_each_shape(self) -> bool:
        """The service has no such engine."""
        return False

    @property
    def unplanned(self) -> Sequence[str]:
        """What the engine in the service says."""
        lines: list[str] = self._facts["unplanned"]
        return lines

    def waiting(
        self, within: Callable[[], float], gone: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        return self._rounds.waiting(within, gone)

    def bind(self, largest: Sequence[Shapes], memory: Device[NDArray[np.uint8]]) -> None:
        """What it needs lies in the service."""
        self._largest = [{name: list(dims) for name, dims in shapes.items()} for shapes in largest]
        self._place.ask(self, {"do": "bind", "largest": self._largest})

    def reserve(self, nbytes: int) -> None:
        self._staging.reserve(nbytes, len(self._signature.outputs))

    def run(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """Raises EngineLost while there is no service, at once.

        Raises Expired or Cancelled if its turn did not come: see `waiting`.
        """
        memory = self._place.memory
        given: list[Spot] = []
        for name, dtype in self._inputs:
            array = inputs[name]
            if array.dtype != dtype:
                raise _other_elements(name, array, dtype)
            spot = memory.spot(array)
            if spot is None:
                return self._run_staged(inputs, outputs)
            given.append(spot)
        wanted: list[tuple[int, Spot]] = []
        allocates = False
        for name, target in outputs.items():
            place, dtype = self._outputs[name]
            if target is None:
                allocates = True
                wanted.append((place, _TO_ALLOCATE))
                continue
            if target.dtype != dtype:
                raise _other_elements(name, target, dtype)
            spot = memory.spot(target)
            if spot is None:
                return self._run_staged(inputs, outputs)
            wanted.append((place, spot))
        done, file = self._rounds.execute(pack_layout(given, wanted), allocates=allocates)
        results = {name: target for name, target in outputs.items() if target is not None}
        if allocates:
            results.update(self._allocated(done, file))
        return {name: results[name] for name in outputs}

    def weights_bytes(self) -> int:
        """The service has them once for all its clients."""
        nbytes: int = self._facts["weights_bytes"]
        return nbytes

    def device_io_bytes(self) -> int | None:
        nbytes: int | None = self._facts["device_io_bytes"]
        return nbytes

    def intermediates(self, shapes: Shapes) -> Intermediates | None:
        dims = {name: list(shape) for name, shape in shapes.items()}
        answer = self._place.ask(self, {"do": "intermediates", "shapes": dims})
        return intermediates_of(answer["intermediates"])

    def close(self) -> None:
        self._place.close_engine(self)

    def _allocated(self, done: Done, files: list[int]) -> dict[str, Array]:
        """The outputs that the engine allocated, in memory of their own."""
        try:
            size = max((_end(self._signature, one) for one in done.allocated), default=1)
            memory = np.frombuffer(map_sealed(files[0], max(1, size), written=True), np.uint8)
            results: dict[str, Array] = {}
            for place, (_, start, shape) in done.allocated:
                tensor = self._signature.outputs[place]
                own = memory[start : start + math.prod(shape) * tensor.dtype.numpy.itemsize]
                results[tensor.name] = own.view(tensor.dtype.numpy).reshape(shape)
            return results
        except (Broken, IndexError) as error:
            raise EngineFault(f"the device service: {error}") from error
        except MemoryError as error:
            raise OutOfMemory(f"the results of an execution cannot be mapped: {error}") from error
        finally:
            close_all(files)

    def _run_staged(self, inputs: Tensors, outputs: Mapping[str, Array | None]) -> dict[str, Array]:
        """The same with tensors that lie elsewhere."""
        targets = {name: array for name, array in outputs.items() if array is not None}
        for name, array in (*inputs.items(), *targets.items()):
            if array.dtype.hasobject:
                raise EngineFault(f"'{name}': found BYTES, which the device service does not take")
        seen = iter(self._staging.visible([*inputs.values(), *targets.values()]))
        given = {name: next(seen) for name in inputs}
        wanted = {**outputs, **{name: next(seen) for name in targets}}
        for name, array in inputs.items():
            if given[name] is not array:
                np.copyto(given[name], array)
        results = self.run(given, wanted)
        for name, target in targets.items():
            if results[name] is not target:
                np.copyto(target, results[name])
                results[name] = target
        return results


def _other_elements(name: str, array: Array, expected: np.dtype[Any]) -> EngineFault:
    """The fault of elements of another type, whose bytes would be taken for the graph's."""
    return EngineFault(f"'{name}': found {array.dtype}, expected {expected}")


def _end(signature: Signature, output: tuple[int, Spot]) -> int:
    place, (_, start, shape) = output
    return start + math.prod(shape) * signature.outputs[place].dtype.numpy.itemsize
