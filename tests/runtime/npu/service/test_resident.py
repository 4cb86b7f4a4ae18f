"""Tensors that stay in the device service between two models: of real services, on the CPU."""

import numpy as np
import pytest
from runtime.support.configs import tensor
from runtime.support.graphs import ENCODER, encode
from runtime.support.resident import SCORES, giver, taker, tokens, write_scores
from runtime.support.services import held_service
from support.waiting import until

from ge_runtime import ArtifactFault, ConfigFault, Runtime
from ge_runtime.engines.backend import HostBackend
from ge_runtime.errors import Expired, HandleFault, HandleGone, RequestFault, RowsTaken
from ge_runtime.npu.service import execution_loop
from ge_runtime.scheduling.request_batch import ANONYMOUS_CALLER, Caller
from ge_runtime.specs import DType

pytestmark = pytest.mark.brute_force

ROWS = [[1, 2, 3], [4] * 9, [7], [5, 6]]


@pytest.fixture(scope="module")
def scores_dir(tmp_path_factory):
    return write_scores(tmp_path_factory.mktemp("scores"))


@pytest.fixture
def opened(shared_services, version_dir, scores_dir):
    """A function that opens the model of a configuration."""
    runtimes = []

    def open_runtime(config):
        folder = version_dir(ENCODER) if "input_ids" in str(config["input"]) else scores_dir
        name = f"{config['name']}_{len(runtimes)}"
        runtimes.append(Runtime.open(folder, config, instance_name=name))
        return runtimes[-1]

    yield open_runtime
    for runtime in runtimes:
        runtime.close()


def embeddings(runtime, rows):
    """The handles of the rows' embeddings, a request each."""
    return runtime.infer([tokens(*row) for row in rows])


def taken(services):
    return sum(client["resident_rows"] for client in services.stats()["clients"])


def test_requests_are_batched_again_between_the_models(shared_services, opened):
    give, take = opened(giver()), opened(taker())
    handles = [answer["embedding"] for answer in embeddings(give, ROWS)]
    assert {own.shape for own in handles} == {(1, 4)}
    assert taken(shared_services) == 4  # none for rows of padding, or of the warm-up
    pair = {"embedding": np.concatenate([handles[3], handles[0]])}
    answers = take.infer([{"embedding": handles[2]}, pair, {"embedding": handles[1]}])
    for answer, rows in zip(answers, ([2], [3, 0], [1]), strict=True):
        expected = np.concatenate([encode([ROWS[row]]) for row in rows]) @ SCORES
        np.testing.assert_allclose(answer["scores"], expected, rtol=1e-5)
    assert taken(shared_services) == 0
    (reported,) = [line for line in give.report if "stays in the device service" in line]
    assert reported.endswith(
        "output 'embedding': 32 rows of FP32[4] of encoder, 2,048 bytes; each is read 1 time(s), "
        "within 60 s, or 5 s if there is no room for other rows"
    )


def test_a_wrong_handle_harms_no_other_request(opened):
    give, take = opened(giver()), opened(taker())
    good = [answer["embedding"] for answer in embeddings(give, ROWS[:2])]
    guessed = good[0].copy()
    guessed[0, 3] += 1
    nothing = np.zeros((1, 4), np.uint64)
    answers = take.infer([{"embedding": own} for own in (good[0], guessed, good[1], nothing)])
    assert [type(answer) for answer in answers] == [dict, HandleGone, dict, HandleGone]
    for answer, row in zip(answers[::2], ROWS, strict=False):
        np.testing.assert_allclose(answer["scores"], encode([row]) @ SCORES, rtol=1e-5)


def test_handles_of_another_model_are_refused(opened):
    give, take = opened(giver(name="other")), opened(taker())
    (answer,) = embeddings(give, ROWS[:1])
    (refusal,) = take.infer([answer])
    assert type(refusal) is HandleFault
    assert "found a handle of FP32[4] of other, expected FP32[4] of encoder" in str(refusal)


def test_rows_are_read_as_often_as_they_are_to_be(opened):
    give, take = opened(giver({"resident_reads": "2"})), opened(taker())
    (answer,) = embeddings(give, ROWS[:1])
    results = [take.infer([answer])[0] for _ in range(3)]
    assert [type(result) for result in results] == [dict, dict, HandleGone]


