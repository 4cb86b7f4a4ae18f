import pytest

from ge_runtime.cli.text_format import parse


def test_a_model_configuration_is_read():
    assert parse(
        """
        # A comment, and then some.
        backend: "python"  max_batch_size: 64
        input [
          { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true },
          { name: 'lengths', data_type: TYPE_INT32; dims: 1 dims: 2 }  # the last one
        ]
        output { name: "embedding" dims: [] reshape: < shape: [ ] > }
        dynamic_batching { }
        parameters { key: "axes.ids" value { string_value: "tokens" } }
        parameters: { key: "limit.tokens" value: { string_value: "5" '12' } }
        """
    ) == {
        "backend": "python",
        "max_batch_size": 64,
        "input": [
            {
                "name": "ids",
                "data_type": "TYPE_INT64",
                "dims": [-1],
                "allow_ragged_batch": True,
            },
            {"name": "lengths", "data_type": "TYPE_INT32", "dims": [1, 2]},
        ],
        "output": [{"name": "embedding", "dims": [], "reshape": {"shape": []}}],
        "dynamic_batching": {},
        "parameters": {
            "axes.ids": {"string_value": "tokens"},
            "limit.tokens": {"string_value": "512"},
        },
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x10", 16),
        ("-3", -3),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("false", False),
        ("KIND_CPU", "KIND_CPU"),
        (r'"a\tb\n\"\\\'"', "a\tb\n\"\\'"),
        ('"# no comment"', "# no comment"),
        ('"长"', "长"),
        ("[1, 2]", [1, 2]),
        ("[1, 2,]", [1, 2]),
        ("{ a: 1 }", {"a": 1}),
    ],
)
def test_a_value_is_read(text, value):
    assert parse(f"field: {text}") == {"field": value}


def test_an_empty_file_says_nothing():
    assert parse("  # nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb 2", "line 2: found '2', expected ':' or '{'"),
        ("a:", "line 1: found the end, expected a value"),
        ("a: }", "line 1: found '}', expected a value"),
        ("a {\nb: 1\n", "line 3: found the end, expected '}'"),
        ("a { b: 1 >", "line 1: found '>', expected the name of a field"),
        ("}", "line 1: found '}', expected the name of a field"),
        ("a: [1 2]", "line 1: found '2', expected ',' or ']'"),
        ("a: [1,", "line 1: found the end, expected a value"),
        ("\n\na: 'open", 'line 3: found "\'", expected a field or value'),
        ("a: 12x", "line 1: found '1', expected a field or value"),
        (r'a: "\q"', r"expected a text whose escapes are among"),
        ("a: 1 \x00", r"line 1: found '\\x00', expected a field or value"),
    ],
)
def test_a_fault_has_its_line(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)
