// Sums over the places of all examples, added up so that their error is known; see sums.py for the bounds.
//
//     sums[m, n] += sum_k scale[k] d(k, m) a(k, n),    d(k, m) = d.base[d.rows[k] + d.columns[m]], and so for a.
//
// In single precision scale[k] and scale[k] d(k, m) are rounded, CHAIN products at most are added up one after the other,
// and all further additions are in double. Offsets say where things lie, so that sequences of any layout and the patches that a
// convolution sees are read where they are.

#include <vector>

#include "vectors.h"

#if defined(__AVX512F__)
constexpr int ROWS = 12, VECTORS = 2;  // 24 of 32 registers add up
#else
constexpr int ROWS = 6, VECTORS = 2;  // 12 of 16
#endif

constexpr long CHAIN = 32, DEPTH = 8 * CHAIN, WIDTH = 256;

template <typename T> constexpr long COLUMNS = VECTORS * LANES<T>;

template <typename T> struct Operand {
    const T *base;
    const long *rows, *columns;
};

INLINE long smaller(long x, long y) { return x < y ? x : y; }

// totals += d^T a over `depth` places: ROWS columns of d and COLUMNS of a, both packed.
template <typename A> INLINE void tile(const A *d, const A *a, long depth, double *totals) {
    for (long start = 0; start < depth; start += CHAIN) {
        const long end = smaller(start + CHAIN, depth);
        V<A> sums[ROWS][VECTORS] = {};
        for (long k = start; k < end; k++) {
            V<A> inputs[VECTORS];
#pragma GCC unroll 2
            for (int j = 0; j < VECTORS; j++) inputs[j] = load<A>(a + k * COLUMNS<A> + j * LANES<A>);
#pragma GCC unroll 12
            for (int i = 0; i < ROWS; i++) {
                const V<A> output = all<A>(d[k * ROWS + i]);
#pragma GCC unroll 2
                for (int j = 0; j < VECTORS; j++) sums[i][j] = multiply_add(output, inputs[j], sums[i][j]);
            }
        }
        A found[ROWS * COLUMNS<A>];
        std::memcpy(found, sums, sizeof found);
        for (int n = 0; n < ROWS * COLUMNS<A>; n++) totals[n] += double(found[n]);
    }
}

// `count` columns of an operand from `first` on at `depth` places from `start` on, place by place, and zeros up to Size.
// With scales, every number times its place's.
template <typename T, typename A, int Size>
static void pack(const Operand<T> &from, const double *scale, long start, long depth, long first, long count, A *to) {
    const long *columns = from.columns + first;
    bool adjacent = count == Size;
    for (int j = 1; j < count; j++) adjacent = adjacent && columns[j] == columns[0] + j;
    if (count < Size) std::memset(to, 0, depth * Size * sizeof(A));
    for (long k = 0; k < depth; k++, to += Size) {
        const T *row = from.base + from.rows[start + k];
        const A by = scale ? A(scale[start + k]) : A(1);
        if (adjacent)
            for (int j = 0; j < Size; j++) to[j] = by * A(row[columns[0] + j]);
        else
            for (int j = 0; j < count; j++) to[j] = by * A(row[columns[j]]);
    }
}

// The rows of sums from `first` to `last`; T is the type of the numbers, A that of their products.
template <typename T, typename A>
static void outer_sum(const Operand<T> &d, const Operand<T> &a, const double *scale, long places, long width,
                      long first, long last, double *sums) {
    const long rows = (last - first + ROWS - 1) / ROWS;
    std::vector<A> outputs(rows * ROWS * DEPTH), inputs(WIDTH * DEPTH);
    for (long start = 0; start < places; start += DEPTH) {
        const long depth = smaller(DEPTH, places - start);
        for (long i = 0; i < rows; i++) {
            const long at = first + i * ROWS;
            pack<T, A, ROWS>(d, scale, start, depth, at, smaller(ROWS, last - at), outputs.data() + i * ROWS * depth);
        }
        for (long left = 0; left < width; left += WIDTH) {
            const long right = smaller(left + WIDTH, width);
            for (long j = left; j < right; j += COLUMNS<A>)
                pack<T, A, COLUMNS<A>>(a, nullptr, start, depth, j, smaller(COLUMNS<A>, right - j),
                                       inputs.data() + (j - left) * depth);
            for (long i = 0; i < rows; i++)
                for (long j = left; j < right; j += COLUMNS<A>) {
                    double totals[ROWS * COLUMNS<A>] = {};
                    tile<A>(outputs.data() + i * ROWS * depth, inputs.data() + (j - left) * depth, depth, totals);
                    const long at = first + i * ROWS, across = smaller(COLUMNS<A>, right - j);
                    for (long y = 0; y < smaller(ROWS, last - at); y++)
                        for (long x = 0; x < across; x++) sums[(at + y) * width + j + x] += totals[y * COLUMNS<A> + x];
                }
        }
    }
}

// sums[n] = sum_k scale[k] base[rows[k] + n] for n from `first` to `last`.
template <typename T, typename A>
static void row_sum(const T *base, const long *rows, const double *scale, long places, long first, long last,
                    double *sums) {
    constexpr long STRIP = 2048, TOGETHER = 4;
    for (long left = first; left < last; left += STRIP) {
        const long width = smaller(STRIP, last - left);
        double totals[STRIP] = {};
        for (long start = 0; start < places; start += CHAIN) {
            A found[STRIP] = {};
            const long end = smaller(start + CHAIN, places);
            for (long k = start; k < end; k += TOGETHER) {
                const T *row[TOGETHER];
                A by[TOGETHER];
                for (long i = 0; i < TOGETHER; i++) {  // beyond the end nothing of the last row
                    row[i] = base + rows[smaller(k + i, end - 1)] + left;
                    by[i] = k + i < end ? A(scale[k + i]) : A(0);
                }
                for (long n = 0; n < width; n++)
                    found[n] += (by[0] * A(row[0][n]) + by[1] * A(row[1][n])) +
                                (by[2] * A(row[2][n]) + by[3] * A(row[3][n]));
            }
            for (long n = 0; n < width; n++) totals[n] += double(found[n]);
        }
        std::memcpy(sums + left, totals, width * sizeof(double));
    }
}

#define FOR_TYPES(T, A)                                                                                                  \
    void outer_sum_##T##_##A(const T *d, const long *d_rows, const long *d_columns, const T *a, const long *a_rows,  \
                             const long *a_columns, const double *scale, long places, long width, long first,        \
                             long last, double *sums) {                                                              \
        outer_sum<T, A>({d, d_rows, d_columns}, {a, a_rows, a_columns}, scale, places, width, first, last, sums);    \
    }                                                                                                                \
    void row_sum_##T##_##A(const T *base, const long *rows, const double *scale, long places, long first, long last, \
                           double *sums) {                                                                           \
        row_sum<T, A>(base, rows, scale, places, first, last, sums);                                                 \
    }

extern "C" {
FOR_TYPES(float, float)
FOR_TYPES(float, double)
FOR_TYPES(double, double)
}
