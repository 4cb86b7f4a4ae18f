"""The functions that `acl` exports, by their namespaces."""
