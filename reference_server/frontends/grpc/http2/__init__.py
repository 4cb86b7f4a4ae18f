"""The server side of HTTP/2 (RFC 9113): converts bytes to events, and commands to bytes.

It uses no sockets, event loop, clock or gRPC: the caller drives `connection.Http2Connection`.
"""
