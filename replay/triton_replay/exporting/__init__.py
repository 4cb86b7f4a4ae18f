"""Export of captures to the formats of other tools."""
