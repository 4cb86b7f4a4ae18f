"""Pictures for the image unit DVPP: their descriptions, and operations on pixels."""
