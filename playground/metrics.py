"""What `/metrics` counts in this process. Prometheus adds processes up."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from engine.serving.messages import Done, Failed, Heartbeat

Source = Literal["playground", "api"]
CONTENT_TYPE = CONTENT_TYPE_LATEST

REGISTRY = CollectorRegistry()
SOCKETS = Gauge("monolane_playground_sockets", "Open playground websockets", registry=REGISTRY)
WORKERS = Gauge("monolane_workers", "Live engine workers by state", ["state"], registry=REGISTRY)
WORKER_SPEED = Gauge(
    "monolane_worker_tokens_per_second",
    "Decode speed of a live worker's last generation",
    ["worker", "model", "backend"],
    registry=REGISTRY,
)
WORKER_ROWS = Gauge(
    "monolane_worker_rows", "Requests that a live worker takes at once", ["worker"], registry=REGISTRY
)
WORKER_REQUESTS = Gauge(
    "monolane_worker_requests", "Requests in a live worker's hands", ["worker"], registry=REGISTRY
)
WORKER_TOTAL_SPEED = Gauge(
    "monolane_worker_total_tokens_per_second",
    "Speed of all requests in a live worker's hands together, over the last second",
    ["worker", "model", "backend"],
    registry=REGISTRY,
)
WORKER_MODELS = Gauge(
    "monolane_worker_model",
    "Models that a live worker serves: 1 in the state that each is in",
    ["worker", "model", "state"],
    registry=REGISTRY,
)
WAITING = Gauge("monolane_inbox_requests", "Requests in an inbox", ["inbox"], registry=REGISTRY)
GENERATIONS = Counter(
    "monolane_generations_total", "Generations by how they ended", ["source", "outcome"], registry=REGISTRY
)
TOKENS = Counter("monolane_tokens_total", "Tokens by kind", ["source", "kind"], registry=REGISTRY)
FIRST_TOKEN = Histogram(
    "monolane_first_token_seconds",
    "From a request's arrival to its first token, the queue included",
    ["source"],
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
QUEUE = Histogram(
    "monolane_queue_seconds",
    "From a request's arrival to a worker taking it",
    ["source"],
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
)
DECODE = Histogram(
    "monolane_decode_tokens_per_second",
    "Decode speed of one generation, by the worker's clock",
    ["source"],
    registry=REGISTRY,
    buckets=(10, 25, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 6000, 8000),
)
SLOW_CLIENTS = Counter(
    "monolane_slow_clients_total", "Sockets closed for not acknowledging", registry=REGISTRY
)


def count_end(source: Source, end: Done | Failed) -> None:
    """A generation ended and was recorded."""
    if isinstance(end, Failed):
        GENERATIONS.labels(source, end.code).inc()
        return
    GENERATIONS.labels(source, end.finish_reason).inc()
    timings = end.timings
    TOKENS.labels(source, "prompt").inc(timings.prompt_tokens)
    TOKENS.labels(source, "completion").inc(timings.completion_tokens)
    if timings.completion_tokens:
        QUEUE.labels(source).observe(timings.queue_ms / 1000)
        FIRST_TOKEN.labels(source).observe(timings.ttft_ms / 1000)
    if timings.decode_tok_s:
        DECODE.labels(source).observe(timings.decode_tok_s)


def exposition(workers: list[Heartbeat], depth: dict[str, int]) -> bytes:
    """The text that Prometheus scrapes; `workers` and `depth` are as seen now."""
    for gauge in (WORKERS, WORKER_SPEED, WORKER_ROWS, WORKER_REQUESTS, WORKER_TOTAL_SPEED, WORKER_MODELS):
        gauge.clear()
    for worker in workers:
        WORKERS.labels(worker.state).inc()
        WORKER_ROWS.labels(worker.name).set(worker.rows)
        WORKER_REQUESTS.labels(worker.name).set(worker.in_hand)
        WORKER_TOTAL_SPEED.labels(worker.name, worker.model, worker.backend).set(worker.tok_s)
        for one in worker.served:
            WORKER_MODELS.labels(worker.name, one.name, one.state).set(1)
        if worker.last_tok_s:
            WORKER_SPEED.labels(worker.name, worker.model, worker.backend).set(worker.last_tok_s)
    for inbox, requests in depth.items():
        WAITING.labels(inbox).set(requests)
    return generate_latest(REGISTRY)
