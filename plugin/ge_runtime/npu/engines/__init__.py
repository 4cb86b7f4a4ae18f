"""Engines that execute models on Ascend cards: `.om` files, AIR graphs and TorchScript."""
