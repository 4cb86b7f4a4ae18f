"""The simulated compiler, from an ONNX file and ATC's command line to a simulated .om."""
