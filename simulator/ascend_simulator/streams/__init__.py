"""Streams, events and contexts: asynchronous work."""
