"""Runs side by side: what changed, how sure that is, and what else differs between them."""
