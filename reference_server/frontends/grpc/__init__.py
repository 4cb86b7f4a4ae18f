"""The gRPC frontend: methods that know no transport, and the transport that carries them."""
