"""Log lines in Triton's format, on the standard library's logging.

Loggers live under `reference_server`; what models log through `pb_utils.Logger` comes in under
`reference_server.models`. Nothing is configured before `configure` is called.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from reference_server.options import LogOptions

ROOT = "reference_server"
_MODELS = f"{ROOT}.models"
VERBOSE = logging.DEBUG
_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}


class TritonFormatter(logging.Formatter):
    """`I1120 16:04:19.598552 23690 server.py:5] "text"`, time in UTC, text quoted as JSON.

    With `iso8601`: `2026-11-20T16:04:20Z I 23690 server.py:5] "text"`. Lines of models tell whose
    they are: `bert/1/model.py:5`, for all have files of that name. A record with the attribute
    `verbatim` is printed without quotes: tables stay readable.
    """

    def __init__(self, *, iso8601: bool) -> None:
        super().__init__()
        self._iso8601 = iso8601

    def format(self, record: logging.LogRecord) -> str:
        """One line, or a verbatim block after its head."""
        letter = _LETTERS.get(record.levelno, "E")
        moment = time.gmtime(record.created)
        if self._iso8601:
            head = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        else:
            micros = int(record.created % 1 * 1_000_000)
            head = f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{micros:06d}"
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if getattr(record, "verbatim", False):
            text = f"\n{text}"
        else:
            text = f" {json.dumps(text, ensure_ascii=False)}"
        file = record.filename
        if record.name == _MODELS:
            file = "/".join(Path(record.pathname).parts[-3:])
        return f"{head} {record.process} {file}:{record.lineno}]{text}"


def configure(options: LogOptions) -> None:
    """Send the server's records to stderr, or to the file that `options` names.

    Called once, at start. Only loggers under `reference_server` are touched.
    """
    handler: logging.Handler
    if options.file:
        handler = logging.FileHandler(Path(options.file), encoding="utf-8")
    else:
        handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    apply(options)


def apply(options: LogOptions) -> None:
    """Change what is shown, and in which format, from now on; where it goes stays. Any thread."""
    shown = {
        logging.DEBUG: options.verbose_level >= 1,
        logging.INFO: options.info,
        logging.WARNING: options.warning,
        logging.ERROR: options.error,
    }
    logger = logging.getLogger(ROOT)
    for handler in logger.handlers:
        handler.setFormatter(TritonFormatter(iso8601=options.iso8601))
        handler.filters = [lambda record: shown.get(record.levelno, True)]
    logger.setLevel(VERBOSE if options.verbose_level >= 1 else logging.INFO)
