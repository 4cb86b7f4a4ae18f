"""Builders and stand-ins for the tests of ge_runtime."""
