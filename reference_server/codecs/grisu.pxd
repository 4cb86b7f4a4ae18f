"""The C types of `grisu.py`."""

cimport cython

cdef extern from *:
    """
    typedef unsigned __int128 uint128;
    """
    ctypedef unsigned long long uint128  # Cython has no name for it; C uses the typedef above

ctypedef unsigned long long uint64
ctypedef long long int64

cdef int _FIRST_POINT, _LAST_POINT, _MOST_DIGITS, _ROUNDED_PLACES
cdef uint64 _TOP_BIT
cdef const uint64[::1] _TENS, _POWERS
cdef const int64[::1] _BINARY_EXPONENTS
cdef const unsigned char[::1] _INFINITY, _NAN, _FIRST_DIGITS, _SECOND_DIGITS
cdef unsigned char _MINUS, _POINT, _ZERO, _COMMA, _E

@cython.locals(
    biased=int64, step=int, shift=int, exponent=int, places=int, significand=uint64, above=uint64,
    below=uint64, power=uint64, wide=uint128, half=uint128, upper=uint64, lower=uint64,
    width=uint128, distance=uint64, unit=uint64, digits=uint64, rest=uint64, shorter=uint64,
    more=uint64,
)
cdef (uint64, int) _grisu(uint64 bits) noexcept

@cython.locals(position=Py_ssize_t, place=Py_ssize_t, bits=uint64, high=uint64)
cdef bytes _write_all(
    const unsigned char* numbers, Py_ssize_t count, bint is_double, unsigned char* out
)

@cython.locals(bits=uint64, biased=int64, fraction=uint64)
cdef uint64 _widened(uint64 single) noexcept

@cython.locals(is_negative=bint, biased=int64, place=Py_ssize_t)
cdef Py_ssize_t _write(uint64 bits, unsigned char* out, Py_ssize_t position) noexcept

@cython.locals(
    biased=int64, digits=uint64, exponent=int, is_whole=bint, shift=int, size=int, point=int,
    place=Py_ssize_t,
)
cdef Py_ssize_t _write_finite(uint64 bits, unsigned char* out, Py_ssize_t position) noexcept

cdef Py_ssize_t _write_scientific(
    uint64 digits, int size, int exponent, unsigned char* out, Py_ssize_t position
) noexcept

@cython.locals(place=Py_ssize_t, shorter=uint64, pair=uint)
cdef void _write_digits(
    uint64 digits, Py_ssize_t size, unsigned char* out, Py_ssize_t position
) noexcept
