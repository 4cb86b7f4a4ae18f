"""Generation of random requests: sizes from a histogram, arrival times, inputs."""
