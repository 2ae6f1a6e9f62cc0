"""Regressions: the rule, what it has opened, who handles it, and who is told."""
