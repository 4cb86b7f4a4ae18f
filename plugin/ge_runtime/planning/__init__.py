"""Choose gears from histograms of sizes, and report their padding.

Everything is pure arithmetic, except for file access and the plots of `gear_report`.
"""
