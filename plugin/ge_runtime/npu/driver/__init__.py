"""Access to Ascend cards through pyACL, CANN's Python interface.

- `driver` is the port: the functions of pyACL that are used; `cann_values` are its results.
- `pyacl` and `pyacl_models` implement the port with the module `acl`, which is CANN's or a
  simulator's.
- `device` is an open device; `card` adds the models loaded on it, which `executor_models` manages
  and `stream_executor` executes.
- `ge_session_executor` executes AIR graphs; `installation` gives access to GE-PY.
- `atc` is the compiler.
"""
