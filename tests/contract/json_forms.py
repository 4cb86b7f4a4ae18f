"""Configurations in JSON as Protobuf's C++ library reads it: what it takes, and what it refuses."""

from __future__ import annotations

TENSORS = (
    '"input":[{"name":"X","data_type":"TYPE_FP32","dims":[-1]}],'
    '"output":[{"name":"Y","data_type":"TYPE_FP32","dims":[-1]}]'
)


def members(*given: str) -> str:
    """The vector model's configuration with these members."""
    return "{" + ",".join(('"backend":"python"', TENSORS, *given)) + "}"


def typed(datatype: str) -> str:
    """The same with another data type."""
    return members().replace('"TYPE_FP32"', datatype)


def sized(dims: str) -> str:
    """The same with other dims."""
    return members().replace("[-1]", dims)


def of_rows(text: str) -> str:
    """The same with `max_batch_size` as written."""
    return members(f'"max_batch_size":{text}')


def told(text: str) -> str:
    """The same with a parameter's value as written."""
    return members(f'"parameters":{{"a":{{"string_value":{text}}}}}')


def decoupled(text: str) -> str:
    """The same with the decoupled policy as written."""
    return members(f'"model_transaction_policy":{{"decoupled":{text}}}')


def controlled(text: str) -> str:
    """The same with two FP32 values of a control as written."""
    control = f'{{"kind":"CONTROL_SEQUENCE_START","fp32_false_true":{text}}}'
    entry = f'{{"name":"S","control":[{control}]}}'
    return members('"max_batch_size":4', f'"sequence_batching":{{"control_input":[{entry}]}}')


def batching(text: str) -> str:
    """The same with settings of the dynamic batcher as written."""
    return members('"max_batch_size":4', f'"dynamic_batching":{{{text}}}')


def policies(key: str) -> str:
    """The same with the queue policy of a priority as written."""
    levels = '"priority_levels":3,"default_priority_level":2'
    return batching(f'{levels},"priority_queue_policy":{{{key}:{{"max_queue_size":5}}}}')


def unserved(text: str) -> str:
    """The same, which once it is read is refused for another reason: no process is started."""
    return text.replace("{", '{"instance_group":[{"kind":"KIND_GPU"}],', 1)


