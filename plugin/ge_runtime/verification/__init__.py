"""What a load verifies by executing: that answers depend neither on padding nor on company.

`probes` are seeded requests of chosen sizes, `distance` tells how far answers are apart and how far
arithmetic alone moves them, and `load_check` executes, compares and refuses.
"""
