"""The HTTP/REST frontend: connections, routes, handlers."""
