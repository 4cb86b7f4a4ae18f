"""Memory as numbers (`plan`), then as bytes (`buffers`). Planned once at load, never grown."""
