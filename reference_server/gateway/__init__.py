"""The operations of the protocol, independent of HTTP and gRPC, which the frontends translate."""
