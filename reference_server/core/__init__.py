"""The domain: values, error codes and the protocols that low rooms ask of high ones.

Imports nothing but the standard library and NumPy. No clock is read here, nothing blocks.
"""
