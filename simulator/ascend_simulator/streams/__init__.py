"""Streams, events and contexts: work that runs behind the host."""
