"""Both servers give equal responses for one model repository.

The requests are created from a seed: texts of 1 to 400 words in English and in Chinese, several
texts in one request, images of any size, batches of images, and the benchmark's requests. Each
group is sent one request at a time, and then sixteen at once, so that dynamic batches form.
text_pipeline_fused gets texts of all groups, and must answer like the ensemble text_pipeline.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from contract.casebook import bodies, infer, tensor
from contract.wire import exchange
from support.servers import ROOT, Server
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

pytestmark = pytest.mark.oracle

AT_ONCE = 16
ABSOLUTE = 1e-4
TEXT_MODELS = ("text_pipeline", "text_pipeline_fused")

ENGLISH_WORDS = """
    the a my your this order parcel password invoice account screen battery driver refund address
    arrived cannot find open pay track change again please never today yesterday late broken blue
    very good happy with without because and but I we you it is was has not thank how why when
"""
CHINESE_WORDS = """
    我 你 们 的 订单 包裹 密码 发票 账户 屏幕 电池 快递 退款 地址 收到 无法 登录 打开 付款 查询 修改
    请 今天 昨天 还 没有 坏 了 很 好 满意 因为 和 但是 是 不 谢谢 怎么 为什么 什么时候
"""


@dataclass(frozen=True)
class Request:
    """One infer request: a model and its only input."""

    model: str
    name: str
    datatype: str
    values: np.ndarray


def text(*texts: str) -> Request:
    return Request("text_pipeline", "text", "BYTES", np.array([t.encode() for t in texts], object))


def image(rng: random.Random, batch: int = 1) -> Request:
    """Return images of one size with a few soft strokes, as pure noise would suit no class."""
    height, width = rng.randint(6, 64), rng.randint(6, 64)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    pixels = np.zeros((batch, 1, height, width), np.float32)
    for picture in pixels[:, 0]:
        for _ in range(rng.randint(2, 6)):
            far = ((rows - rng.uniform(0, height)) / height) ** 2
            far += ((columns - rng.uniform(0, width)) / width) ** 2
            picture += np.exp(far * -rng.uniform(20, 200))
    return Request("ge_classifier", "image", "FP32", pixels.clip(0, 1))


def english(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(ENGLISH_WORDS.split(), k=words)) + rng.choice(".?!")


def chinese(rng: random.Random, words: int) -> str:
    return "".join(rng.choices(CHINESE_WORDS.split(), k=words)) + rng.choice("。？！")


def word_counts(rng: random.Random, count: int) -> list[int]:
    """Return numbers of words from 1 to 400, inclusive; small numbers are more frequent."""
    return [1, 200, 400, *(round(60 ** rng.random()) for _ in range(count - 3))]


def make_requests() -> dict[str, list[Request]]:
    rng = random.Random(20241126)
    groups = {
        "English texts": [text(english(rng, n)) for n in word_counts(rng, 20)],
        "Chinese texts": [text(chinese(rng, n)) for n in word_counts(rng, 20)],
        "several texts": [
            text(*(rng.choice([english, chinese])(rng, rng.randint(1, 40)) for _ in range(n)))
            for n in (2, 3, 5, 8, 13)
        ],
        "images": [image(rng) for _ in range(40)],
        "batches of images": [image(rng, batch) for batch in (2, 3, 8, 64) * 2],
        "the benchmark's texts": [text(*sample["content"]) for sample in samples("text_pipeline")],
        "the benchmark's images": [
            Request(
                "ge_classifier",
                "image",
                "FP32",
                np.array(sample["content"], np.float32).reshape(1, *sample["shape"]),
            )
            for sample in samples("ge_classifier")
        ],
    }
    every = [*groups["English texts"], *groups["Chinese texts"], *groups["several texts"]]
    groups["texts to one model"] = [fused(request) for request in every[::3]]
    return groups


def fused(request: Request) -> Request:
    return replace(request, model="text_pipeline_fused")


def samples(model: str) -> list[dict]:
    """Return the requests that perf_analyzer sends: real sentences and real digits."""
    path = ROOT / "benchmarks" / "data" / f"{model}.json"
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    return [sample for request in data for sample in request.values()]


REQUESTS = make_requests()


def one_at_a_time(server: Server, requests: list[Request]) -> Iterator[dict]:
    with InferenceServerClient(server.http, network_timeout=60) as client:
        for request in requests:
            yield answer(client.infer(request.model, [as_input(request)]))


def many_at_once(server: Server, requests: list[Request]) -> Iterator[dict]:
    with InferenceServerClient(server.http, concurrency=AT_ONCE, network_timeout=60) as client:
        pending = [client.async_infer(request.model, [as_input(request)]) for request in requests]
        for result in pending:
            yield answer(result.get_result())


Send = Callable[[Server, list[Request]], Iterator[dict]]
BOTH_WAYS = pytest.mark.parametrize(
    "send", [one_at_a_time, many_at_once], ids=lambda send: send.__name__
)


@pytest.fixture(scope="module")
def answers() -> Callable[[Send, Server, str], list[dict]]:
    """Return a function for a server's answers to a group of REQUESTS, sent once for all tests."""
    known: dict[tuple[Send, int, str], list[dict]] = {}

    def of(send: Send, server: Server, group: str) -> list[dict]:
        asked = send, server.process.pid, group  # a restarted server has another pid
        if asked not in known:
            known[asked] = list(send(server, REQUESTS[group]))
        return known[asked]

    return of


