"""The recorder: a proxy that passes bytes on at once, and writes down what they said."""
