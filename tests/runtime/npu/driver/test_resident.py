"""Rows that stay on a simulated card between two models: what is copied, and what fails."""

import numpy as np
import pytest
from runtime.npu.driver.test_om_serving import on_card
from runtime.support.ascend import compile_om
from runtime.support.graphs import encode
from runtime.support.resident import SCORES, giver, taker, tokens, write_scores
from runtime.support.services import Services, held_service

from ge_runtime import Runtime
from ge_runtime.errors import EngineFault, HandleGone
from ge_runtime.npu.engines.ascend_backend import AscendBackend

pytestmark = pytest.mark.brute_force

H2D, D2H, D2D = (
    f"ACL_MEMCPY_{way}" for way in ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")
)


@pytest.fixture(scope="session")
def scores_dir(tmp_path_factory):
    folder = write_scores(tmp_path_factory.mktemp("scores"))
    flags = ["--input_format=ND", "--input_shape=embedding:-1,4", "--dynamic_dims=1;8"]
    compile_om(folder, *flags)
    return folder


@pytest.fixture
def service(machine, tmp_path, monkeypatch):
    """A service in this process, which the card's counters are of."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with (
        Services(tmp_path / "ge_runtime") as services,
        held_service(services.path, device="npu:0", backend=AscendBackend(0)) as (_, server),
    ):
        yield server


@pytest.fixture
def models(service, encoder_dir, scores_dir):
    """The two, opened."""
    give = Runtime.open(encoder_dir, on_card(giver()), instance_name="encoder_0")
    take = Runtime.open(scores_dir, on_card(taker()), instance_name="scores_0")
    yield give, take
    take.close()
    give.close()


def copied(machine, before):
    """Bytes since then: to the card, from it, within it."""
    now = machine.report.copied_bytes
    return [now.get(way, 0) - before.copied_bytes.get(way, 0) for way in (H2D, D2H, D2D)]


def test_rows_are_copied_within_the_card_alone(machine, models):
    give, take = models
    rows = [[1, 2, 3], [4] * 5, [7, 8]]
    before = machine.report
    handles = [answer["embedding"] for answer in give.infer([tokens(*row) for row in rows])]
    to_card, from_card, within = copied(machine, before)
    assert (from_card, within) == (0, 3 * 16)  # of a gear of four rows
    assert to_card >= 4 * 8 * 16  # token ids and their mask, and the gear
    before = machine.report
    order = [2, 0, 1]
    answers = take.infer([{"embedding": handles[row]} for row in order])
    for answer, row in zip(answers, order, strict=True):
        np.testing.assert_allclose(answer["scores"], encode([rows[row]]) @ SCORES, rtol=1e-3)
    to_card, from_card, within = copied(machine, before)
    assert (from_card, within) == (8 * 8, 8 * 16)  # the scores of a gear of eight rows; the rows
    assert to_card < 8 * 16  # what sets the gear


def test_nothing_is_allocated_while_it_serves(machine, models):
    give, take = models
    before = machine.report
    for row in ([1], [2, 3], [4] * 20):
        take.infer(give.infer([tokens(*row)]))
    after = machine.report
    assert after.mallocs == before.mallocs
    for function in ("rt.malloc_host", "mdl.create_dataset", "create_data_buffer"):
        assert after.calls.get(function) == before.calls.get(function)


def test_rows_of_an_execution_that_failed_are_read_by_its_halves(machine, models):
    give, take = models
    rows = [[5, 6], [7]]
    answers = give.infer([tokens(*row) for row in rows])
    machine.arm("execute@1=507015")
    for answer, row in zip(take.infer(answers), rows, strict=True):
        np.testing.assert_allclose(answer["scores"], encode([row]) @ SCORES, rtol=1e-3)


def test_a_row_is_freed_when_its_request_fails(machine, models, service):
    give, take = models
    (answer,) = give.infer([tokens(5, 6)])
    machine.arm("execute@1=507015")
    (failed,) = take.infer([answer])
    assert isinstance(failed, EngineFault)
    assert sum(client.resident_rows for client in service.state.clients()) == 0
    (again,) = take.infer([answer])
    assert isinstance(again, HandleGone)


def test_an_execution_that_fails_takes_no_place(machine, models, service):
    give, _ = models
    machine.arm("execute@1=507015")
    (failed,) = give.infer([tokens(5, 6)])
    assert isinstance(failed, EngineFault)
    assert sum(client.resident_rows for client in service.state.clients()) == 0
