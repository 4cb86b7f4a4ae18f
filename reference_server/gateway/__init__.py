"""The operations of the protocol, independent of HTTP and gRPC. The frontends call them."""
