"""Decode and encode bodies and messages; without sockets, clocks and event loops."""
