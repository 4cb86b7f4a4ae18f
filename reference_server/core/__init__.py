"""The domain: values, errors, and the protocols through which lower packages call higher ones.

This package imports only the standard library and NumPy.
"""
