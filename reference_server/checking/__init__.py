"""`reference-server check`: what is wrong with a model repository, without loading a model."""
