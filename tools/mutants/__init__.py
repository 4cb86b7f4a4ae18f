"""Mutants: small wrong changes to the packages, to see which of them the tests notice."""
