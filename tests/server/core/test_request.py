"""The length of sequence ids."""

import pytest

from reference_server.core.errors import Code, ServerError
from reference_server.core.request import string_id


@pytest.mark.parametrize("text", ["", "a" * 128, "ä" * 64, "\udc9f" * 128])
def test_ids_of_up_to_128_bytes_are_accepted(text):
    assert string_id(text) == text


@pytest.mark.parametrize("text", ["a" * 129, "ä" * 65, "\udc9f" * 129])
def test_longer_ids_are_refused(text):
    with pytest.raises(ServerError) as caught:
        string_id(text)
    assert caught.value.code is Code.UNSUPPORTED
