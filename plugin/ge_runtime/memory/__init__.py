"""Memory as numbers (`lifetimes`, `plan`), then as bytes (`arena`, `slots`). Planned at load."""
