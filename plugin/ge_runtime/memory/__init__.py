"""Planned memory: the plan, as numbers (`lifetimes`, `plan`), and its use (`arena`)."""
