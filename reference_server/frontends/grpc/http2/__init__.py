"""The server's side of HTTP/2 (RFC 9113) without I/O: bytes to events, commands to bytes.

No socket, no loop, no clock and no gRPC: whoever has these drives `connection.Http2Connection`.
"""
