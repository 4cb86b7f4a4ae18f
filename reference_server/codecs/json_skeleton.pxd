"""The C types of `json_skeleton.py`."""

cimport cython

cdef bytes _DATA, _ID
cdef unsigned char _OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT, _COMMA, _QUOTE, _BACKSLASH
cdef unsigned char _SPACE, _TILDE, _TAB, _LINE, _RETURN

cdef class Skeleton:
    cdef readonly bytes text
    cdef readonly bytes request_id
    cdef readonly list arrays

@cython.locals(
    size=Py_ssize_t, id_start=Py_ssize_t, id_end=Py_ssize_t, request_id=bytes, text=list,
    arrays=list, position=Py_ssize_t, found=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t,
)
cpdef Skeleton split_request(bytes json)

@cython.locals(found=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) _id(bytes json, Py_ssize_t size) except *

cdef Py_ssize_t _value(bytes json, Py_ssize_t size, Py_ssize_t position) except -1

@cython.locals(first=Py_ssize_t, position=Py_ssize_t, end=Py_ssize_t, byte=cython.uchar)
cdef Py_ssize_t _array_end(bytes json, Py_ssize_t size, Py_ssize_t start) except -1
