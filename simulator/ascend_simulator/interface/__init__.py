"""The functions that `acl` exports, by namespace.

Docstrings name what a function checks in two ways. "Refused" lists the CANN return codes and their
conditions. "Violates" lists the simulator's own rules, which a device does not check.
"""
