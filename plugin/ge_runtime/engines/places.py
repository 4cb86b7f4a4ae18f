"""Where engines run: a device, and the memory that this process shares with it.

A model is opened at one place for each entry of `devices`. What batches and answers are made of
lies in the place's memory; whether an engine works there or on copies is its own affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ge_runtime.ascend.card import PROCESS_CARDS, Cards
from ge_runtime.ascend.driver import Address
from ge_runtime.ascend.ge_py import open_ge
from ge_runtime.ascend.memory import CardMemory, PinnedMemory
from ge_runtime.ascend.return_codes import DriverFault
from ge_runtime.config import kind_of
from ge_runtime.devices import Device, HostDevice
from ge_runtime.engines.artifact import Artifact, only_graph
from ge_runtime.engines.base import Engine
from ge_runtime.engines.cuda_place import CudaPlace
from ge_runtime.engines.ge_session import GeSessionEngine
from ge_runtime.engines.loader import open_engine
from ge_runtime.engines.om import OmEngine
from ge_runtime.engines.torch_npu_place import TorchNpuPlace
from ge_runtime.errors import ArtifactFault, NoDevice, PlanFault
from ge_runtime.specs import Array

_NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


class Place(Protocol):
    """One device, for the engines and arenas of one model. Opened and closed by one thread."""

    @property
    def kind(self) -> str:
        """Of the device: "cpu", "cuda" or "npu"."""

    @property
    def name(self) -> str:
        """As config.pbtxt has it, e.g. "cpu"."""

    @property
    def hardware(self) -> str:
        """What the device is, for people: e.g. "Ascend910B3", "AscendSimulator" or "host"."""

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """Memory of this process that the device can reach: for batches and answers."""

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """The graph of the artifact, of several a chain of them, ready to run here.

        threads: the most that one execution uses of the host's. outputs: the names that
        config.pbtxt gives the graph's outputs. The engine is the caller's to close.
        Raises ArtifactFault, PlanFault, OutOfMemory or EngineLost; then nothing stays open.
        """

    def adopt(self, memory: Array) -> None:
        """Make memory that was not had from `memory` as good as if it were, until `disown`.

        memory: uint8 [bytes], from a page on; it must outlive the place's use of it.
        """

    def disown(self, memory: Array) -> None:
        """Undo `adopt`, once no engine works on the memory any more."""

    def freeze(self) -> None:
        """From now on an allocation is a defect. Safe to call twice."""

    def close(self) -> None:
        """Free the memory, after the engines are closed. Safe to call twice.

        What answers are still views of stays theirs until the last of them is gone.
        """


class HostPlace:
    """See Place: the CPU, whose engines work in the memory of this process."""

    kind: Final = HostDevice.kind
    hardware: Final = "host"

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.memory: Final[Device[NDArray[np.uint8]]] = HostDevice(name)

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        return open_engine(*artifacts, threads=threads, outputs=outputs)

    def adopt(self, memory: Array) -> None:
        """All memory of the process is as good."""

    def disown(self, memory: Array) -> None: ...

    def freeze(self) -> None:
        self.memory.freeze()

    def close(self) -> None:
        self.memory.free_all()


class CardPlace:
    """See Place: an Ascend card, whose engines work on copies in its own memory.

    Models of one lane share its workspace and take turns; see `ascend.stream_executor`.
    """

    kind: Final = CardMemory.kind

    def __init__(
        self,
        device: int,
        *,
        lane: int = 0,
        workspace_bytes: int | None = None,
        options: Mapping[str, str] = _NO_OPTIONS,
        cards: Cards = PROCESS_CARDS,
    ) -> None:
        """device: its number. lane: of the card, from 0.

        workspace_bytes: of the lane, which all its models must agree on; None: as large as the
        largest of them needs. A session of GE has as much for itself. options: of GE, for it.
        Raises NoDevice where there is no card, or none that can be used, and EngineLost if it
        was lost before.
        """
        try:
            card = cards.acquire(device)
        except DriverFault as fault:
            raise NoDevice(f"npu:{device} cannot be used: {fault}") from fault
        self.name: Final = card.name
        self.hardware: Final = card.soc_name
        self._card = card
        self._cards = cards
        self._lane = lane
        self._workspace_bytes = workspace_bytes
        self._options = options
        self._memory = PinnedMemory(card)
        self._device_memory = CardMemory(card)
        self._closed = False

    @property
    def memory(self) -> Device[NDArray[np.uint8]]:
        """Pinned, so that the card copies by itself."""
        return self._memory

    @property
    def device_memory(self) -> Device[Address]:
        """On the card: what its engines here have for themselves."""
        return self._device_memory

    @property
    def shared_memory(self) -> Device[Address]:
        """On the card: weights and workspace of all models in this process."""
        return self._card.memory

    def open(
        self, artifacts: Sequence[Artifact], *, threads: int, outputs: Sequence[str]
    ) -> Engine:
        """Stages are .om files; of a graph for another engine there is one."""
        if all(artifact.engine == "om" for artifact in artifacts):
            return OmEngine.open(
                [artifact.path for artifact in artifacts],
                self._card,
                self._device_memory,
                lane=self._lane,
                workspace_bytes=self._workspace_bytes,
                is_pinned=self._memory.holds,
                outputs=outputs,
            )
        artifact = only_graph(artifacts, self.name)
        if artifact.engine == "ge_session":
            return self._open_session(artifact, outputs)
        raise ArtifactFault(
            f"{artifact.path}: found placement: service for engine {artifact.engine}, expected "
            "placement: local: on a card, only .om files are executed for others"
        )

    def _open_session(self, artifact: Artifact, outputs: Sequence[str]) -> Engine:
        if self._workspace_bytes is None:
            raise PlanFault(
                f"{artifact.path}: found no 'workspace_pool_mib', expected it, with placement: "
                "local: GE does not tell what its graph needs, and has all of that memory from an "
                "arena of this size; the log of its close says what it took"
            )
        return GeSessionEngine.open(
            artifact.path,
            self._card,
            self._device_memory,
            open_ge(),
            outputs,
            arena_bytes=self._workspace_bytes,
            options=self._options,
        )

    def adopt(self, memory: Array) -> None:
        """Its pages are pinned."""
        self._memory.register(memory)

    def disown(self, memory: Array) -> None:
        self._memory.unregister(memory)

    def freeze(self) -> None:
        self._memory.freeze()
        self._device_memory.freeze()

    def close(self) -> None:
        """Safe if the card is lost: then nothing is given back."""
        if self._closed:
            return
        self._closed = True
        with self._card.releasing():
            self._device_memory.free_all()
            self._memory.free_all()
            self._memory.unregister_all()
        self._cards.release(self._card)


def books_of(place: Place) -> tuple[Device[Any], ...]:
    """All memory that there are books of at the place: on a card its own, too.

    What a card's models share is of all places on it; what their engines have alone is the place's.
    """
    if isinstance(place, CardPlace):
        return place.memory, place.device_memory, place.shared_memory
    return (place.memory,)


def place_for(
    device: str,
    *,
    lane: int = 0,
    workspace_bytes: int | None = None,
    engine: str = "om",
    options: Mapping[str, str] = _NO_OPTIONS,
) -> Place:
    """The place that config.pbtxt calls `device`.

    lane: how many places of one model are on the same device before it. workspace_bytes: the
    capacity of the workspace that models share; on the host it is no affair of a place.
    engine: what will execute there; on the host any. options: of GE, for engines that compile.
    Raises as `CardPlace`, `CudaPlace` and `TorchNpuPlace`.
    """
    if kind_of(device) == "cpu":
        return HostPlace(device)
    number = int(device.partition(":")[2])
    if kind_of(device) == "cuda":
        return CudaPlace(number, workspace_bytes=workspace_bytes)
    if engine == "torch":
        return TorchNpuPlace(number, options)
    return CardPlace(number, lane=lane, workspace_bytes=workspace_bytes, options=options)
