"""The v2 protocol's bytes: HTTP/1, HTTP/2, gRPC, bodies, tensors and connections."""
