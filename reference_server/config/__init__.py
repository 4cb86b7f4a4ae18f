"""config.pbtxt to a frozen ModelConfig: read, completed with defaults, checked, rendered."""
