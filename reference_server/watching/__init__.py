"""`reference-server page`: the live page of another server, such as a real Triton."""
