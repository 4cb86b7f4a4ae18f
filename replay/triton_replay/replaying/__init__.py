"""The replay: a capture's requests sent again, in their order and at their times."""
