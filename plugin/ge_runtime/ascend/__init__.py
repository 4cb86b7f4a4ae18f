"""Ascend cards through CANN's Python interface, pyACL: the one room that knows it.

`driver` is what is used of it, as a port; `pyacl` fulfils it with the module `acl`, which is CANN's
or whatever the environment puts in its place. Every call goes through `checker`, which knows what
return codes mean from `codes`. A `card` is one device as this process uses it, a `lane` of it one
order of executions with the workspace that they share, `om_model` what a compiled model takes.
"""
