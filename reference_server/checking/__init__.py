"""`reference-server check`: find errors in a model repository without loading a model."""