def as_input(request: Request) -> InferInput:
    given = InferInput(request.name, request.values.shape, request.datatype)
    given.set_data_from_numpy(request.values)
    return given


def answer(result) -> dict:
    """The content of a response, with the tensors as arrays."""
    response = result.get_response()
    tensors = {
        output["name"]: {
            "datatype": output["datatype"],
            "shape": output["shape"],
            "values": result.as_numpy(output["name"]),
        }
        for output in response["outputs"]
    }
    return response | {"outputs": tensors}


def same(ours, real) -> bool:
    """Compare answers: numbers within ABSOLUTE, everything else exactly."""
    if isinstance(real, dict):
        return ours.keys() == real.keys() and all(same(ours[key], real[key]) for key in real)
    if isinstance(real, np.ndarray) and real.dtype == np.float32:
        return ours.shape == real.shape and np.allclose(ours, real, rtol=0, atol=ABSOLUTE)
    if isinstance(real, np.ndarray):
        return np.array_equal(ours, real)
    return ours == real


def count_logits(body: bytes) -> bytes:
    content = json.loads(body)
    # An ensemble's outputs come in the order of a hash table.
    content["outputs"].sort(key=lambda output: output["name"])
    for output in content["outputs"]:
        if output["name"] == "logits":
            output["data"] = len(output["data"])
    return json.dumps(content).encode()


@pytest.mark.parametrize("group", REQUESTS)
@BOTH_WAYS
def test_both_servers_give_the_same_answers(
    group: str, send: Send, triton: Server, reference: Server, answers: Any
):
    ours, real = answers(send, reference, group), answers(one_at_a_time, triton, group)
    pairs = zip(REQUESTS[group], ours, real, strict=True)
    different = [
        (request.values.shape, ours, real) for request, ours, real in pairs if not same(ours, real)
    ]
    assert different == []


@pytest.mark.parametrize("server", ["triton", "reference"])
@BOTH_WAYS
def test_one_model_answers_as_the_ensemble_does(
    send: Send, server: str, request: pytest.FixtureRequest, answers: Any
):
    running = request.getfixturevalue(server)
    texts = REQUESTS["several texts"]
    one_model = send(running, [*map(fused, texts)])
    pairs = zip(texts, one_model, answers(send, running, "several texts"), strict=True)
    different = [
        (text.values, one["outputs"], steps["outputs"])
        for text, one, steps in pairs
        if not same(one["outputs"], steps["outputs"])
    ]
    assert different == []


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("words", [1, 7, 40])
def test_replies_are_the_same_but_for_the_last_digits(
    words: int, model: str, triton: Server, reference: Server
):
    """Compare the raw JSON with its headers after removing the logits."""
    request = infer(
        model,
        tensor("text", "BYTES", [1], [english(random.Random(words), words)]),
        id=f"of {words} words",
    )
    comparable = bodies(count_logits)
    assert comparable(exchange(reference.http, request)) == comparable(
        exchange(triton.http, request)
    )


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_classes_have_the_names_of_the_model_that_makes_them(model, triton, reference):
    def classes(server: Server) -> list[str]:
        with InferenceServerClient(server.http, network_timeout=60) as client:
            wanted = [InferRequestedOutput("logits", class_count=2)]
            sent = [as_input(text("Where is my parcel?"))]
            result = client.infer(model, sent, outputs=wanted)
            return [entry.decode().split(":")[2] for entry in result.as_numpy("logits")]

    assert classes(triton) == classes(reference) == ["delivery", "billing"]
