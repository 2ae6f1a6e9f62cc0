"""Other engines beside ours on one GPU: the same shape and context, in turn, in one run."""
