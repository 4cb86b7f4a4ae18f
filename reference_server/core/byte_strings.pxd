"""The C types of `byte_strings.py`."""

cimport cython

ctypedef const unsigned char* Text

@cython.locals(size=Py_ssize_t)
cpdef pack(list elements)

@cython.locals(length=Py_ssize_t, start=Py_ssize_t)
cpdef Py_ssize_t unpack(
    const unsigned char* wire, Py_ssize_t size, Py_ssize_t position, Py_ssize_t most, list elements
) except -1

@cython.locals(
    position=Py_ssize_t, place=Py_ssize_t, length=Py_ssize_t, element=bytes,
    text=Text,
)
cdef int _pack(list elements, unsigned char* wire) except -1
