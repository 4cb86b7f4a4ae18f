"""The comparison: which answers of two captures differ, where, why, and which are quicker."""
