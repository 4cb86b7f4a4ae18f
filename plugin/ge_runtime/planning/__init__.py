"""Which gears to prepare for: planned from how often which sizes occur.

Pure arithmetic on `Histogram`s, save reading and writing files and `plot`.
"""
