// Sums over the places of all examples, added up so that their error is known; see sums.py for the bounds.
//
//     sums[m, n] = sum_k scale[k] d(k, m) a(k, n),    d(k, m) = d.base[d.rows[k] + d.columns[m]], and so for a.
//
// In single precision scale[k] and scale[k] d(k, m) are rounded, CHAIN products at most are added up one after the other,
// GROUP such sums at most are added up, and all further additions are in double. Offsets say where things lie, so that
// sequences of any layout and the patches that a convolution sees are read where they are. What is shared among threads
// are the results: each is added up in one order, whatever their number.

#include <dlfcn.h>

#include <limits>
#include <vector>

#include "vectors.h"

#if defined(__AVX512F__)
constexpr int ROWS = 12, VECTORS = 2;  // 24 of 32 registers add up
#else
constexpr int ROWS = 6, VECTORS = 2;  // 12 of 16
#endif

constexpr long CHAIN = 32, GROUP = 4, DEPTH = 2 * GROUP * CHAIN, WIDTH = 256;

template <typename T> constexpr long COLUMNS = VECTORS * LANES<T>;

// The OpenMP runtime that torch has loaded, if it has one: its threads are there anyway, and wait by spinning, so that
// threads of any other kind would compete with them.
template <typename Function> static Function *loaded(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_DEFAULT, name));
}
static const auto in_parallel = loaded<void(void (*)(void *), void *, unsigned, unsigned)>("GOMP_parallel");
static const auto thread_number = loaded<int()>("omp_get_thread_num"), thread_count = loaded<int()>("omp_get_num_threads");

// Calls work(first, last) for parts of 0 .. count.
template <typename Work> static void shared(long count, long threads, const Work &work) {
    struct Job {
        const Work *work;
        long count;
    } job = {&work, count};
    if (threads < 2 || !in_parallel || !thread_number || !thread_count) return work(0, count);
    const auto part = [](void *given) {
        const Job &job = *static_cast<const Job *>(given);
        const long part = thread_number(), parts = thread_count();
        (*job.work)(job.count * part / parts, job.count * (part + 1) / parts);
    };
    in_parallel(part, &job, unsigned(threads), 0);
}

template <typename T> struct Operand {
    const T *base;
    const long *rows, *columns;
    long width;
};

INLINE long smaller(long x, long y) { return x < y ? x : y; }
INLINE long tiles(long count, long size) { return (count + size - 1) / size; }

