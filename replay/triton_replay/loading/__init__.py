"""Load on a server: requests made before, sent in closed and open loops, and what was measured."""
