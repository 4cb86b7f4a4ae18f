"""Where the runtime meets a server's own objects."""
