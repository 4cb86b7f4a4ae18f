"""The flag of compiled installations.

`setup.py` compiles each module that has a .pxd file beside it. Without a C compiler the same files
run interpreted.
"""

from reference_server.codecs import (
    grisu,
    json_fast_reader,
    json_number_arrays,
    json_skeleton,
    json_string_arrays,
    proto_fields,
)
from reference_server.core import string_packing

IS_COMPILED = not any(
    (module.__file__ or "").endswith(".py")
    for module in (
        *(grisu, json_fast_reader, json_number_arrays, json_skeleton, json_string_arrays),
        *(proto_fields, string_packing),
    )
)
