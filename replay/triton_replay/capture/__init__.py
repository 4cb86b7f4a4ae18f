"""The capture: a file of recorded requests and responses, written in order and never changed."""
