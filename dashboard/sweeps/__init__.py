"""The pages of sweeps: what there is, what runs, what waits, and how long it takes."""
