"""The C types of `json_string_arrays.py`."""

cimport cython

cdef int _DEEPEST
cdef unsigned char _OPEN, _CLOSE, _COMMA, _QUOTE, _BACKSLASH, _U, _ZERO
cdef unsigned char _SPACE, _TAB, _LINE, _RETURN
cdef const unsigned char[::1] _DIGITS, _LETTERS

@cython.locals(depth=int, byte=cython.uchar)
cpdef Py_ssize_t find_array_end(
    const unsigned char* json, Py_ssize_t size, Py_ssize_t position
) except -1

@cython.locals(position=Py_ssize_t, depth=int, byte=cython.uchar, start=Py_ssize_t)
cpdef list read_strings(const unsigned char* text, Py_ssize_t size, Py_ssize_t count)

@cython.locals(room=Py_ssize_t, end=Py_ssize_t)
cpdef write_strings(const unsigned char[::1] wire, Py_ssize_t count)

@cython.locals(position=Py_ssize_t, end=Py_ssize_t, length=Py_ssize_t, byte=cython.uchar)
cdef Py_ssize_t _write(
    const unsigned char[::1] wire, Py_ssize_t size, Py_ssize_t count, unsigned char* out,
    Py_ssize_t room
) except -1
