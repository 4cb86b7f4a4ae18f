"""The functions that `acl` exports, by namespace.

Docstrings list the return codes of CANN, with their conditions, after "Refused", and the
simulator's own rules, which a device does not check, after "Checks".
"""
