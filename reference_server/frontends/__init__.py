"""Connections, limits and status mapping: one room per protocol, none knows another."""
