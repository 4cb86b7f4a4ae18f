"""Who runs when: pure deciders (batcher, ensemble_graph) and the thin shells that act on them."""
