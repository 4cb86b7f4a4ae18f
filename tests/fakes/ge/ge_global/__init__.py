"""See `ge`: its beginning and end."""

from ge import Misuse


class _Life:
    """The state of GE: whether it is initialized, and the number of sessions."""

    initialized = False
    sessions = 0


_ALLOCATORS = {}
"""Stream: its allocator, for the whole process."""


class GeApi:
    """The process's GE."""

    @classmethod
    def ge_initialize(cls, config):
        if not isinstance(config, dict):
            raise TypeError("Ge init config must be a dictionary")
        if not config:
            raise TypeError("Ge init config must not be empty")
        check_strings(config)
        if _Life.initialized:
            raise Misuse("ge_initialize: found a second, expected one in a process")
        _Life.initialized = True
        return 0

    @classmethod
    def ge_finalize(cls):
        if _Life.sessions:
            raise Misuse(f"ge_finalize: found {_Life.sessions} session(s), expected none any more")
        if _ALLOCATORS:
            raise Misuse("ge_finalize: found an allocator registered, expected none any more")
        _Life.initialized = False
        return 0


def check_strings(options):
    """GE-PY encodes keys and values: anything else but texts fails there."""
    for each in (*options, *options.values()):
        if not isinstance(each, str):
            raise AttributeError(f"'{type(each).__name__}' object has no attribute 'encode'")
