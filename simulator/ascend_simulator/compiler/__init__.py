"""From an ONNX file to a simulated .om: what ATC's command line means, and what it refuses."""
