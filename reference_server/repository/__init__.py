"""From folders to models that serve: scan, choose versions, load, find."""
