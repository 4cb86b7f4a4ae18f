"""The types of C that `number_reader.py` gets where Cython compiles it."""

cimport cython

cdef extern from *:
    """
    typedef unsigned __int128 uint128;
    """
    ctypedef unsigned long long uint128  # to Cython only: C knows better

ctypedef unsigned long long uint64
ctypedef long long int64

cdef int _DEEPEST, _MOST_EXACT, _MOST, _MOST_DIGITS
cdef int _MOST_TWOS
cdef const double[::1] _EXACT_TENS, _TWOS
cdef const uint64[::1] _POWERS
cdef const int64[::1] _BINARY_EXPONENTS
cdef unsigned char _OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _ZERO, _E, _SMALL_E
cdef unsigned char _SPACE, _TAB, _LINE, _RETURN
cdef uint64 _TOP_BIT, _EXACT_INTEGERS

@cython.locals(
    position=Py_ssize_t, depth=int, count=Py_ssize_t, byte=cython.uchar, end=Py_ssize_t,
    number=double,
)
cdef Py_ssize_t _read(
    const unsigned char* text, Py_ssize_t size, double[::1] numbers, double largest
) except -1

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
