"""Model configurations: read from config.pbtxt, completed, checked, frozen and rendered."""
