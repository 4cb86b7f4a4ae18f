"""Configurations in JSON for load requests, both accepted and refused."""

from __future__ import annotations

TENSORS = (
    '"input":[{"name":"X","data_type":"TYPE_FP32","dims":[-1]}],'
    '"output":[{"name":"Y","data_type":"TYPE_FP32","dims":[-1]}]'
)


def members(*given: str) -> str:
    """Return the vector model's configuration with these members added."""
    return "{" + ",".join(('"backend":"python"', TENSORS, *given)) + "}"


def typed(datatype: str) -> str:
    """Return the configuration with another data type."""
    return members().replace('"TYPE_FP32"', datatype)


def sized(dims: str) -> str:
    """Return the configuration with other dims."""
    return members().replace("[-1]", dims)


def of_rows(text: str) -> str:
    """Return the configuration with this `max_batch_size`."""
    return members(f'"max_batch_size":{text}')


def parameter(text: str) -> str:
    """Return the configuration with this value of a parameter."""
    return members(f'"parameters":{{"a":{{"string_value":{text}}}}}')


def decoupled(text: str) -> str:
    """Return the configuration with this decoupled policy."""
    return members(f'"model_transaction_policy":{{"decoupled":{text}}}')


def controlled(text: str) -> str:
    """Return the configuration with these two FP32 values of a control."""
    control = f'{{"kind":"CONTROL_SEQUENCE_START","fp32_false_true":{text}}}'
    entry = f'{{"name":"S","control":[{control}]}}'
    return members('"max_batch_size":4', f'"sequence_batching":{{"control_input":[{entry}]}}')


def batching(text: str) -> str:
    """Return the configuration with these settings of the dynamic batcher."""
    return members('"max_batch_size":4', f'"dynamic_batching":{{{text}}}')


def policies(key: str) -> str:
    """Return the configuration with a queue policy for the priority `key`."""
    levels = '"priority_levels":3,"default_priority_level":2'
    return batching(f'{levels},"priority_queue_policy":{{{key}:{{"max_queue_size":5}}}}')


def unserved(text: str) -> str:
    """Return the configuration with a change, so that it is refused after parsing.

    No process is started for it.
    """
    return text.replace("{", '{"instance_group":[{"kind":"KIND_GPU"}],', 1)


