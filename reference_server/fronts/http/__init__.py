"""The HTTP/REST front: connections, routes, handlers."""
