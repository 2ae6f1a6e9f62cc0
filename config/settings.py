"""Every setting of the web side, read from the environment with its type and default.

docs/operations.md lists the variables. Defaults are for one machine: loopback only, no debug output,
SQLite and the embedded Redis server under MONOLANE_HOME.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from csp.constants import NONCE, NONE, SELF
from whitenoise.compress import Compressor

from config.broker import celery_broker
from config.database import database
from config.duration import days
from config.logs import configure_structlog, logging_config
from config.rates import limit, networks, rate, sockets, whole
from config.secret import kept_secret
from config.webhook import token, webhook
from engine.serving.connection import REPLY_S
from engine.settings import home, redis_url

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent
HOME = home()

# Who may talk to it ---------------------------------------------------------------------------------
DEBUG: bool = env.bool("DEBUG", default=False)
SECRET_KEY: str = env.str("SECRET_KEY", default="") or kept_secret(HOME / "secret_key")
SECRET_KEY_FALLBACKS: list[str] = env.list("SECRET_KEY_FALLBACKS", default=[])
ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=[]) or ["localhost", "127.0.0.1", "[::1]"]
HTTPS: bool = env.bool("HTTPS", default=False)
"""Whether a proxy in front speaks TLS and sets X-Forwarded-Proto."""
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

MONITORS = networks("MONITORS", env.list("MONITORS", default=[]) or ["127.0.0.0/8", "::1"])
"""Who may read /metrics and the details of /readyz, beside the staff."""
TRUSTED_PROXIES = networks("TRUSTED_PROXIES", env.list("TRUSTED_PROXIES", default=[]))
"""Whose X-Forwarded-For is believed; nobody's unless said."""
PLAYGROUND_PUBLIC: bool = env.bool("PLAYGROUND_PUBLIC", default=True)
"""Whether strangers may use the page, the race and the shared pages; else only the accounts of the admin."""
API_KEY_REQUIRED: bool = (
    env.bool("API_KEY_REQUIRED")
    if env.str("API_KEY_REQUIRED", default="")
    else HTTPS or not PLAYGROUND_PUBLIC
)
"""Whether /v1 refuses whoever has no key."""
LIMIT_SESSION = rate("LIMIT_SESSION", env.str("LIMIT_SESSION", default="") or "240/300000")
LIMIT_ADDRESS = rate("LIMIT_ADDRESS", env.str("LIMIT_ADDRESS", default="") or "480/600000")
LIMIT_KEY = rate("LIMIT_KEY", env.str("LIMIT_KEY", default="") or "600/600000")
"""Requests and generated tokens a minute; None for no limit."""
LIMIT_SOCKETS = sockets("LIMIT_SOCKETS", env.str("LIMIT_SOCKETS", default="") or "100/2000")
"""Websockets that one address, and that all of them, may have open in one web process."""
QUEUE_LIMIT = whole("QUEUE_LIMIT", env.str("QUEUE_LIMIT", default="") or "64", 1, 100_000)
"""How many generations may wait or be in hand for each worker that lives."""
SHARE_PREFIX_CACHE: bool = env.bool("SHARE_PREFIX_CACHE", default=False)
"""Whether prompts may go on from other people's: how fast one is read then tells what others sent."""

DASHBOARD_PUBLIC: bool = env.bool("DASHBOARD_PUBLIC", default=True)
"""Whether the dashboard and its API may be read without an account."""
DASHBOARD_PUSH_TOKEN = token("DASHBOARD_PUSH_TOKEN", env.str("DASHBOARD_PUSH_TOKEN", default=""))
"""Whoever sends it may store measurements over HTTP; empty: nobody may."""
LOGIN_URL = "dashboard:sign_in"
LOGIN_REDIRECT_URL = "dashboard:overview"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]

AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=5)
AXES_LOCKOUT_PARAMETERS = ["ip_address"]
AXES_CLIENT_IP_CALLABLE = "dashboard.accounts.sign_in.address_of"
AXES_LOCKOUT_CALLABLE = "dashboard.accounts.sign_in.too_many_guesses"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # the page says when to try again, and means it
AXES_DISABLE_ACCESS_LOG = True  # who signed in when is not kept
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
if HTTPS:  # no subdomain can set these, nor anybody over plain HTTP
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_SSL_REDIRECT = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^(health|readyz|metrics)$"]  # probes come from inside, without TLS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY: dict[str, Any] = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "frame-src": [SELF],  # the sandbox, the only page of ours that may be framed
        "manifest-src": [SELF],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "object-src": [NONE],
    }
}

# What it consists of --------------------------------------------------------------------------------
INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "ninja",
    "axes",
    "django_celery_beat",
    "dashboard",
    "playground",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.static_files.AsyncWhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "config.headers.protective_headers",
    "dashboard.api.cors.ReadableFromAnywhere",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.accounts.access.DashboardAccess",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["config.hashing.PatientHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Where it keeps things ------------------------------------------------------------------------------
