// Sums over the places of all examples, added up so that their error is known; see sums.py for the bounds.
//
//     sums[m, n] = sum_k scale[k] d(k, m) a(k, n),    d(k, m) = d.base[d.rows[k] + d.columns[m]], and so for a.
//
// In single precision scale[k] and scale[k] d(k, m) are rounded, CHAIN products at most are added up one after the other,
// GROUP such sums at most are added up, and all further additions are in double. Offsets say where things lie, so that
// sequences of any layout and the patches that a convolution sees are read where they are. What is shared among threads
// are the results: each is added up in one order, whatever their number.

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "vectors.h"

#if defined(__AVX512F__)
constexpr int ROWS = 12, VECTORS = 2;  // 24 of 32 registers add up
#else
constexpr int ROWS = 6, VECTORS = 2;  // 12 of 16
#endif

constexpr long CHAIN = 24, GROUP = 12, DEPTH = 2 * GROUP * CHAIN, WIDTH = 256, BAND = 32;

// How far apart packed tiles of `size` columns are: never whole pages, of which only a few would fit into the cache.
template <typename T> constexpr long apart(long size, long depth) { return size * depth + BYTES / long(sizeof(T)); }

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

// A vector of numbers of another type.
template <typename To, typename T> INLINE V<To> converted(const T *from) {
    V<T, BYTES / sizeof(To) * sizeof(T)> some;
    std::memcpy(&some, from, sizeof some);
    return __builtin_convertvector(some, V<To>);
}

// d^T a over `depth` places, ROWS columns of d and COLUMNS of a, both packed: written to rows that are `step` apart, or added.
template <typename A, typename To> INLINE void tile(const A *d, const A *a, long depth, bool add, To *to, long step) {
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
        for (int i = 0; i < ROWS; i++)
            for (int n = 0; n < COLUMNS<A>; n += LANES<To>) {
                To *at = to + i * step + n;
                V<To> sums = converted<To>(found + i * COLUMNS<A> + n);
                if (add) sums += load<To>(at);
                std::memcpy(at, &sums, BYTES);
            }
        add = true;
    }
}

// Memory for so many numbers, of which vectors lie within lines of the cache.
template <typename T> struct Packed {
    std::vector<T> memory;
    T *data;

    explicit Packed(long count) : memory(count + BYTES / sizeof(T)) {
        const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
        data = memory.data() + (BYTES - at % BYTES) % BYTES / sizeof(T);
    }
};

// `count` columns of Count places, which are adjacent in every column, into a tile of Size columns: place by place, and
// zeros up to Size.
template <typename T, typename A, int Size, int Count>
INLINE void pack_places(const T *from, const long *columns, long count, const A *by, A *to) {
    for (int j = 0; j < count; j++)
        for (int i = 0; i < Count; i++) to[i * Size + j] = by[i] * A(from[columns[j] + i]);
    for (int j = count; j < Size; j++)
        for (int i = 0; i < Count; i++) to[i * Size + j] = A(0);
}

template <typename T, typename A, int Size> INLINE void pack_row(const T *from, A by, A *to) {
    T values[Size];
    std::memcpy(values, from, sizeof values);
    for (int j = 0; j < Size; j++) to[j] = by * A(values[j]);
}

