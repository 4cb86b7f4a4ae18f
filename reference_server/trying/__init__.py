"""`reference-server try`: gives a first answer from somebody else's models."""
