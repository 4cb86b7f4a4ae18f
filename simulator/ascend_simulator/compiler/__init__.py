"""The simulated compiler: an ONNX file and ATC's command line in, a simulated .om out."""
