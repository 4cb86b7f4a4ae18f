"""The v2 protocol on the wire: HTTP/1, HTTP/2, gRPC, bodies, tensors and connections."""