def test_without_room_requests_are_unavailable(services, version_dir, scores_dir, monkeypatch):
    monkeypatch.setattr(execution_loop, "MOST_WAIT_S", 0.0)
    with held_service(services.path, device="cpu", backend=HostBackend("cpu")):
        config = giver({"resident_rows": "8", "resident_s": "3600", "resident_spare_s": "3600"})
        give = Runtime.open(version_dir(ENCODER), config, instance_name="encoder_0")
        take = Runtime.open(scores_dir, taker(), instance_name="scores_0")
        held = [own["embedding"] for own in embeddings(give, [[1]] * 7)]
        refused = embeddings(give, [[1], [2]])
        assert {type(own) for own in refused} == {RowsTaken}
        assert "found 7 of 8 places of FP32[4] of encoder taken, expected 2" in str(refused[0])
        take.infer([{"embedding": own} for own in held])
        assert all(isinstance(own, dict) for own in embeddings(give, [[1]] * 8))
        take.close()
        give.close()


def test_a_request_that_fails_takes_its_rows_along(shared_services, opened):
    give, take = opened(giver()), opened(taker())
    handles = [own["embedding"] for own in embeddings(give, ROWS)]
    wrong = handles[0].copy()
    wrong[0, 3] += 1
    late = Caller(deadline=-1.0)
    requests = [
        {"embedding": np.concatenate([wrong, handles[0]])},  # one handle is invalid
        {"embedding": handles[1], "more": handles[1]},  # refused before anything is executed
        {"embedding": handles[2]},
        {"embedding": handles[3]},
    ]
    callers = [ANONYMOUS_CALLER, ANONYMOUS_CALLER, late, ANONYMOUS_CALLER]
    answers = take.infer(requests, callers)
    kinds = (HandleGone, RequestFault, Expired, dict)
    assert all(isinstance(own, kind) for own, kind in zip(answers, kinds, strict=True))
    assert taken(shared_services) == 0


def test_rows_go_with_the_model_that_gave_them(shared_services, opened):
    give, take = opened(giver()), opened(taker())
    (answer,) = embeddings(give, ROWS[:1])
    give.close()
    (gone,) = take.infer([answer])
    assert isinstance(gone, HandleGone)
    assert taken(shared_services) == 0


def test_the_next_service_knows_no_handle_of_the_last(services, version_dir, scores_dir):
    give = Runtime.open(version_dir(ENCODER), giver(), instance_name="encoder_0")
    take = Runtime.open(scores_dir, taker(), instance_name="scores_0")
    (before,) = embeddings(give, ROWS[:1])
    services.kill(give, take)
    until(lambda: give.is_ready() and take.is_ready(), "the next service")
    (after,) = embeddings(give, ROWS[:1])  # rows stay there as well
    answers = take.infer([before, after])
    assert isinstance(answers[0], HandleGone)
    np.testing.assert_allclose(answers[1]["scores"], encode(ROWS[:1]) @ SCORES, rtol=1e-5)
    give.close()
    take.close()


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        (
            {**giver(), "output": [tensor("embedding", "FP32", [4])]},
            "output 'embedding': found FP32[4], expected UINT64[4], the handle of a row",
        ),
        (
            giver({"placement": "local"}),
            "parameter 'placement': found local, expected service, where 'resident' has tensors",
        ),
        (
            giver({"resident.embedding": "FP32[4] of encoder"}),
            "parameter 'resident.embedding': found 'FP32[4] of encoder', expected type and dims",
        ),
        (taker({"resident.embedding": "FP32[4]"}), "e.g. FP32[384] of text_encoder"),
        (giver({"resident.embedding": "FP33[4]"}), "found 'FP33[4]', expected type and dims"),
        (giver({"resident.embedding": "FP32[0]"}), "found 'FP32[0]', expected sizes of at least 1"),
        (giver({"resident.embeding": "FP32[4]"}), "found no input or output 'embeding'"),
        (giver({"resident_rows": "7"}), "found 7, expected 8, a batch, to 1000000"),
        (giver({"resident_s": "0"}), "found '0', expected a whole number of at least 1"),
        (giver(batch=0), "max_batch_size: found 0, expected at least 1"),
    ],
)
def test_configurations_that_are_wrong_are_reported(opened, config, reported):
    with pytest.raises(ConfigFault) as raised:
        opened(config)
    assert reported in str(raised.value)


def test_settings_without_a_tensor_are_reported(opened):
    config = giver({"resident_rows": "64"})
    del config["parameters"]["resident.embedding"]
    with pytest.raises(ConfigFault, match=r"'resident_rows': found no 'resident\.<output>'"):
        opened(config)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32])
def test_the_graph_must_have_the_tensor(opened, dtype):
    dims = "4" if dtype is DType.FP16 else "5"
    with pytest.raises(ArtifactFault) as raised:
        opened(giver({"resident.embedding": f"{dtype.value}[{dims}]"}))
    assert "resident output 'embedding': found FP32[*,4] in the graph, expected" in str(
        raised.value
    )
