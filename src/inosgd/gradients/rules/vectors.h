// Vectors of numbers, as wide as the processor has them, and the one way in which products are added up.

#pragma once

#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif

#define INLINE static inline __attribute__((always_inline))

template <typename T, int Bytes = BYTES> struct Vector { typedef T type __attribute__((vector_size(Bytes))); };
template <typename T, int Bytes = BYTES> using V = typename Vector<T, Bytes>::type;
template <typename T> constexpr long LANES = BYTES / sizeof(T);

template <typename T> INLINE V<T> load(const T *from) {
    V<T> value;
    std::memcpy(&value, from, BYTES);
    return value;
}

template <typename T> INLINE V<T> all(T value) { return value - V<T>{}; }

// x y + z in every lane: with one rounding where the processor has it, with two otherwise. A compiler that is free to
// choose takes one in some loops and two in others, and then a number depends on where in a row it stands.
INLINE V<float> multiply_add(V<float> x, V<float> y, V<float> z) {
#if defined(__AVX512F__)
    return (V<float>)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__FMA__)
    return (V<float>)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
    return x * y + z;
#endif
}

INLINE V<double> multiply_add(V<double> x, V<double> y, V<double> z) {
#if defined(__AVX512F__)
    return (V<double>)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z);
#elif defined(__FMA__)
    return (V<double>)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z);
#else
    return x * y + z;
#endif
}
