"""`reference-server try`: starts the models of any repository and sends each a sample request."""
