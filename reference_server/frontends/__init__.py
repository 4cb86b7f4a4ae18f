"""Connections, limits and status codes: one package per protocol, independent of each other."""
