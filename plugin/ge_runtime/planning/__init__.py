"""Gears chosen from histograms of sizes, and reports on what they save.

Pure arithmetic on `Histogram`s, save reading and writing files and the plots of `gear_report`.
"""
