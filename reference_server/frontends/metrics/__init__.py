"""The metrics port: Prometheus' text over HTTP."""
