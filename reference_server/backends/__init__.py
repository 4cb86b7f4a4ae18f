"""Run one batch on one model instance: the Python host, and what every backend shares."""
