"""JPEG files decoded by a simulated card's DVPP, as the host decodes them."""

import numpy as np
import pytest
from runtime.devices.test_jpeg import gradient, jpeg

from ge_runtime.devices.jpeg import PillowDecoder
from ge_runtime.errors import EngineLost, RequestFault
from ge_runtime.npu.driver.pyacl import open_media
from ge_runtime.npu.engines.ascend_backend import AscendBackend

DECODES = "media.dvpp_jpeg_decode_async"


@pytest.fixture
def backend(machine):
    backend = AscendBackend(0)
    yield backend
    backend.close()


@pytest.fixture
def decoder(backend):
    return backend.jpeg_decoder(PillowDecoder())


def decoded(machine):
    return machine.report.calls.get(DECODES, 0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("sides", [(64, 48), (65, 49)])
def test_pictures_are_those_of_the_host(decoder, machine, channels, sides):
    file = jpeg(gradient(*sides, 3))
    found = decoder.decode(file, 32, 24, channels)
    np.testing.assert_allclose(found, PillowDecoder().decode(file, 32, 24, channels), atol=8)
    assert (found.shape, decoded(machine)) == ((32, 24, channels), 1)


@pytest.mark.parametrize(
    ("file", "height", "width"),
    [
        (jpeg(gradient(64, 48), progressive=True), 32, 24),
        (jpeg(gradient(16, 48)), 16, 24),
        (jpeg(gradient(64, 48)), 31, 24),
        (jpeg(gradient(64, 48)), 4, 24),
        (jpeg(gradient(400, 48)), 10, 24),
    ],
)
def test_what_dvpp_does_not_take_is_decoded_on_the_host(decoder, machine, file, height, width):
    expected = PillowDecoder().decode(file, height, width, 1)
    np.testing.assert_array_equal(decoder.decode(file, height, width, 1), expected)
    assert decoded(machine) == 0


@pytest.mark.parametrize(("sides", "made"), [((32, 48), (512, 24)), ((384, 48), (12, 24))])
def test_sides_grow_and_shrink_as_far_as_dvpp_takes_them(decoder, machine, sides, made):
    assert decoder.decode(jpeg(gradient(*sides)), *made, 1).shape == (*made, 1)
    assert decoded(machine) == 1


def test_a_damaged_file_is_reported_and_the_next_is_decoded(decoder, machine):
    with pytest.raises(RequestFault, match="found a damaged JPEG file"):
        decoder.decode(jpeg(gradient(64, 48))[:500], 32, 24, 1)
    file = jpeg(gradient(64, 48))
    np.testing.assert_array_equal(
        decoder.decode(file, 32, 24, 1), PillowDecoder().decode(file, 32, 24, 1)
    )
    assert decoded(machine) == 2


def test_a_lost_card_is_reported(decoder, machine):
    machine.arm("copy@1=lost")
    with pytest.raises(EngineLost, match="DVPP of npu:0"):
        decoder.decode(jpeg(gradient(64, 48)), 32, 24, 1)


def test_memory_grows_with_the_largest_file_and_stays(decoder, machine):
    for side in (64, 128, 64, 128):
        decoder.decode(jpeg(gradient(side, side)), 32, 32, 1)
    assert machine.report.calls["media.dvpp_malloc"] <= 5


def test_a_backend_has_one_decoder_and_a_process_without_media_none(backend, monkeypatch):
    host = PillowDecoder()
    assert backend.jpeg_decoder(host) is backend.jpeg_decoder(host)
    import acl

    monkeypatch.delattr(acl, "media")
    assert open_media() is None
    other = AscendBackend(0)
    assert other.jpeg_decoder(host) is None
    other.close()


def test_a_chip_without_dvpp_leaves_files_to_the_host(machine, monkeypatch):
    import acl

    monkeypatch.setattr(acl.media, "dvpp_create_channel", lambda channel: 200001)
    backend = AscendBackend(0)
    assert backend.jpeg_decoder(PillowDecoder()) is None
    monkeypatch.undo()
    backend.close()