// Columns `first` to `last` of an operand at `depth` places from `start` on, in tiles of Size columns: of each tile place by
// place. With scales, every number times its place's. A few places of all tiles at a time, so that what is read of a place
// is read at once.
template <typename T, typename A, int Size>
static void pack(const Operand<T> &from, const double *scale, long start, long depth, long first, long last, A *to) {
    constexpr long TOGETHER = 8, BESIDE = 4;
    for (long some = 0; some < depth; some += TOGETHER)
        for (long at = first; at < last; at += Size) {
            const long *columns = from.columns + at, *rows = from.rows + start, count = smaller(Size, last - at);
            bool adjacent = count == Size;
            for (int j = 1; j < count; j++) adjacent &= columns[j] == columns[0] + j;
            A *packed = to + (at - first) / Size * apart<A>(Size, depth);
            const long end = smaller(some + TOGETHER, depth);
            for (long k = some; k < end;) {
                A by[BESIDE];
                const T *base = from.base + rows[k];
                bool beside = !adjacent && k + BESIDE <= end;
                for (long i = 1; i < BESIDE && beside; i++) beside = rows[k + i] == rows[k] + i;
                for (long i = 0; i < BESIDE; i++) by[i] = scale && k + i < end ? A(scale[start + k + i]) : A(1);
                if (adjacent)
                    pack_row<T, A, Size>(base + columns[0], by[0], packed + k * Size);
                else if (beside)
                    pack_places<T, A, Size, BESIDE>(base, columns, count, by, packed + k * Size);
                else
                    pack_places<T, A, Size, 1>(base, columns, count, by, packed + k * Size);
                k += beside ? BESIDE : 1;
            }
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
// thread's part of them: `rows` of tiles from `top` on, and of each a the tiles of columns from `part` of `parts`. The
// first places are written, the others added: what was in `sums` and `biases` does not matter.
template <typename T, typename A, typename To>
static void outer_sums(const Operand<T> &d, const Operand<T> *a, long count, const double *scale, long places, long top,
                       long bottom, long part, long next, long parts, To *const *sums, To *biases) {
    const long at_once = tiles(places, tiles(places, DEPTH));  // as many at a time as share the places evenly
    const Packed<A> outputs((bottom - top) * apart<A>(ROWS, at_once));
    const Packed<A> inputs(WIDTH / COLUMNS<A> * apart<A>(COLUMNS<A>, at_once));
    for (long start = 0; start < places; start += at_once) {
        const long depth = smaller(at_once, places - start);
        pack<T, A, ROWS>(d, scale, start, depth, top * ROWS, smaller(bottom * ROWS, d.width), outputs.data);
        for (long i = top; biases && part == 0 && i < bottom; i++) {
            const long at = i * ROWS;
            double totals[ROWS] = {};
            column_sums<A>(outputs.data + (i - top) * apart<A>(ROWS, depth), depth, totals);
            for (long y = 0; y < smaller(ROWS, d.width - at); y++)
                biases[at + y] = To(start ? biases[at + y] + totals[y] : totals[y]);
        }
        for (long n = 0; n < count; n++) {
            const long width = a[n].width, across = tiles(width, COLUMNS<A>);
            const long end = smaller(across * next / parts * COLUMNS<A>, width);
            for (long left = across * part / parts * COLUMNS<A>; left < end; left += WIDTH) {
                const long right = smaller(left + WIDTH, end);
                pack<T, A, COLUMNS<A>>(a[n], nullptr, start, depth, left, right, inputs.data);
                for (long i = top; i < bottom; i++)
                    for (long j = left; j < right; j += COLUMNS<A>) {
                        const A *packed = outputs.data + (i - top) * apart<A>(ROWS, depth);
                        const A *seen = inputs.data + (j - left) / COLUMNS<A> * apart<A>(COLUMNS<A>, depth);
                        const long down = smaller(ROWS, d.width - i * ROWS), columns = smaller(COLUMNS<A>, right - j);
                        To *to = sums[n] + i * ROWS * width + j, totals[ROWS * COLUMNS<A>];
                        if (down == ROWS && columns == COLUMNS<A>) {
                            tile<A>(packed, seen, depth, start > 0, to, width);
                            continue;
                        }
                        tile<A>(packed, seen, depth, false, totals, COLUMNS<A>);
                        for (long y = 0; y < down; y++)
                            for (long x = 0; x < columns; x++)
                                to[y * width + x] = (start ? to[y * width + x] : To(0)) + totals[y * COLUMNS<A> + x];
                    }
            }
        }
    }
}

// The same by threads. They share rows, or columns where there are more of them: what they do not share, each packs. BAND
// tiles of rows at a time are few enough to stay in the cache.
template <typename T, typename A>
static void outer_sum(const Operand<T> &d, const Operand<T> *a, long count, const double *scale, long places,
                      long threads, double *const *sums, double *biases) {
    long width = 0;
    for (long n = 0; n < count; n++) width += a[n].width;
    const long rows = tiles(d.width, ROWS);
    const auto part_of = [&](long top, long bottom, long part, long next, long parts) {
        for (; top < bottom; top += BAND)
            outer_sums<T, A, double>(d, a, count, scale, places, top, smaller(top + BAND, bottom), part, next, parts, sums,
                                     biases);
    };
    if (d.width >= width)
        shared(rows, threads, [&](long top, long bottom) { part_of(top, bottom, 0, 1, 1); });
    else
        shared(threads, threads, [&](long part, long next) { part_of(0, rows, part, next, threads); });
}

// The same over the places of one example alone, without scales, in the type of the values.
template <typename T>
static void example_sums(Operand<T> d, const Operand<T> *a, long count, long places, long example, T *const *sums,
                         T *biases) {
    std::vector<Operand<T>> own(a, a + count);
    std::vector<T *> to(sums, sums + count);
    d.rows += example * places;
    for (long n = 0; n < count; n++) own[n].rows += example * places, to[n] += example * d.width * own[n].width;
    if (biases) biases += example * d.width;
    const long rows = tiles(d.width, ROWS);
    for (long top = 0; top < rows; top += BAND)
        outer_sums<T, T, T>(d, own.data(), count, nullptr, places, top, smaller(top + BAND, rows), 0, 1, 1, to.data(), biases);
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

// Rows that lie one after the other, and where their sum belongs.
template <typename T> struct Held {
    const T *base;
    long width;
    double *sums;
};

// The same for all rows of one tensor.
template <typename T, typename A> static void held_sum(const Held<T> &held, const double *scale, long places) {
    std::vector<long> rows(places);
    for (long k = 0; k < places; k++) rows[k] = k * held.width;
    row_sum<T, A>(held.base, rows.data(), scale, places, 0, held.width, held.sums);
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

// sum + x^2 for as many of them.
template <typename T> INLINE V<double> with_squares(const T *from, V<double> sum) {
    const V<double> values = converted<double>(from);
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

// Pairs of places --------------------------------------------------------------------------------------------------

// What an example has at its places: `width` adjacent numbers each, `step` apart, those of the next example `example` on.
template <typename T> struct Places {
    const T *base;
    long example, step, width;
};

constexpr int SIDE = 4;  // places of a block of pairs, in either direction

// The places of one example in rows of whole vectors: where they are, or copied with zeros behind them; then rows of zeros.
template <typename T> struct Rows {
    std::vector<const T *> at;
    std::vector<T> copied, zeros;
    long width;

    void take(const Places<T> &from, long example, long places) {
        const long full = tiles(from.width, LANES<T>) * LANES<T>;
        width = full;
        zeros.assign(full, T(0));
        at.assign(tiles(places, SIDE) * SIDE, zeros.data());
        if (full != from.width) copied.assign(places * full, T(0));
        for (long s = 0; s < places; s++) {
            const T *row = from.base + example * from.example + s * from.step;
            if (full != from.width) row = (const T *)std::memcpy(copied.data() + s * full, row, from.width * sizeof(T));
            at[s] = row;
        }
    }
};

constexpr int PAIRS = SIDE * SIDE;

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif

#ifdef SHUFFLES
// Where lane n of what is left of two vectors comes from, when blocks of 2 H lanes become blocks of H.
constexpr int lane_of(int n, int lanes, int half) {
    const int m = n % (lanes / 2);
    return (n < lanes / 2 ? 0 : lanes) + m / half * 2 * half + m % half;
}

template <typename T, int Half, int... N> INLINE V<T> halved(V<T> x, V<T> y, std::integer_sequence<int, N...>) {
    constexpr int lanes = LANES<T>;
    return __builtin_shufflevector(x, y, lane_of(N, lanes, Half)...) +
           __builtin_shufflevector(x, y, (lane_of(N, lanes, Half) + Half)...);
}

// found[n] += the sum of the lanes of vector n, two by two.
template <typename T, int Count, int Half> INLINE void add_lanes(const V<T> *vectors, T *found) {
    V<T> left[Count / 2];
#pragma GCC unroll 16
    for (int n = 0; n < Count / 2; n++)
        left[n] = halved<T, Half>(vectors[2 * n], vectors[2 * n + 1], std::make_integer_sequence<int, LANES<T>>());
    if constexpr (Half > 1)
        add_lanes<T, Count / 2, Half / 2>(left, found);
    else
        for (int n = 0; n < Count / 2; n++) {
            const V<T> sums = load<T>(found + n * LANES<T>) + left[n];
            std::memcpy(found + n * LANES<T>, &sums, BYTES);
        }
}
#else
template <typename T, int Count, int Half> INLINE void add_lanes(const V<T> *vectors, T *found) {
    for (int n = 0; n < Count; n++)
        for (int lane = 0; lane < LANES<T>; lane++) found[n] += vectors[n][lane];
}
#endif

// found[i][j] += x_i . y_j for SIDE rows x and SIDE rows y.
template <typename T> INLINE void add_products(const T *const *x, const T *const *y, long width, T *found) {
    V<T> sums[PAIRS] = {};
    for (long k = 0; k < width; k += LANES<T>) {
        V<T> right[SIDE];
#pragma GCC unroll 4
        for (int j = 0; j < SIDE; j++) right[j] = load<T>(y[j] + k);
#pragma GCC unroll 4
        for (int i = 0; i < SIDE; i++) {
            const V<T> left = load<T>(x[i] + k);
#pragma GCC unroll 4
            for (int j = 0; j < SIDE; j++) sums[i * SIDE + j] = multiply_add(left, right[j], sums[i * SIDE + j]);
        }
    }
    add_lanes<T, PAIRS, LANES<T> / 2>(sums, found);
}

// At least |sum_t d_t a_t^T|^2, and m^2, of one example: `pair_bounds` of forms.py. Of the pairs (s, t) and (t, s), which are
// equal, one is computed; entries of the two matrices are sums in T, and their products are added up in double: those of a
// row of blocks, then the rows, so that few roundings follow each other.
template <typename T>
static void pair_bounds(const Places<T> &d, const Places<T> *a, long count, long biases, long example, long places,
                        std::vector<Rows<T>> &rows, double *norms, double *magnitudes) {
    typedef std::numeric_limits<T> Kind;
    const double eps = Kind::epsilon(), tiny = Kind::min(), n = d.width;
    double more = biases, m = 0, x = 0, y = 0;
    V<double> once = {}, twice = {};
    rows[0].take(d, example, places);
    for (long w = 0; w < count; w++) {
        rows[w + 1].take(a[w], example, places);
        more += a[w].width;
    }
    for (long s = 0; s < places; s += SIDE) {
        V<double> row = {};
        for (long t = s; t < places; t += SIDE) {
            T one[PAIRS] = {}, other[PAIRS];
            for (T &entry : other) entry = T(biases);
            add_products<T>(&rows[0].at[s], &rows[0].at[t], rows[0].width, one);
            for (long w = 1; w <= count; w++) add_products<T>(&rows[w].at[s], &rows[w].at[t], rows[w].width, other);
            V<double> sum = {};
            for (int i = 0; i < PAIRS; i += LANES<double>)
                sum = multiply_add(converted<double>(one + i), converted<double>(other + i), sum);
            (s == t ? once : row) += sum;
            for (int i = 0; s == t && i < smaller(SIDE, places - s); i++) {
                const double of_d = std::sqrt((1 + (n + 2) * eps) * double(one[i * SIDE + i]) + 2 * n * tiny);
                const double of_a = std::sqrt((1 + (more + 2) * eps) * double(other[i * SIDE + i]) + 2 * more * tiny);
                m += of_a * of_d, x += of_a, y += of_d;
            }
        }
        twice += row;
    }
    const double size = places, squared = m * m;
    double total = 0;
    for (int lane = 0; lane < LANES<double>; lane++) total += once[lane] + 2 * twice[lane];
    const double found = total + (n + more + 2 * size + 8) * eps / 2 * (1 + 0.0625) * squared +
                         4 * tiny * ((n + 2) * x * x + (more + 2) * y * y);
    norms[example] = (found < 0 ? 0 : found) + 8 * (n + more + 1) * size * size * tiny;
    magnitudes[example] = squared;
}

// Convolutions of single channels ------------------------------------------------------------------------------------

struct Shape {
    long height, width;  // of the output
    long kernel[2], stride[2], padding[2], dilation[2];
};

template <typename T> struct Images {
    const T *base;
    long example, channel, down, right, height, width;
};

// `count` channels of an image as (height, width, LANES), with zeros around it and in lanes without a channel.
template <typename T>
static void take_channels(const Images<T> &from, long example, long first, long count, long top, long side, T *to) {
    const long across = from.width + 2 * side;
    std::memset(to, 0, (from.height + 2 * top) * across * BYTES);
    for (long y = 0; y < from.height; y++) {
        const T *row = from.base + example * from.example + first * from.channel + y * from.down;
        T *line = to + ((y + top) * across + side) * LANES<T>;
        if (from.channel == 1)
            for (long x = 0; x < from.width; x++)
                std::memcpy(line + x * LANES<T>, row + x * from.right, count * sizeof(T));
        else
            for (long c = 0; c < count; c++)
                for (long x = 0; x < from.width; x++) line[x * LANES<T> + c] = row[c * from.channel + x * from.right];
    }
}

// sums[k] = sum over output pixels of d a at N offsets of a kernel's row, in every lane.
template <typename T, int N>
static void row_of_kernel(const T *d, const T *a, const Shape &shape, long across, V<T> *sums) {
    V<T> found[N] = {};
    const long down = shape.stride[0] * across * LANES<T>, right = shape.stride[1] * LANES<T>;
    for (long y = 0; y < shape.height; y++) {
        const T *seen = a + y * down;
        for (long x = 0; x < shape.width; x++, d += LANES<T>, seen += right) {
            const V<T> output = load<T>(d);
#pragma GCC unroll 4
            for (int k = 0; k < N; k++)
                found[k] = multiply_add(output, load<T>(seen + k * shape.dilation[1] * LANES<T>), found[k]);
        }
    }
    for (int k = 0; k < N; k++) sums[k] = found[k];
}

// gradients[example, c, k] = sum_y d[c, y] a[c, s y + h k] for all channels c of one example, LANES of them at a time.
template <typename T>
static void channel_gradients(const Images<T> &a, const Images<T> &d, long channels, const Shape &shape, long example,
                              T *gradients) {
    const long top = shape.padding[0], side = shape.padding[1], across = a.width + 2 * side;
    const long offsets = shape.kernel[0] * shape.kernel[1];
    std::vector<T> inputs((a.height + 2 * top) * across * LANES<T>), outputs(d.height * d.width * LANES<T>);
    std::vector<T> lanes(offsets * LANES<T>);
    for (long first = 0; first < channels; first += LANES<T>) {
        const long count = smaller(LANES<T>, channels - first);
        take_channels<T>(a, example, first, count, top, side, inputs.data());
        take_channels<T>(d, example, first, count, 0, 0, outputs.data());
        for (long row = 0; row < shape.kernel[0]; row++)
            for (long column = 0; column < shape.kernel[1];) {
                V<T> found[4];
                const long left = shape.kernel[1] - column, n = left >= 4 ? 4 : left;
                const T *from = inputs.data() +
                                (row * shape.dilation[0] * across + column * shape.dilation[1]) * LANES<T>;
                if (n == 4) row_of_kernel<T, 4>(outputs.data(), from, shape, across, found);
                if (n == 3) row_of_kernel<T, 3>(outputs.data(), from, shape, across, found);
                if (n == 2) row_of_kernel<T, 2>(outputs.data(), from, shape, across, found);
                if (n == 1) row_of_kernel<T, 1>(outputs.data(), from, shape, across, found);
                std::memcpy(lanes.data() + (row * shape.kernel[1] + column) * LANES<T>, found, n * BYTES);
                column += n;
            }
        for (long c = 0; c < count; c++)
            for (long k = 0; k < offsets; k++)
                gradients[(example * channels + first + c) * offsets + k] = lanes[k * LANES<T> + c];
    }
}

// Normalisation ------------------------------------------------------------------------------------------------------

// weights[n] = sum_t d_t[n] (a_t[n] - mean_t) scale_t and biases[n] = sum_t d_t[n] over the places t of one example.
template <typename T>
static void sums_over_places(const T *a, const T *d, const T *means, const T *scales, long places, long width,
                             long example, T *weights, T *biases) {
    T *to_weights = weights + example * width, *to_biases = biases + example * width;
    std::memset(to_weights, 0, width * sizeof(T));
    std::memset(to_biases, 0, width * sizeof(T));
    for (long t = example * places; t < (example + 1) * places; t++) {
        const T *seen = a + t * width, *outputs = d + t * width, mean = means[t], scale = scales[t];
        for (long n = 0; n < width; n++) to_weights[n] += outputs[n] * ((seen[n] - mean) * scale);
        for (long n = 0; n < width; n++) to_biases[n] += outputs[n];
    }
}

// The same over the `width` pixels of one channel, of which `together` that follow each other have a mean and a scale.
template <typename T>
static void sums_over_pixels(const T *a, const T *d, const T *means, const T *scales, long together, long width,
                             long channel, T *weights, T *biases) {
    const T *seen = a + channel * width, *outputs = d + channel * width;
    const T mean = means[channel / together], scale = scales[channel / together];
    V<T> of_weight = {}, of_bias = {};
    long n = 0;
    for (; n + LANES<T> <= width; n += LANES<T>) {
        const V<T> output = load<T>(outputs + n);
        of_weight = multiply_add(output, (load<T>(seen + n) - mean) * scale, of_weight);
        of_bias += output;
    }
    T weight = 0, bias = 0;
    for (int lane = 0; lane < LANES<T>; lane++) weight += of_weight[lane], bias += of_bias[lane];
    for (; n < width; n++) weight += outputs[n] * ((seen[n] - mean) * scale), bias += outputs[n];
    weights[channel] = weight;
    biases[channel] = bias;
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
    }                                                                                                                \
    void held_sums_##T##_##A(const Held<T> *held, long count, const double *scale, long places, long threads) {      \
        shared(count, threads, [=](long first, long last) {                                                          \
            for (long n = first; n < last; n++) held_sum<T, A>(held[n], scale, places);                              \
        });                                                                                                          \
    }

#define FOR_TYPE(T)                                                                                                  \
    void example_sums_##T(const Operand<T> *d, const Operand<T> *a, long count, long places, long examples,          \
                          long threads, T *const *sums, T *biases) {                                                 \
        shared(examples, threads, [=](long first, long last) {                                                       \
            for (long k = first; k < last; k++) example_sums<T>(*d, a, count, places, k, sums, biases);              \
        });                                                                                                          \
    }                                                                                                                \
    void lookup_sum_##T(const T *base, const long *rows, const long *indices, const double *scale, long places,      \
                        long table, long width, double *sums) {                                                      \
        lookup_sum<T>(base, rows, indices, scale, places, table, width, sums);                                       \
    }                                                                                                                \
    void squares_##T(const T *base, const long *rows, long count, long width, long threads, double *squares) {       \
        shared(count, threads, [=](long first, long last) {                                                          \
            for (long k = first; k < last; k++) squares[k] = raised<T>(square<T>(base + rows[k], width), width);     \
        });                                                                                                          \
    }                                                                                                                \
    void held_squares_##T(const Held<T> *held, long count, long examples, long threads, double *squares) {           \
        shared(examples, threads, [=](long first, long last) {                                                       \
            for (long k = first; k < last; k++) {                                                                    \
                double total = 0;                                                                                    \
                for (long n = 0; n < count; n++) {                                                                   \
                    const long width = held[n].width;                                                                \
                    total += raised<T>(square<T>(held[n].base + k * width, width), width);                           \
                }                                                                                                    \
                squares[k] = total * (1 + count * std::numeric_limits<double>::epsilon());                           \
            }                                                                                                        \
        });                                                                                                          \
    }                                                                                                                \
    void squares_across_##T(const T *base, long examples, long example, long channels, long step, long count,        \
                            long threads, double *squares) {                                                         \
        shared(examples, threads, [=](long first, long last) {                                                       \
            for (long k = first; k < last; k++)                                                                      \
                squares_across<T>(base + k * example, channels, step, count, squares + k * count);                   \
        });                                                                                                          \
    }                                                                                                                \
    void pair_bounds_##T(const Places<T> *d, const Places<T> *a, long count, long biases, long examples, long places, \
                         long threads, double *norms, double *magnitudes) {                                          \
        shared(examples, threads, [=](long first, long last) {                                                       \
            std::vector<Rows<T>> rows(count + 1);                                                                    \
            for (long k = first; k < last; k++)                                                                      \
                pair_bounds<T>(*d, a, count, biases, k, places, rows, norms, magnitudes);                            \
        });                                                                                                          \
    }                                                                                                                \
    void sums_over_places_##T(const T *a, const T *d, const T *means, const T *scales, long count, long places,      \
                              long width, long threads, T *weights, T *biases) {                                     \
        shared(count, threads, [=](long first, long last) {                                                          \
            for (long k = first; k < last; k++)                                                                      \
                sums_over_places<T>(a, d, means, scales, places, width, k, weights, biases);                         \
        });                                                                                                          \
    }                                                                                                                \
    void sums_over_pixels_##T(const T *a, const T *d, const T *means, const T *scales, long count, long together,    \
                              long width, long threads, T *weights, T *biases) {                                     \
        shared(count, threads, [=](long first, long last) {                                                          \
            for (long k = first; k < last; k++)                                                                      \
                sums_over_pixels<T>(a, d, means, scales, together, width, k, weights, biases);                       \
        });                                                                                                          \
    }                                                                                                                \
    void channel_gradients_##T(const Images<T> *a, const Images<T> *d, const Shape *shape, long examples,            \
                               long channels, long threads, T *gradients) {                                          \
        shared(examples, threads, [=](long first, long last) {                                                       \
            for (long k = first; k < last; k++) channel_gradients<T>(*a, *d, channels, *shape, k, gradients);        \
        });                                                                                                          \
    }

extern "C" {
FOR_TYPES(float, float)
FOR_TYPES(float, double)
FOR_TYPES(double, double)
FOR_TYPE(float)
FOR_TYPE(double)
}
