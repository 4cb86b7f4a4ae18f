"""Bytes or messages to core values and back: no socket, no clock, no event loop."""
