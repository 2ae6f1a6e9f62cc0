"""How long GPUs take to add up a vector between them, beside NCCL: `python -m tools.bench_exchange`."""
