"""Pictures as the image unit DVPP takes them: their descriptions, and what is done to pixels."""
