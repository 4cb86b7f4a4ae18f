"""Access to Ascend cards through pyACL, CANN's Python interface.

- `driver` is the port: the functions of pyACL that are used; `description` describes a model.
- `pyacl`, `pyacl_models` and `pyacl_images` implement the port with the module `acl`, which is
  CANN's or a simulator's.
- `device` is an open device; `card` adds the models loaded on it, which `executor_models` manages
  and `stream_executor` executes.
- `free_model` executes models with free shapes; `ge_py` and `ge_session_executor` execute AIR
  graphs.
- `atc` is the compiler.
"""