#: Both servers accept these texts.
READ = {
    "snake case": members('"max_batch_size":4', '"dynamic_batching":{"preferred_batch_size":[2]}'),
    "camel case": members('"maxBatchSize":4', '"dynamicBatching":{"preferredBatchSize":[2]}'),
    "spaces": " \r\n\t" + members('"max_batch_size" : 4') + " \n",
    "null": members('"max_batch_size":null', '"dynamic_batching":null', '"sequence_batching":null'),
    "escapes": parameter(r'"\/\"\\\n\u0041\u00E9\uFFFF\ud83d\ude00"'),
    "escaped key": members(r'"max\u005fbatch_size":4'),
    "priority": policies('"1"'),
    **{f"rows {text}": of_rows(text) for text in ('"4"', '"+4"', '"04"', '"-0"', "-0", "-0.0")},
    **{f"rows {text}": of_rows(text) for text in ("4.0", "4e+0", "40E-1", "0e5")},
    **{f"dims {text}": sized(text) for text in ("[1e2]", '["-1"]', "[9223372036854775807]")},
    **{f"type {text}": typed(text) for text in ("11", '"11"', "11.0")},
    "truth null": decoupled("null"),
    **{
        f"fractions {text}": controlled(text)
        for text in (
            *("[1,0.1]", '["+1",".5"]', '["1.",0.5e0]', '["Infinity","-Infinity"]', '["NaN",0]'),
            *("[16777217,1e-50]", "[65535,1e7]", "[0.1234567,1e9]"),
        )
    },
    "delay": batching('"max_queue_delay_microseconds":1.8e19'),
    "exact delay": batching('"max_queue_delay_microseconds":9007199254740993'),
    "number of no action": batching('"default_queue_policy":{"timeout_action":9}'),
    "number of no format": members().replace('"data_type"', '"format":9,"data_type"', 1),
}
#: Both servers refuse these texts.
REFUSED = {
    "open": members()[:-1],
    "open string": '{"backend":"pyth',
    "text after the object": members() + "x",
    "array": f"[{members()}]",
    "no colon": members('"max_batch_size" 4'),
    "no comma": members('"max_batch_size":4 "version_policy":{}'),
    "no value": members('"max_batch_size":'),
    "two commas": members('"max_batch_size":4', "", '"version_policy":{}'),
    "comma first": "{," + members()[1:],
    "comment": members('/* x */ "max_batch_size":4'),
    "keyword as key": members("null:1"),
    "number as key": policies("1"),
    "short escape": parameter(r'"\u00g"'),
    "first surrogate alone": parameter(r'"\ud83d"'),
    "second surrogate alone": parameter(r'"\udc00"'),
    "chosen twice": members('"dynamic_batching":{}', '"dynamic_batching":{}'),
    "two chosen": members('"max_batch_size":4', '"dynamic_batching":{}', '"sequence_batching":{}'),
    "map key twice": members('"parameters":{"a":{},"a":{}}'),
    "map as array": members('"cc_model_filenames":[]'),
    "map as text": members('"cc_model_filenames":"a"'),
    "array as text": members('"cc_model_filenames":{"a":["b"]}'),
    "object as text": parameter("{}"),
    "number as text": parameter("5"),
    "text as object": members('"instance_group":["x"]'),
    "unknown": members('"nope":null'),
    "key in capitals": members('"MaxBatchSize":4'),
    **{f"rows {text}": of_rows(text) for text in ("4.5", "true", "[4]", '""', '" 4"')},
    **{f"rows {text}": of_rows(text) for text in ("010", "-01", "0x4", "+4", ".5", "4-", "1e400")},
    **{f"rows {text}": of_rows(text) for text in ("2147483648", "4.0.0", "nul", "nullx", "NaN")},
    **{f"dims {text}": sized(text) for text in ("[1.5]", "[true]", "[{}]", "[,]", "[1 2]")},
    "dims too large": sized("[9223372036854775808]"),
    **{f"type {text}": typed(text) for text in ("TYPE_FP32", '"typeFp32"', '"11.0"')},
    **{f"truth {text}": decoupled(text) for text in ('"on"', "1", "True", '""')},
    **{f"fractions {text}": controlled(text) for text in ("[1e39,1]", '["nan",1]', '[" ",0]')},
}
#: Only the real server accepts these: invalid JSON, and forms that JSON libraries do not write.
READ_BY_TRITON = {
    "bare key": members("max_batch_size:4"),
    "single quotes": members("'default_model_filename':'model.py'"),
    "comma at the end": members('"max_batch_size":4,'),
    "form feed": "\f" + members(),
    "text after a NUL": members() + "\0garbage",
    "unknown escape": parameter(r'"\q"'),
    "line break in a string": parameter('"a\nb"'),
    "number that ends with a point": of_rows("4."),
    "array in an array": sized("[[-1]]"),
    "number for an array": sized("-1"),
    "object for an array": members('"instance_group":{"count":2}'),
    "null in an array": sized("[null,-1]"),
    "null in a map": members('"parameters":{"a":null}'),
    "number twice": members('"max_batch_size":4', '"max_batch_size":8'),
    "type in lower case": typed('"type_fp32"'),
    "truth as text": decoupled('"true"'),
}
#: Only the reference server accepts these.
READ_HERE = {
    "array for an object": members('"dynamic_batching":[]'),
    "number with a point as text": of_rows('"4.0"'),
    "truth for a type": typed("true"),
    "truth for a number": controlled("[true,0]"),
    "space in a fraction": controlled('[" 1",0]'),
    "fraction in a priority": policies('"1.0"'),
}
#: Texts of READ whose values are compared with the served configuration.
SHOWN = (
    *("camel case", "null", "escapes", "rows 40E-1", "dims [1e2]", 'fractions ["NaN",0]'),
    *("fractions [1,0.1]", "fractions [0.1234567,1e9]", "exact delay", "number of no action"),
)
