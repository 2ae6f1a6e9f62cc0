# Two images from one tree: `web` (daphne, Celery, beat, management commands) and `worker` (the engine, with
# what a GPU needs). docker-compose.yml builds both.
ARG PYTHON=3.11-slim-bookworm

FROM node:20-bookworm-slim AS front-end
WORKDIR /src
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY static ./static
RUN npm run build

FROM python:${PYTHON} AS packages
COPY requirements ./requirements
RUN pip install --no-cache-dir --require-hashes --prefix /packages -r requirements/base.txt

FROM python:${PYTHON} AS gpu-packages
COPY requirements ./requirements
RUN pip install --no-cache-dir --require-hashes --prefix /packages -r requirements/gpu.txt

FROM python:${PYTHON} AS cpu-kernel
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=packages /packages /usr/local
WORKDIR /app
# manage.py makes it a checkout: elsewhere the kernels would be built under MONOLANE_HOME.
COPY manage.py ./
COPY engine ./engine
COPY kernels ./kernels
RUN python -m engine.backends.cpu.build all

FROM python:${PYTHON} AS base
ARG GIT_SHA=
LABEL org.opencontainers.image.revision=${GIT_SHA}
# Measurements carry the commit that made them; the tree that is copied holds no repository.
ENV PYTHONUNBUFFERED=1 MONOLANE_GIT_SHA=${GIT_SHA} \
    MONOLANE_HOME=/var/lib/monolane STATIC_ROOT=/app/collected LOG_JSON=1
RUN useradd --system --uid 10001 --home-dir /var/lib/monolane --create-home monolane \
    && install --directory --owner monolane /var/lib/monolane/models /var/lib/monolane/kernels
COPY --from=packages /packages /usr/local
WORKDIR /app
COPY manage.py ./
COPY engine ./engine
COPY kernels ./kernels
COPY --from=cpu-kernel /app/kernels/build ./kernels/build

FROM base AS web
COPY config ./config
COPY dashboard ./dashboard
COPY playground ./playground
COPY templates ./templates
COPY static ./static
COPY benchmarks ./benchmarks
COPY --from=front-end /src/static/dist ./static/dist
# The key only lets the command start: it signs nothing, and no image holds one.
RUN SECRET_KEY=only-while-collecting python manage.py collectstatic --no-input \
    && python -m compileall -q /app
USER monolane
EXPOSE 8000
CMD ["python", "-m", "config.server", "--bind", "0.0.0.0", "--port", "8000", "--no-server-name", "config.asgi:application"]

FROM base AS worker
COPY --from=gpu-packages /packages /usr/local
RUN python -m compileall -q /app
USER monolane
CMD ["python", "-m", "engine", "worker"]
