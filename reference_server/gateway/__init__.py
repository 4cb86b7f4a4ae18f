"""Every operation of the protocol, once: frontends translate, the gateway acts."""
