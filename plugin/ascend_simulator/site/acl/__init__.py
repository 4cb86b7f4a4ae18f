"""The module `acl`, as the simulator offers it. See ascend_simulator."""

from ascend_simulator.exports import functions as _functions
from ascend_simulator.exports import namespace as _namespace

globals().update(_functions(""))
mdl = _namespace("mdl")
rt = _namespace("rt")
util = _namespace("util")
