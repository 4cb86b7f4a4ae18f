"""Memory as numbers (`lifetimes`, `plan`), then as bytes (`arena`). Planned at load."""
