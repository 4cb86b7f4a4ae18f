"""Which requests of a sampled recording are kept: whole sequences, and the same ones for a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from triton_replay.capture.records import Request
from triton_replay.wire.bodies import INFERENCE, sequence_of
from triton_replay.wire.grpc_messages import is_inference, sequence_of_call


@dataclass(frozen=True)
class Selection:
    """share: of inferences that are kept, 0 to 1."""

    share: float = 1.0
    seed: int = 0

    def takes(self, request: Request) -> bool:
        """Whether a request is kept.

        All of a sequence are or none is. What is no inference always is, but for questions: later
        requests rest on it, such as on the registration of shared memory.
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
