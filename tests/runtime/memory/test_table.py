import pytest

from ge_runtime.memory.plan import aligned_columns, in_binary_units


def test_cells_of_a_column_stand_under_each_other():
    rows = [("name", "bytes", "note"), ("x", "1,024", ""), ("weights", "7", "once")]
    assert aligned_columns(rows, "<><") == [
        "name     bytes  note",
        "x        1,024",
        "weights      7  once",
    ]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, ""),
        (1023, ""),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (90_258_544, "86.1 MiB"),
        (18 * 1024**3, "18.0 GiB"),
        (3000 * 1024**4, "3000.0 TiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_of_which_there_is_one(nbytes, text):
    assert in_binary_units(nbytes) == text