#: What is taken, by what is special about it.
LITERALS = {
    "bare keys": members("max_batch_size:4", "parameters:{a:{string_value:'b'}}"),
    "bare key and a space": members("max_batch_size : 4"),
    "camel case": members("maxBatchSize:4", '"dynamicBatching":{"preferredBatchSize":[2]}'),
    "single quotes": members("'default_model_filename':'model.py'"),
    "comma at the end": members('"max_batch_size":4,').replace("[-1]", "[-1,]"),
    "form feeds": "\f\v" + members() + " \n",
    "behind a NUL": members() + "\0garbage",
    "arrays in arrays": sized("[[[-1]]]"),
    "arrays of nothing": members('"model_warmup":[[],[[]]]'),
    "one as array": sized("-1").replace('"name":"Y"', "'name':'Y'"),
    "object as array": members('"instance_group":{"count":2}'),
    "many arrays": sized("[" * 1000 + "-1" + "]" * 1000),
    "null": members(
        *('"max_batch_size":null', '"dynamic_batching":null', '"model_warmup":[null]'),
        *('"parameters":{"a":null}', '"cc_model_filenames":{"a":null}', '"sequence_batching":null'),
    ),
    "null among others": sized("[null,-1]"),
    "twice": members('"max_batch_size":4', '"max_batch_size":8', '"maxBatchSize":2'),
    "array twice": sized('[1],"dims":[2]'),
    "message twice": members(
        '"optimization":{"priority":"PRIORITY_MAX"}',
        '"optimization":{"gather_kernel_buffer_threshold":3}',
    ),
    "map twice": members(
        '"parameters":{"a":{"string_value":"b"}}', '"parameters":{"a":{"string_value":"c"}}'
    ),
    "escapes": told(r'"\a\/\'\q\x41\0\U0041\u00E9\uFFFF\ud83d\ude00"'),
    "escaped key": members(r'"max\u005fbatch_size":4'),
    "escaped line": told('"a\\\nb"'),
    "any character": told('"a\nb\x01c\x7f"'),
    "quotes in quotes": told("""'it\\'s "q"'"""),
    "priority": policies("'1'"),
    "priority by two texts": policies('"1":{},"01"'),
    **{f"rows {text}": of_rows(text) for text in ('"4"', '"+4"', '"04"', '"-0"', "-0", "-0.0")},
    **{f"rows {text}": of_rows(text) for text in ("4.0", "4.", "4.e0", "4e+0", "40E-1", "0e5")},
    "rows 04.0": of_rows("04.0"),
    **{f"dims {text}": sized(text) for text in ("[1e2]", '["-1"]', "[9223372036854775807]")},
    **{
        f"type {text}": typed(text) for text in ("11", '"11"', "11.0", "'type_fp32'", "'Type-fp32'")
    },
    **{f"type {text}": typed(text) for text in ("11", '"11"', "11.0")},
    **{f"type {text}": typed(text) for text in ("'type_fp32'", "'Type-fp32'")},
    **{f"truth {text}": decoupled(text) for text in ("'t'", "'Yes'", "'1'", "'NO'", "'0'", "null")},
    **{
        f"fractions {text}": controlled(text)
        for text in (
            *("[1,0.1]", '["+1",".5"]', '["1.",0.5e0]', "['Infinity','-Infinity']", "['NaN',0]"),
            *("[16777217,1e-50]", "[65535,1e7]", "[0.1234567,1e9]"),
        )
    },
    "delay": batching('"max_queue_delay_microseconds":1.8e19'),
    "exact delay": batching('"max_queue_delay_microseconds":9007199254740993'),
    "number of no action": batching('"default_queue_policy":{"timeout_action":9}'),
    "number of no format": members().replace('"data_type"', '"format":9,"data_type"', 1),
}
REFUSED = {
    "open": members()[:-1],
    "open string": '{"backend":"pyth',
    "more behind": members() + "x",
    "array": f"[{members()}]",
    "no colon": members('"max_batch_size" 4'),
    "no comma": members('"max_batch_size":4 "version_policy":{}'),
    "no value": members('"max_batch_size":'),
    "two commas": members('"max_batch_size":4', "", '"version_policy":{}'),
    "comma first": "{," + members()[1:],
    "comment": members("/* x */ max_batch_size:4"),
    "keyword as key": members("null:1"),
    "dotted key": members("a.b:1"),
    "number as key": policies("1"),
    "short escape": told(r'"\u00g"'),
    "half a pair": told(r'"\ud83d"'),
    "wrong half": told(r'"\ud83dA"'),
    "second half alone": told(r'"\udc00"'),
    "chosen twice": members('"dynamic_batching":{}', '"dynamic_batching":{}'),
    "two chosen": members('"max_batch_size":4', '"dynamic_batching":{}', '"sequence_batching":{}'),
    "map key twice": members('"parameters":{"a":{},"a":{}}'),
    "map as array": members('"cc_model_filenames":[]'),
    "map as text": members('"cc_model_filenames":"a"'),
    "array as text": members('"cc_model_filenames":{"a":["b"]}'),
    "object as text": told("{}"),
    "number as text": told("5"),
    "array as object": members('"dynamic_batching":[]'),
    "text as object": members('"instance_group":["x"]'),
    "unknown": members('"nope":null'),
    "key in capitals": members('"MaxBatchSize":4'),
    **{f"rows {text}": of_rows(text) for text in ("4.5", "true", "[4]", '""', '"4.0"', '" 4"')},
    **{f"rows {text}": of_rows(text) for text in ("010", "-01", "0x4", "+4", ".5", "4-", "1e400")},
    **{f"rows {text}": of_rows(text) for text in ("2147483648", "4.0.0", "nul", "nullx", "NaN")},
    **{f"dims {text}": sized(text) for text in ("[1.5]", "[true]", "[{}]", "[,]", "[1 2]")},
    "dims too large": sized("[9223372036854775808]"),
    **{
        f"type {text}": typed(text)
        for text in ("TYPE_FP32", "'99'", "'typeFp32'", "true", "'11.0'")
    },
    **{f"truth {text}": decoupled(text) for text in ("'on'", "1", "True", "' true'", "''")},
    **{f"fractions {text}": controlled(text) for text in ("['inf',1]", "[1e39,1]", "['1e39',1]")},
    **{f"fractions {text}": controlled(text) for text in ("[' 1',0]", "['nan',1]", "[true,0]")},
    "priority of text": policies('"1.0"'),
}
#: Those whose values are looked at in the configuration that is then served.
SHOWN = (
    *("bare keys", "camel case", "arrays in arrays", "null", "twice", "array twice"),
    *("message twice", "map twice", "escapes", "any character", "quotes in quotes"),
    *("priority by two texts", "rows 40E-1", "dims [1e2]", "type 'Type-fp32'", "truth 'Yes'"),
    *("fractions [1,0.1]", "fractions [0.1234567,1e9]", "exact delay", "number of no action"),
)
