"""How fast a model runs, and whether that figure is true: the protocol, its checks, its statistics."""
