"""Ascend cards through CANN's Python interface, pyACL.

`driver` is the port: what is used of pyACL, which tells a model's `description`; `pyacl` implements
it by the module `acl`, CANN's or whatever the environment puts in its place. `device` is one device
as this process has it open, `card` the same with what is loaded on it, for .om files in
`stream_executor` and `executor_models`. GE-PY, for AIR graphs, is in `ge_py` and
`ge_session_executor`.
"""
