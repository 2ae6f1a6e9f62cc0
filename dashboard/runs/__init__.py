"""The page of one run: what was measured, where its time went, and in what surroundings."""
