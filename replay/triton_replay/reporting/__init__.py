"""Reports of comparisons, conformance and loads: tables, JSON, CSV and HTML."""
