"""The folder of the backend "ge"; servers load its `model.py`, which nothing imports."""
