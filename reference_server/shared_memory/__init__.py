"""Shared memory that clients lend: registered, mapped, kept within its bounds, given back."""
