"""The commands of `triton-replay`: each module adds its options and runs them."""
