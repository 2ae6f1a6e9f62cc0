"""The headline on a node of GPUs: correct first, then speed against their number, in one run of minutes."""
