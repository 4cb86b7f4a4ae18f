"""The C types of `json_arrays.py`."""

cimport cython

cdef extern from *:
    """
    typedef unsigned __int128 uint128;
    """
    ctypedef unsigned long long uint128  # Cython has no name for it; C uses the typedef above

ctypedef unsigned long long uint64
ctypedef long long int64

cdef int _DEEPEST, _MOST_EXACT, _MOST, _MOST_DIGITS
cdef int _MOST_TWOS
cdef const double[::1] _EXACT_TENS, _TWOS
cdef const uint64[::1] _POWERS
cdef const int64[::1] _BINARY_EXPONENTS
cdef unsigned char _OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _E, _SMALL_E
cdef unsigned char _SPACE, _TAB, _LINE, _RETURN
cdef unsigned char _BOOLEAN, _UNSIGNED, _FLOAT
cdef const unsigned char[::1] _TRUE, _FALSE, _SINGLE_BYTES, _DOUBLE_BYTES
cdef float[::1] _SINGLE
cdef double[::1] _DOUBLE
cdef double _LARGEST_SINGLE, _LARGEST_DOUBLE
cdef uint64 _TOP_BIT, _EXACT_INTEGERS

@cython.locals(
    position=Py_ssize_t, depth=int, place=Py_ssize_t, byte=cython.uchar, end=Py_ssize_t,
    number=double, bits=uint64,
)
cdef bint _read(
    const unsigned char* text, Py_ssize_t size, Py_ssize_t count, int kind, int item,
    unsigned char* out
) except -1

cdef void _put_four(uint64 bits, unsigned char* out, Py_ssize_t place) noexcept

cdef uint64 _single_bits(double number) noexcept

cdef uint64 _double_bits(double number) noexcept

@cython.locals(bits=uint64)
cdef uint64 _four(const unsigned char[::1] number, Py_ssize_t place) noexcept

@cython.locals(word="const unsigned char[::1]", place=Py_ssize_t)
cdef (Py_ssize_t, uint64) _read_boolean(
    const unsigned char* text, Py_ssize_t size, Py_ssize_t position
) noexcept

@cython.locals(
    is_negative=bint, first=Py_ssize_t, digits=uint64, digit=int, size=Py_ssize_t, largest=uint64,
)
cdef (Py_ssize_t, uint64) _read_integer(
    const unsigned char* text, Py_ssize_t position, bint is_unsigned, int bits
) noexcept

@cython.locals(
    first=Py_ssize_t, size=Py_ssize_t, is_negative=bint, is_integer=bint, has_minus=bint,
    digits=uint64, digit=int, exponent=int, power=int, number=double,
)
cdef (Py_ssize_t, double) _read_number(
    const unsigned char* text, Py_ssize_t position
) noexcept

@cython.locals(
    binary_exponent=int64, wide=uint128, product=uint64, shift=int, half=uint64,
    significand=uint64, rest=uint64, number=double,
)
cdef double _nearest(uint64 digits, int exponent) noexcept

cdef unsigned char _QUOTE, _BACKSLASH, _U
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
