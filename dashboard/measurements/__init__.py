"""Measurements: from documents to rows, to queries, to exports."""
