"""The environment variables through which `serve` configures gunicorn and its workers."""

from __future__ import annotations

CONTROL_SOCKET_VARIABLE = "BLINK_CONTROL_SOCKET"
EXIT_TIMEOUT_VARIABLE = "BLINK_EXIT_TIMEOUT_SECONDS"
API_KEY_FILE_VARIABLE = "BLINK_API_KEY_FILE"
HTTP_OPTIONS_VARIABLE = "BLINK_HTTP_OPTIONS"
LOG_LEVEL_VARIABLE = "BLINK_LOG_LEVEL"
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus-client when it is imported
