"""`reference-server page`: the live page of another server, such as NVIDIA's tritonserver."""
