"""The roofline page: what memory and launches allow any model on any hardware, and what was measured."""
