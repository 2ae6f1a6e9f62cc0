"""The first page: for each hardware, model and backend, how fast it is now, and beside what."""