DATABASES: dict[str, dict[str, Any]] = {
    "default": database(env.str("DATABASE_URL", default="") or f"sqlite:///{HOME / 'db.sqlite3'}")
}

STATIC_URL = "static/"
STATIC_ROOT = Path(env.str("STATIC_ROOT", default="") or HOME / "static")
# The front end's build may not exist yet when a management command runs.
STATICFILES_DIRS = [
    folder for folder in (BASE_DIR / "static/dist", BASE_DIR / "static/img") if folder.is_dir()
]
WHITENOISE_ALLOW_ALL_ORIGINS = False
# Compressing source maps is half of the work, and nobody but developers' tools fetches one.
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = (*Compressor.SKIP_COMPRESS_EXTENSIONS, "map")
STORAGES: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# Redis, and what runs over it -----------------------------------------------------------------------
REDIS_URL = redis_url()
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        # Hints only, never tokens: this layer may lose a message.
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        # redis-py gives up a read after 5 s unless told otherwise; a subscription is silent for longer.
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}], "prefix": "ml:layer"},
    }
}
CELERY_BROKER_URL = celery_broker(REDIS_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # Longer than any sweep may take, else Redis hands a running one to a second worker.
    "visibility_timeout": 6 * 3600,
    "global_keyprefix": "ml:celery:",
    # Else a Redis that hangs holds up for ever whoever presses "Run now".
    "socket_timeout": REPLY_S,
    "socket_connect_timeout": REPLY_S,
}
CELERY_TASK_IGNORE_RESULT = True  # the sweep's row is the truth
CELERY_TASK_TRACK_STARTED = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = False  # a task that kills its worker must not come back for ever
CELERY_TASK_ACKS_ON_FAILURE = True
CELERY_TASK_ACKS_ON_TIMEOUT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 5.0
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
READY_FILE: str = env.str("READY_FILE", default="")
"""A file that the Celery worker touches once it is up, and beat at every tick: its age shows a hang."""
CELERY_BEAT_SCHEDULER = "config.beat:WatchedScheduler"
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    # Expires before the next one comes: while no Celery worker runs they must not pile up.
    "playground: forget old generations": {
        "task": "playground.forget",
        "schedule": 3600.0,
        "options": {"expire_seconds": 3000},
    }
}
LIMIT_BYTES = limit("LIMIT_BYTES", env.str("LIMIT_BYTES", default="") or "4000000")
"""Bytes of prompts that one address may have kept a minute; None for no limit."""
LIMIT_NEW_SESSIONS = limit("LIMIT_NEW_SESSIONS", env.str("LIMIT_NEW_SESSIONS", default="") or "120")
"""Sessions that one address is given a minute: a browser needs one. None for no limit."""
KEPT_BYTES = 10**6 * whole("KEPT_MB", env.str("KEPT_MB", default="") or "4096", 1, 10**6)
"""Generations take so much of the database at most: beyond it the oldest go before their time."""
DISK_FLOOR = 10**6 * whole("DISK_FLOOR_MB", env.str("DISK_FLOOR_MB", default="") or "300", 0, 10**6)
"""With less than this free on a disk that is written to, nothing is started and /readyz is 503."""
LEFT_RUN_S = whole("LEFT_RUN_S", env.str("LEFT_RUN_S", default="") or "15", 1, 3600)
"""How long a generation goes on after its page was closed: whoever is back by then takes it up."""
GENERATION_DAYS = days("GENERATION_DAYS", env.str("GENERATION_DAYS", default="") or "30")
"""How long prompts and their answers stay in the database."""
SHARE_DAYS = days("SHARE_DAYS", env.str("SHARE_DAYS", default="") or "365")
"""How long a page that its owner shared stays up, with what it shows, unless it is revoked before."""

# Whom it tells of a regression ----------------------------------------------------------------------
SITE_URL: str = env.str("SITE_URL", default="").rstrip("/")
"""How the outside reaches this site ("https://bench.example.org"), for links in messages."""
REPO_URL: str = env.str("REPO_URL", default="").rstrip("/")
"""Where commits can be read, such as https://github.com/OWNER/NAME: a regression links its range."""
REGRESSION_EMAILS: list[str] = env.list("REGRESSION_EMAILS", default=[])
REGRESSION_WEBHOOK = webhook(
    "REGRESSION_WEBHOOK",
    env.str("REGRESSION_WEBHOOK_URL", default=""),
    env.str("REGRESSION_WEBHOOK_SECRET", default=""),
)
vars().update(env.email_url("EMAIL_URL", default="consolemail://"))
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL: str = env.str("EMAIL_FROM", default="") or "monolane@localhost"

# What it says ---------------------------------------------------------------------------------------
LOGGING = logging_config(env.str("LOG_LEVEL", default="INFO"), as_json=env.bool("LOG_JSON", default=False))
configure_structlog()
