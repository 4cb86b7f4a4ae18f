"""Loads that nobody recorded: sizes by a histogram, arrivals by a curve, all of it by a seed."""
