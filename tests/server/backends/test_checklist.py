"""The checklist of the Python backend, played on the inline host."""

from pathlib import Path

import pytest
from server.backends import kit
from server.backends.checklist import ROWS, Row

from reference_server.core.errors import ServerError


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_model_sees_and_says_what_triton_has_it_see_and_say(
    tmp_path: Path, open_file, row: Row
) -> None:
    file = kit.write(tmp_path / "m" / "1" / "model.py", row.source)
    asked = kit.request(id="é7", IN=[1.0, 2.0], STRINGS=["a", "é"])
    asked.inputs["STRINGS"] = kit.request(STRINGS=[b"a", "é".encode()]).inputs["STRINGS"]
    asked.parameters = {"i": 5, "s": "é\n", "b": True, "d": 1.5}
    opened = open_file(file)
    if row.tells is not None:
        assert kit.outputs(kit.answer(opened, asked))["TEXT"][0] == row.tells.encode()
    else:
        with pytest.raises(ServerError) as caught:
            opened.execute([asked])
        assert caught.value.message == kit.FAILED + row.failure(str(file))
