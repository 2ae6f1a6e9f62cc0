"""Backends: numpy (the reference, everywhere), cpu (native code), cuda (Hopper GPUs)."""
