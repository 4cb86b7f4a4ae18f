"""A simulated Ascend machine for every test, clean before and found clean afterwards."""

import gc

import pytest
from runtime.support.ascend import SITE, Machine, compile_om, token_gears
from runtime.support.graphs import ENCODER, write

from ge_runtime.npu.driver.card import PROCESS_CARDS

GEARS = [(1, 8), (4, 8), (4, 32), (8, 32)]


@pytest.fixture(autouse=True)
def machine(little_garbage, monkeypatch):
    """The simulated machine; all memory, streams and models must be freed unless a card is lost."""
    monkeypatch.syspath_prepend(SITE)
    machine = Machine()
    yield machine
    gc.collect()
    for number, card in [*PROCESS_CARDS._open.items()]:
        if card.lost is None:  # answers were held when it was closed: they are gone by now
            PROCESS_CARDS.release(PROCESS_CARDS.acquire(number))
    lost = any(card.lost for card in PROCESS_CARDS._open.values())
    report = machine.report
    PROCESS_CARDS.__init__()
    machine.start()
    assert lost or report.live == []
    assert report.broken == {}


@pytest.fixture(scope="session")
def encoder_dir(tmp_path_factory):
    """The encoder, compiled for GEARS."""
    folder = tmp_path_factory.mktemp("encoder")
    write(ENCODER, "onnxruntime", folder)
    compile_om(folder, *token_gears(*GEARS))
    return folder
