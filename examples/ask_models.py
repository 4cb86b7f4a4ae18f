"""Ask the models of examples/models, one of each kind, with NVIDIA's client library over gRPC.

    python examples/ask_models.py
    python examples/ask_models.py --url localhost:8001

The server may be the reference server or NVIDIA's tritonserver; this program works with both.
"""

from __future__ import annotations

import argparse
import queue
from collections.abc import Iterator

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def main() -> None:
    """Send each kind of request, and print the answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="localhost:8001", help="the server (%(default)s)")
    options = parser.parse_args()
    with InferenceServerClient(options.url) as client:
        try:
            show_decoupled(client)
            show_sequence(client)
            show_iterative(client)
            show_asking(client)
        except InferenceServerException as error:
            raise SystemExit(f"{options.url}: {error.message()}") from error


def show_decoupled(client: InferenceServerClient) -> None:
    """Send one request to a decoupled model: a stream returns any number of responses."""
    letters = [
        result.as_numpy("LETTER").item().decode() for result in responses(client, "spell", "hello")
    ]
    print("spell, a decoupled model: hello is", ", ".join(letters))


def responses(client: InferenceServerClient, model: str, word: str) -> Iterator[InferResult]:
    """Yield the responses to one request as they arrive."""
    came: queue.SimpleQueue[tuple[InferResult, InferenceServerException | None]] = (
        queue.SimpleQueue()
    )
    client.start_stream(lambda result, error: came.put((result, error)))
    client.async_stream_infer(
        model, [tensor("WORD", np.array([word], object))], enable_empty_final_response=True
    )
    while True:
        result, error = came.get()
        if error:
            raise error
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        yield result
    client.stop_stream()


def show_sequence(client: InferenceServerClient) -> None:
    """Send a sequence: requests with the same id, a start flag and an end flag."""
    numbers = [1, 2, 3]
    sums = []
    for place, number in enumerate(numbers, 1):
        answer = client.infer(
            "running_sum",
            [tensor("X", np.array([[number]], np.float32))],
            sequence_id=7,
            sequence_start=place == 1,
            sequence_end=place == len(numbers),
        )
        sums.append(answer.as_numpy("SUM").item())
    print(f"running_sum, a model of sequences: {numbers} add up to {sums}")


def show_iterative(client: InferenceServerClient) -> None:
    """Send one request that the server executes several times, without any effect on the client."""
    answer = client.infer("square_root", [tensor("X", np.array([[2]], np.float32))])
    root, steps = answer.as_numpy("ROOT").item(), answer.as_numpy("STEPS").item()
    print(f"square_root, an iterative model: the root of 2 is {root:.6f}, after {steps} steps")


def show_asking(client: InferenceServerClient) -> None:
    """Send one request to a model that calls another model."""
    answer = client.infer("distance", [tensor("POINT", np.array([3, 4], np.float32))])
    distance = answer.as_numpy("DISTANCE").item()
    print(f"distance, a model that asks square_root: from (0, 0) to (3, 4) it is {distance:.6f}")


def tensor(name: str, array: np.ndarray) -> InferInput:
    """Return an input with the values of the array."""
    given = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    given.set_data_from_numpy(array)
    return given


if __name__ == "__main__":
    main()
