"""Mutants: small wrong changes to the packages, to measure which changes the tests detect."""
