"""Sampling of requests: whole sequences, reproducible by a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from triton_replay.capture.records import Request
from triton_replay.wire.bodies import INFERENCE, sequence_of
from triton_replay.wire.grpc_messages import is_inference, sequence_of_call


@dataclass(frozen=True)
class Selection:
    """A random selection.

    Args:
        share: Share of inferences that are kept, 0 to 1.
        seed: Seed of the selection.
    """

    share: float = 1.0
    seed: int = 0

    def takes(self, request: Request) -> bool:
        """Return whether a request is kept.

        The requests of a sequence are kept or dropped together. Requests that change the server,
        such as the registration of shared memory, are always kept: later requests depend on them.
        """
        if self.share >= 1:
            return True
        if request.protocol == "grpc":
            if not is_inference(request.target):
                return True
            sequence = sequence_of_call(request.body)
            if sequence and not request.target.endswith("/ModelStreamInfer"):
                return self._draw(sequence)
        elif request.method != "GET":
            found = INFERENCE.match(request.target.partition("?")[0])
            if not found:
                return True
            sequence = sequence_of(request.headers, request.body)
            if sequence:
                return self._draw(f"{found['model']} {sequence}")
        return self._draw(str(request.number))

    def _draw(self, key: str) -> bool:
        digest = hashlib.blake2b(f"{self.seed} {key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < self.share * 2**64