// totals += d^T a over `depth` places: ROWS columns of d and COLUMNS of a, both packed.
template <typename A> INLINE void tile(const A *d, const A *a, long depth, double *totals) {
    for (long first = 0; first < depth; first += GROUP * CHAIN) {
        V<A> group[ROWS][VECTORS] = {};
        const long last = smaller(first + GROUP * CHAIN, depth);
        for (long start = first; start < last; start += CHAIN) {
            const long end = smaller(start + CHAIN, last);
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
#pragma GCC unroll 12
            for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
                for (int j = 0; j < VECTORS; j++) group[i][j] += sums[i][j];
        }
        A found[ROWS * COLUMNS<A>];
        std::memcpy(found, group, sizeof found);
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

// totals[i] += sum_k d(k, i) over `depth` packed places, CHAIN of them at most in the type of the products.
template <typename A> INLINE void column_sums(const A *d, long depth, double *totals) {
    constexpr long TOGETHER = 4, SIZE = TOGETHER * ROWS;
    for (long start = 0; start < depth; start += TOGETHER * CHAIN) {
        A found[SIZE] = {};
        const long end = smaller(start + TOGETHER * CHAIN, depth);
        long k = start;
        for (; k + TOGETHER <= end; k += TOGETHER)
            for (int n = 0; n < SIZE; n++) found[n] += d[k * ROWS + n];
        for (; k < end; k++)
            for (int i = 0; i < ROWS; i++) totals[i] += double(d[k * ROWS + i]);
        for (int n = 0; n < SIZE; n++) totals[n % ROWS] += double(found[n]);
    }
}

// Several sums with the same d, each with an a of its own, and the sum of scale[k] d(k, .) if `biases` is not null. One
// thread's part of them: `rows` of tiles from `top` on, and of each a the tiles of columns from `part` of `parts`.
template <typename T, typename A>
static void outer_sums(const Operand<T> &d, const Operand<T> *a, long count, const double *scale, long places, long top,
                       long bottom, long part, long next, long parts, double *const *sums, double *biases) {
    std::vector<A> outputs((bottom - top) * ROWS * DEPTH), inputs(WIDTH * DEPTH);
    for (long start = 0; start < places; start += DEPTH) {
        const long depth = smaller(DEPTH, places - start);
        for (long i = top; i < bottom; i++) {
            const long at = i * ROWS, down = smaller(ROWS, d.width - at);
            A *packed = outputs.data() + (i - top) * ROWS * depth;
            pack<T, A, ROWS>(d, scale, start, depth, at, down, packed);
            if (biases && part == 0) {
                double totals[ROWS] = {};
                column_sums<A>(packed, depth, totals);
                for (long y = 0; y < down; y++) biases[at + y] += totals[y];
            }
        }
        for (long n = 0; n < count; n++) {
            const long width = a[n].width, across = tiles(width, COLUMNS<A>);
            const long end = smaller(across * next / parts * COLUMNS<A>, width);
            for (long left = across * part / parts * COLUMNS<A>; left < end; left += WIDTH) {
                const long right = smaller(left + WIDTH, end);
                for (long j = left; j < right; j += COLUMNS<A>)
                    pack<T, A, COLUMNS<A>>(a[n], nullptr, start, depth, j, smaller(COLUMNS<A>, right - j),
                                           inputs.data() + (j - left) * depth);
                for (long i = top; i < bottom; i++)
                    for (long j = left; j < right; j += COLUMNS<A>) {
                        double totals[ROWS * COLUMNS<A>] = {};
                        tile<A>(outputs.data() + (i - top) * ROWS * depth, inputs.data() + (j - left) * depth, depth, totals);
                        const long at = i * ROWS, columns = smaller(COLUMNS<A>, right - j);
                        for (long y = 0; y < smaller(ROWS, d.width - at); y++)
                            for (long x = 0; x < columns; x++) sums[n][(at + y) * width + j + x] += totals[y * COLUMNS<A> + x];
                    }
            }
        }
    }
}

// The same by threads. They share rows, or columns where there are more of them: what they do not share, each packs.
template <typename T, typename A>
static void outer_sum(const Operand<T> &d, const Operand<T> *a, long count, const double *scale, long places,
                      long threads, double *const *sums, double *biases) {
    long width = 0;
    for (long n = 0; n < count; n++) width += a[n].width;
    const long rows = tiles(d.width, ROWS);
    if (d.width >= width)
        shared(rows, threads, [&](long top, long bottom) {
            outer_sums<T, A>(d, a, count, scale, places, top, bottom, 0, 1, 1, sums, biases);
        });
    else
        shared(threads, threads, [&](long part, long next) {
            outer_sums<T, A>(d, a, count, scale, places, 0, rows, part, next, threads, sums, biases);
        });
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

// Adds scale[k] base[rows[k] + n] to sums[indices[k], n], in double: at most PIECE additions to a row one after the other,
// and then one for every PIECE places.
template <typename T>
static void lookup_sum(const T *base, const long *rows, const long *indices, const double *scale, long places,
                       long table, long width, double *sums) {
    constexpr long PIECE = 1024;
    std::vector<double> piece(table * width);
    std::vector<char> touched(table);
    std::vector<long> found;
    for (long start = 0; start < places; start += PIECE) {
        for (long k = start; k < smaller(start + PIECE, places); k++) {
            const T *row = base + rows[k];
            double *to = piece.data() + indices[k] * width;
            if (!touched[indices[k]]) {
                touched[indices[k]] = 1;
                found.push_back(indices[k]);
            }
            for (long n = 0; n < width; n++) to[n] += scale[k] * double(row[n]);
        }
        for (long index : found) {
            double *from = piece.data() + index * width, *to = sums + index * width;
            for (long n = 0; n < width; n++) to[n] += from[n];
            std::memset(from, 0, width * sizeof(double));
            touched[index] = 0;
        }
        found.clear();
    }
}

// At least a sum of `count` squares of type T that was added up in double, infinite where it is too large for the type. In
// double the squares of single precision have no error, and no sum of `count` numbers more than count roundings.
template <typename T> INLINE double raised(double total, long count) {
    typedef std::numeric_limits<double> Double;
    if (!(total <= double(std::numeric_limits<T>::max()))) return Double::infinity();
    return total * (1 + (count + 4) * Double::epsilon()) + 2 * count * Double::min();
}

// sum + x^2 for as many numbers as a vector of doubles has.
template <typename T> INLINE V<double> with_squares(const T *from, V<double> sum) {
    V<T, BYTES / sizeof(double) * sizeof(T)> some;
    std::memcpy(&some, from, sizeof some);
    const V<double> values = __builtin_convertvector(some, V<double>);
    return multiply_add(values, values, sum);
}

// sum_n base[n]^2 over `width` numbers.
template <typename T> INLINE double square(const T *base, long width) {
    constexpr long LANE = LANES<double>, SUMS = 4;
    V<double> sums[SUMS] = {};
    long n = 0;
    for (; n + SUMS * LANE <= width; n += SUMS * LANE)
#pragma GCC unroll 4
        for (int i = 0; i < SUMS; i++) sums[i] = with_squares<T>(base + n + i * LANE, sums[i]);
    for (; n + LANE <= width; n += LANE) sums[0] = with_squares<T>(base + n, sums[0]);
    const V<double> all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double total = 0;
    for (int lane = 0; lane < LANE; lane++) total += all[lane];
    for (; n < width; n++) total += double(base[n]) * double(base[n]);
    return total;
}

// sum_c base[c * step + n]^2 over `channels`, for `count` adjacent n.
template <typename T>
static void squares_across(const T *base, long channels, long step, long count, double *squares) {
    for (long n = 0; n < count; n++) squares[n] = 0;
    for (long c = 0; c < channels; c++)
        for (long n = 0; n < count; n++) squares[n] += double(base[c * step + n]) * double(base[c * step + n]);
    for (long n = 0; n < count; n++) squares[n] = raised<T>(squares[n], channels);
}

#define FOR_TYPES(T, A)                                                                                              \
    void outer_sum_##T##_##A(const T *d, const long *d_rows, const long *d_columns, long height,                     \
                             const Operand<T> *a, long count, const double *scale, long places, long threads,        \
                             double *const *sums, double *biases) {                                                  \
        outer_sum<T, A>({d, d_rows, d_columns, height}, a, count, scale, places, threads, sums, biases);             \
    }                                                                                                                \
    void row_sum_##T##_##A(const T *base, const long *rows, const double *scale, long places, long width,            \
                           long threads, double *sums) {                                                             \
        shared(width, threads, [=](long first, long last) {                                                          \
            row_sum<T, A>(base, rows, scale, places, first, last, sums);                                             \
        });                                                                                                          \
    }

#define FOR_TYPE(T)                                                                                                  \
    void lookup_sum_##T(const T *base, const long *rows, const long *indices, const double *scale, long places,      \
                        long table, long width, double *sums) {                                                      \
        lookup_sum<T>(base, rows, indices, scale, places, table, width, sums);                                       \
    }                                                                                                                \
    void squares_##T(const T *base, const long *rows, long count, long width, long threads, double *squares) {       \
        shared(count, threads, [=](long first, long last) {                                                          \
            for (long k = first; k < last; k++) squares[k] = raised<T>(square<T>(base + rows[k], width), width);     \
        });                                                                                                          \
    }                                                                                                                \
    void squares_across_##T(const T *base, long examples, long example, long channels, long step, long count,        \
                            long threads, double *squares) {                                                         \
        shared(examples, threads, [=](long first, long last) {                                                       \
            for (long k = first; k < last; k++)                                                                      \
                squares_across<T>(base + k * example, channels, step, count, squares + k * count);                   \
        });                                                                                                          \
    }

extern "C" {
FOR_TYPES(float, float)
FOR_TYPES(float, double)
FOR_TYPES(double, double)
FOR_TYPE(float)
FOR_TYPE(double)
}
