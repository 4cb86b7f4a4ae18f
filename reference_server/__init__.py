"""A pure-Python inference server that speaks Triton's v2 protocol.

It runs the `model.py` files and ensembles of a Triton model repository unchanged. Start it with
`python -m reference_server --model-repository DIR`.
"""

__version__ = "0.1.0"
