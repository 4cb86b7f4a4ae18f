"""The export: a capture's requests in the formats of other tools."""
