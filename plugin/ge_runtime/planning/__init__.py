"""Chooses gears from how often which sizes occur, and reports what they save.

Pure arithmetic on `Histogram`s, save reading and writing files and `gear_plot`.
"""
