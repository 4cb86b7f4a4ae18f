"""Schedulers: pure queues and batchers that decide, and the threads that execute the decisions."""
