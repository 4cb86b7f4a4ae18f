"""Shared memory of clients: registered, mapped, and accessed within its bounds."""
