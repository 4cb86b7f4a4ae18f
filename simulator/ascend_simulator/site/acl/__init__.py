"""The module `acl` of the simulator. See ascend_simulator."""

from ascend_simulator.exit_report import install as _install
from ascend_simulator.interface.exports import functions as _functions
from ascend_simulator.interface.exports import namespace as _namespace
from ascend_simulator.settings import from_environment as _from_environment

try:
    _from_environment()
except ValueError as _error:  # converted, because the message of an ImportError is one line
    raise ImportError(str(_error)) from _error

_install()
globals().update(_functions(""))
mdl = _namespace("mdl")
media = _namespace("media")
op = _namespace("op")
prof = _namespace("prof")
rt = _namespace("rt")
util = _namespace("util")
