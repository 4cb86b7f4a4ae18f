"""The server side of HTTP/2 (RFC 9113) without I/O: bytes to events, commands to bytes.

Without sockets, event loop, clock and gRPC: the caller drives `connection.Http2Connection`.
"""
