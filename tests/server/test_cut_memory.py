"""A client that truncates its shared memory constantly: server and other clients survive."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from server.backends.kit import write
from server.support.regions import object_file, shared_object
from support.servers import start_reference_server
from tritonclient.utils import InferenceServerException

SIZES = {"small": 4096, "large": 602_112}
REQUESTS = 15
CONFIG = """
    backend: "python"
    input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
    instance_group { kind: KIND_CPU }
    parameters { key: "EXECUTION_HOST" value: { string_value: "HOST" } }
"""
MODEL = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            doubled = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() * 2 for r in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for y in doubled]
"""
HOSTS = ("inline", "process")
FRONTS = {"http": http, "grpc": grpc}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for host in HOSTS:
        write(repository / host / "config.pbtxt", CONFIG.replace("HOST", host))
        write(repository / host / "1" / "model.py", MODEL)
    with start_reference_server(repository) as running:
        yield running


def connect(server, front):
    return FRONTS[front].InferenceServerClient(getattr(server, front))


def in_regions(front, name, size):
    """Return a request whose input is the first half of a region, and its output the second."""
    given = FRONTS[front].InferInput("X", [size // 4], "FP32")
    given.set_shared_memory(name, size)
    wanted = FRONTS[front].InferRequestedOutput("Y")
    wanted.set_shared_memory(name, size, size)
    return {"inputs": [given], "outputs": [wanted]}


def doubles(server, front, model):
    """Send requests with tensors in intact memory, and in the message."""
    size = SIZES["large"]
    numbers = np.arange(size // 4, dtype=np.float32)
    with shared_object(numbers.tobytes() + bytes(size)) as key, connect(server, front) as client:
        client.register_system_shared_memory(key[1:], key, 2 * size)
        for _ in range(REQUESTS):
            client.infer(model, **in_regions(front, key[1:], size))
            with object_file(key).open("r+b") as file:
                assert file.read() == numbers.tobytes() + (numbers * 2).tobytes()
                file.seek(size)
                file.write(bytes(size))
            sent = FRONTS[front].InferInput("X", [4], "FP32")
            sent.set_data_from_numpy(numbers[:4])
            assert client.infer(model, [sent]).as_numpy("Y").tolist() == [0, 2, 4, 6]
        client.unregister_system_shared_memory(key[1:])


def is_cut_and_asks(server, front, model, size):
    """Send requests with tensors in changing memory; return the errors."""
    refused = []
    done = threading.Event()
    with shared_object(bytes(2 * size)) as key, connect(server, front) as client:
        client.register_system_shared_memory(key[1:], key, 2 * size)

        def cut():
            chance = random.Random(size)
            while not done.is_set():
                os.truncate(object_file(key), chance.randrange(2 * size))
                os.truncate(object_file(key), 2 * size)
                done.wait(chance.random() / 1000)  # so that most requests find it complete at first

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            for number in range(2 * REQUESTS):
                if number == REQUESTS:  # an object that stays truncated
                    done.set()
                    cutter.join()
                    os.truncate(object_file(key), size)
                try:
                    client.infer(model, **in_regions(front, key[1:], size))
                except InferenceServerException as error:
                    refused.append(error.message())
                else:
                    assert number < REQUESTS
        finally:
            done.set()
            cutter.join()
        os.truncate(object_file(key), 2 * size)
        client.infer(model, **in_regions(front, key[1:], size))
        client.unregister_system_shared_memory(key[1:])
    return refused


@pytest.mark.brute_force
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("model", HOSTS)
def test_a_client_that_truncates_its_memory_harms_only_itself(server, front, model):
    with ThreadPoolExecutor(3) as pool:
        bystander = pool.submit(doubles, server, front, model)
        cutting = [
            pool.submit(is_cut_and_asks, server, front, model, size) for size in SIZES.values()
        ]
        bystander.result()
        for each in cutting:
            refused = each.result()
            assert len(refused) >= REQUESTS
            assert all("cannot be used: its object" in message for message in refused)
    assert server.process.poll() is None
