"""What each model instance has for itself under the name `triton_python_backend_utils`."""
