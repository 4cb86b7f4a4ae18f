from ge_runtime.engines.analysis import Operation, intermediates
from ge_runtime.memory.lifetimes import Intermediates, Lifetime

SIZES = dict.fromkeys("abcdefg", 10)


def spans(found):
    return {each.name: (each.first, each.last) for each in found.lifetimes}


def test_value_lives_from_its_operation_to_its_last_reader():
    operations = [
        Operation(("x",), ("a",)),
        Operation(("a",), ("b",)),
        Operation(("b",), ("c",)),
        Operation(("a", "c"), ("d",)),
    ]
    found = intermediates(operations, SIZES, elsewhere={"d"})
    assert spans(found) == {"a": (0, 3), "b": (1, 2), "c": (2, 3)}


def test_an_unused_value_lives_for_its_own_step():
    found = intermediates([Operation(("x",), ("a", "b"))], SIZES, elsewhere=())
    assert spans(found) == {"a": (0, 0), "b": (0, 0)}


def test_delivered_value_lives_past_the_last_operation():
    operations = [Operation(("x",), ("a",)), Operation(("x",), ("b",))]
    found = intermediates(operations, SIZES, elsewhere=(), delivered=("a",))
    assert spans(found) == {"a": (0, 2), "b": (1, 1)}


def test_views_keep_the_bytes_that_they_show_alive():
    operations = [
        Operation(("x",), ("a",)),
        Operation(("a",), ("b",), view_of="a"),
        Operation(("b",), ("c",), view_of="b"),
        Operation(("x",), ("d",)),
        Operation(("c", "d"), ("e",)),
    ]
    found = intermediates(operations, SIZES, elsewhere={"e"})
    assert spans(found) == {"a": (0, 4), "d": (3, 4)}


def test_view_of_what_lies_elsewhere_takes_nothing():
    operations = [Operation(("x",), ("a",), view_of="x"), Operation(("a",), ("b",))]
    assert intermediates(operations, SIZES, elsewhere={"b"}) == Intermediates(())


def test_values_without_a_size_are_counted():
    operations = [Operation(("x",), ("a", "unknown")), Operation(("unknown",), ("other",))]
    found = intermediates(operations, SIZES, elsewhere=())
    assert found == Intermediates((Lifetime("a", 10, 0, 0),), unsized=2)
