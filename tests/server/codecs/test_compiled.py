"""The compiled modules are built from the sources beside them."""

from pathlib import Path

import pytest

import reference_server

SOURCES = sorted(Path(reference_server.__file__).parent.glob("*/*.pxd"))


@pytest.mark.parametrize("types", SOURCES, ids=lambda types: types.stem)
def test_a_compiled_module_is_as_new_as_its_source(types):
    for built in types.parent.glob(f"{types.stem}.*.so"):
        for file in (types, types.with_suffix(".py")):
            newest = file.stat().st_mtime
            assert newest <= built.stat().st_mtime, f"{file.name} was changed: run make"
