"""Whether a server speaks the Open Inference Protocol, and which of Triton's extensions."""
