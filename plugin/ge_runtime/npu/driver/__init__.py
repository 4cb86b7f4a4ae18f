"""Access to Ascend cards through pyACL, CANN's Python interface.

- `driver` has the handles and values of the calls; `cann_values` has CANN's return codes and the
  description of a model.
- `pyacl` and `pyacl_models` call the module `acl`, which is CANN's or a simulator's.
- `device` is an open device; `card` adds its loaded models. `executor_models` loads the models,
  and `stream_executor` executes them.
- `ge_session_executor` executes AIR graphs; `installation` gives access to GE-PY.
- `atc` is the compiler.
"""
