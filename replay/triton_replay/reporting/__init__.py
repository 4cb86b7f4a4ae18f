"""A comparison for people and programs: a table, JSON, and a page."""
