"""Replay: the requests of a capture are sent again, in order and at their times."""
