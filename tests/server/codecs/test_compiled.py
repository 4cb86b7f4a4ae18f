"""The modules that are compiled: what runs is what is in their sources."""

from pathlib import Path

import pytest
from server.support.compiled import source, unless_compiled

from reference_server.codecs import (
    grisu,
    json_skeleton,
    json_strings,
    number_reader,
    proto_fields,
)
from reference_server.core import string_packing


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(each, marks=unless_compiled(each))
        for each in (
            *(grisu, json_skeleton, json_strings, number_reader, proto_fields),
            string_packing,
        )
    ],
)
def test_what_is_compiled_is_no_older_than_its_source(module):
    built = Path(module.__file__).stat().st_mtime
    for file in (source(module), source(module).with_suffix(".pxd")):
        assert file.stat().st_mtime <= built, f"{file.name} was changed: make builds it again"
