"""Every operation of the protocol, once: fronts translate, the gateway acts."""
