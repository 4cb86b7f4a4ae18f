"""Load on a server: prepared requests, closed and open loops that send them, and measurements."""
