"""Traces of runs: kept, handed out, and drawn as a waterfall."""
