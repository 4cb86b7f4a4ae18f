"""Replay: sends the requests of a capture again, in order and at their recorded times."""
