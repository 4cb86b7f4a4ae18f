"""The model repository: scans folders, chooses versions, and loads and finds models."""
