"""The v2 protocol as seen from outside: which requests are inferences, where tensors lie."""
