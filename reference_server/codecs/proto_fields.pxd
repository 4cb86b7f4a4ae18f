"""The C types of `proto_fields.py`."""

cimport cython

ctypedef unsigned long long uint64

cdef int _VARINT, _FIXED64, _LENGTH_DELIMITED, _GROUP, _GROUP_END, _FIXED32
cdef uint64 _ID, _RAW
cdef int _DEEPEST, _MOST_SHIFT, _SHORT
cdef Py_ssize_t _TRUNCATED

@cython.locals(
    size=Py_ssize_t, count=Py_ssize_t, tag=uint64, content=Py_ssize_t, end=Py_ssize_t,
)
cpdef Py_ssize_t pass_fields(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t most, list groups, list found=*,
    Py_ssize_t room=*
) except -1

@cython.locals(size=Py_ssize_t, count=Py_ssize_t, end=Py_ssize_t)
cpdef Py_ssize_t pass_groups(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t most, list groups
) except -1

@cython.locals(length=Py_ssize_t, count=Py_ssize_t, tag=uint64, end=Py_ssize_t)
cpdef tuple copy_without_raw(
    const unsigned char[::1] data, Py_ssize_t position, Py_ssize_t most, list groups,
    unsigned char[::1] head, Py_ssize_t size
)

@cython.locals(
    start=Py_ssize_t, size=Py_ssize_t, tag=uint64, content=Py_ssize_t, kind=int, length=uint64,
)
cpdef (uint64, Py_ssize_t, Py_ssize_t) read_field(
    const unsigned char[::1] data, Py_ssize_t position, list groups
) except *

@cython.locals(size=Py_ssize_t, number=uint64, shift=int, byte=uint64)
cdef (uint64, Py_ssize_t) _number(const unsigned char[::1] data, Py_ssize_t position) except *

@cython.locals(place=Py_ssize_t)
cdef Py_ssize_t _copy(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end, unsigned char[::1] to,
    Py_ssize_t size
) except -1
