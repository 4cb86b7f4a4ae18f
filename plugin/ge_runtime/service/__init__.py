"""One process owns a device; models in other processes execute on it.

The owner is the device service. The first client starts it, the last one to leave ends it, and
tensors lie in memory that both sides see. `client` is the side of models, `server` the owner's;
`fair` decides whose turn it is, and knows no thread, no socket and no clock.
"""
