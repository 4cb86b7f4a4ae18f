"""The gRPC frontend: methods, independent of the transport, and the transport."""
