"""The C types of `json_fast_reader.py`."""

cimport cython

cdef unsigned char _OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT, _COMMA, _COLON, _QUOTE, _BACKSLASH
cdef unsigned char _SPACE, _TAB, _LINE, _RETURN
cdef unsigned char _ZERO, _NINE, _MINUS, _PLUS, _POINT, _E, _SMALL_E
cdef unsigned char _N, _I, _SMALL_N, _T, _F
cdef Py_ssize_t _PIECE, _FEW_BYTES, _MOST_DIGITS, _MOST_EXACT
cdef const double[::1] _TENS

cdef class _Reader:
    cdef bytes text
    cdef Py_ssize_t size, position, pause, single, single_strings, single_rows
    cdef int deepest
    cdef dict repeated

    cpdef read(self)
    cdef int yield_gil(self) except -1
    @cython.locals(text=bytes, position=Py_ssize_t, byte=cython.uchar)
    cdef int next_byte(self) except -1
    @cython.locals(byte=cython.uchar)
    cdef read_value(self, int depth)
    cdef read_word(self, bytes word, value)
    @cython.locals(members=dict, byte=int, name=str)
    cdef dict read_object(self, int depth)
    @cython.locals(elements=list, byte=int)
    cdef list read_array(self, int depth)
    @cython.locals(start=Py_ssize_t, last=Py_ssize_t, end=Py_ssize_t, piece=bytes)
    cdef list read_scalars(self, list elements, int depth)
    @cython.locals(start=Py_ssize_t, last=Py_ssize_t, end=Py_ssize_t, escape=Py_ssize_t, found=list)
    cdef list read_strings(self, list elements)
    @cython.locals(start=Py_ssize_t, last=Py_ssize_t, end=Py_ssize_t, piece=bytes, found=list)
    cdef list read_rows(self, list elements, int depth)
    @cython.locals(
        text=bytes, start=Py_ssize_t, position=Py_ssize_t, first=Py_ssize_t, whole=Py_ssize_t,
        digits=cython.longlong, byte=cython.uchar, number=double,
    )
    cdef read_number(self)
    @cython.locals(
        text=bytes, start=Py_ssize_t, position=Py_ssize_t, has_escapes=bint, byte=cython.uchar,
    )
    cdef str read_string(self)
