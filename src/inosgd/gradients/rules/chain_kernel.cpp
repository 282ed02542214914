// A pass through a chain of linear layers, some of them followed by ReLU, and its per-example gradients.
//
//     a_{l+1} = f_l(W_l a_l + b_l),    d_l = (W_{l+1}^T d_{l+1}) f_l'(a_{l+1}),    f(x) = x or max(x, 0)
//
// Values are a block with a row for each feature and a column for each example: first d_1 .. d_L, then a_1 .. a_L, then
// room for one vector. The last vector of a row may reach into the next row, or into that room: it is computed with what
// lies there, and only the row's own part of it is stored or summed. Everything is computed in the precision of the
// weights, on one thread. What is computed for an example is the same in any column, batch and tile: every product is added
// up by `multiply_add`, in the order of the features. Sums over examples go on in double after every BLOCK.

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "vectors.h"

#if defined(__AVX512F__)
constexpr int ROWS = 4, VECTORS = 4;  // 16 of 32 registers add up
#else
constexpr int ROWS = 4, VECTORS = 2;  // 8 of 16
#endif

template <typename T> constexpr long BLOCK = 32 * LANES<T>;  // 32 products of a lane are added up one after the other
template <int N> using Size = std::integral_constant<int, N>;

template <typename T> struct Chain {
    long layers;
    const long *widths;              // layers + 1: of the input, and of every layer's output
    const unsigned char *rectified;  // layers: whether ReLU follows
    const T *const *weights;         // layers: (outputs, inputs), contiguous
    const T *const *biases;          // layers: as many numbers as outputs, or null
    long examples;

    long outputs() const {
        long sum = 0;
        for (long layer = 0; layer < layers; layer++) sum += widths[layer + 1];
        return sum;
    }
};

// The first `count` entries, and zeros.
template <typename T> INLINE V<T> load_part(const T *from, long count) {
    V<T> value = {};
    std::memcpy(&value, from, count * sizeof(T));
    return value;
}

template <typename T> INLINE void store(T *to, V<T> value, long count) {
    std::memcpy(to, &value, count < LANES<T> ? count * sizeof(T) : BYTES);
}

// The sum of a vector's entries, half by half.
template <typename T, int Bytes = BYTES> INLINE T sum_of(V<T, Bytes> value) {
    if constexpr (Bytes == 2 * sizeof(T)) {
        return value[0] + value[1];
    } else {
        V<T, Bytes / 2> halves[2];
        std::memcpy(halves, &value, Bytes);
        return sum_of<T, Bytes / 2>(halves[0] + halves[1]);
    }
}

// R rows and K vectors of columns of: to = (bias + sum_j weight[., j] from[j]), rectified, and 0 where seen <= 0.
// Entry (i, j) of the weight is at i * row + j * column. NaN is not rectified, as in torch. Of the last vector `count`
// columns are stored.
template <typename T, int R, int K>
INLINE void tile(const T *weight, long row, long column, long inner, const T *bias, const T *from, const T *seen,
                 bool rectify, long stride, long count, T *to) {
    V<T> sums[R][K];
    for (int i = 0; i < R; i++)
        for (int k = 0; k < K; k++) sums[i][k] = all<T>(bias ? bias[i] : T(0));
    for (long j = 0; j < inner; j++) {
        V<T> inputs[K];
        for (int k = 0; k < K; k++) inputs[k] = load<T>(from + j * stride + k * LANES<T>);
        for (int i = 0; i < R; i++)
            for (int k = 0; k < K; k++) sums[i][k] = multiply_add(all<T>(weight[i * row + j * column]), inputs[k], sums[i][k]);
    }
    for (int i = 0; i < R; i++)
        for (int k = 0; k < K; k++) {
            const long at = i * stride + k * LANES<T>;
            V<T> value = sums[i][k];
            if (rectify) value = value < 0 ? V<T>{} : value;
            if (seen) value = load<T>(seen + at) <= 0 ? V<T>{} : value;
            store<T>(to + at, value, k + 1 < K ? LANES<T> : count);
        }
}

// Calls `several(i)` for N of the numbers 0 .. count - 1 at a time, the last time for the last ones of them, some of
// which it may have had before; `one(i)` for every number if there are fewer than N.
template <int N, typename Several, typename One> INLINE void in_tiles(long count, Several several, One one) {
    long i = 0;
    for (; i + N <= count; i += N) several(i);
    if (i < count && count >= N) {
        several(count - N);
    } else {
        for (; i < count; i++) one(i);
    }
}

// All rows of the same.
template <typename T, int K>
INLINE void strip(const T *weight, long row, long column, long outer, long inner, const T *bias, const T *from,
                  const T *seen, bool rectify, long stride, long count, T *to) {
    const auto rows = [=](auto size, long i) __attribute__((always_inline)) {
        tile<T, decltype(size)::value, K>(weight + i * row, row, column, inner, bias ? bias + i : nullptr, from,
                                          seen ? seen + i * stride : nullptr, rectify, stride, count, to + i * stride);
    };
    in_tiles<ROWS>(outer, [=](long i) { rows(Size<ROWS>{}, i); }, [=](long i) { rows(Size<1>{}, i); });
}

// All rows and columns.
template <typename T>
static void product(const T *weight, long row, long column, long outer, long inner, const T *bias, const T *from,
                    const T *seen, bool rectify, long stride, T *to) {
    constexpr long WIDE = VECTORS * LANES<T>;
    long at = 0;
    for (; at + WIDE <= stride; at += WIDE)
        strip<T, VECTORS>(weight, row, column, outer, inner, bias, from + at, seen ? seen + at : nullptr, rectify,
                          stride, LANES<T>, to + at);
    for (; at < stride; at += LANES<T>)
        strip<T, 1>(weight, row, column, outer, inner, bias, from + at, seen ? seen + at : nullptr, rectify, stride,
                    stride - at, to + at);
}

// The chain's output, as (examples, features). It is computed where d_L will be.
template <typename T> static void forward(const Chain<T> &chain, const T *inputs, T *values, T *outputs) {
    const long examples = chain.examples, *widths = chain.widths, last = widths[chain.layers];
    T *end = values + (chain.outputs() - last) * examples, *now = values + chain.outputs() * examples;
    for (long feature = 0; feature < widths[0]; feature++)
        for (long example = 0; example < examples; example++)
            now[feature * examples + example] = inputs[example * widths[0] + feature];
    for (long layer = 0; layer < chain.layers; layer++) {
        T *next = layer + 1 == chain.layers ? end : now + widths[layer] * examples;
        product<T>(chain.weights[layer], widths[layer], 1, widths[layer + 1], widths[layer], chain.biases[layer], now,
                   nullptr, chain.rectified[layer], examples, next);
        now = next;
    }
    for (long example = 0; example < examples; example++)
        for (long feature = 0; feature < last; feature++)
            outputs[example * last + feature] = end[feature * examples + example];
}

// At least the sum of `count` squares that was computed, with what roundings and underflow may have taken from it.
template <typename T> INLINE double raised(T sum, long count) {
    typedef std::numeric_limits<T> Limits;
    return double(sum) * (1 + (count + 4) * double(Limits::epsilon())) + 2 * count * double(Limits::min());
}

// Adds at least |d|^2 (|a|^2 + 1) to the examples' squares; without the 1 where there is no bias.
template <typename T>
INLINE void add_squares(const T *d, long outputs, const T *a, long inputs, bool biased, long stride, double *squares) {
    for (long at = 0; at < stride; at += LANES<T>) {
        V<T> of_outputs = {}, of_inputs = all<T>(biased ? T(1) : T(0));
        for (long i = 0; i < outputs; i++) {
            const V<T> value = load<T>(d + i * stride + at);
            of_outputs = multiply_add(value, value, of_outputs);
        }
        for (long i = 0; i < inputs; i++) {
            const V<T> value = load<T>(a + i * stride + at);
            of_inputs = multiply_add(value, value, of_inputs);
        }
        for (int lane = 0; lane < LANES<T>; lane++)
            squares[at + lane] += raised<T>(of_outputs[lane], outputs) * raised<T>(of_inputs[lane], inputs + 1);
    }
}

// All d, from the chain's output and its gradient as (examples, features), and the squared norms of the examples'
// gradients, rounded up. Returns whether all of these are finite.
template <typename T>
static bool backward(const Chain<T> &chain, const T *output, const T *gradient, T *values, double *squared_norms) {
    const long examples = chain.examples, *widths = chain.widths, last = widths[chain.layers];
    T *d = values + (chain.outputs() - last) * examples;
    const T *a = values + chain.outputs() * examples;
    for (long layer = 0; layer + 1 < chain.layers; layer++) a += widths[layer] * examples;
    for (long feature = 0; feature < last; feature++)
        for (long example = 0; example < examples; example++) {
            const long at = example * last + feature;
            const bool stopped = chain.rectified[chain.layers - 1] && output[at] <= 0;
            d[feature * examples + example] = stopped ? T(0) : gradient[at];
        }
    std::vector<double> squares(examples + LANES<T>);
    for (long layer = chain.layers - 1;; layer--) {
        add_squares(d, widths[layer + 1], a, widths[layer], chain.biases[layer] != nullptr, examples, squares.data());
        if (layer == 0) break;
        T *next = d - widths[layer] * examples;
        product<T>(chain.weights[layer], 1, widths[layer], widths[layer], widths[layer + 1], nullptr, d,
                   chain.rectified[layer - 1] ? a : nullptr, false, examples, next);
        d = next;
        a -= widths[layer - 1] * examples;
    }
    std::memcpy(squared_norms, squares.data(), examples * sizeof(double));
    double nothing = 0;
    for (long example = 0; example < examples; example++) nothing += 0 * squared_norms[example];
    return nothing == 0;
}

// products[r * stride + k] = sum_i rows[i, k] rows[i, k + r] for shifts r below `places`: where k and k + r are columns of
// one example, entries of the Gram matrix of its columns.
template <typename T> static void shifted_products(const T *rows, long count, long places, long stride, T *products) {
    for (long at = 0; at < stride; at += LANES<T>)
        for (long shift = 0; shift < places; shift++) {
            V<T> sum = {};
            const long left = stride - at - shift;
            if (left >= LANES<T>) {
                for (long i = 0; i < count; i++)
                    sum = multiply_add(load<T>(rows + i * stride + at), load<T>(rows + i * stride + at + shift), sum);
            } else if (left > 0) {
                for (long i = 0; i < count; i++) {
                    const T *row = rows + i * stride + at;
                    sum = multiply_add(load_part<T>(row, left), load_part<T>(row + shift, left), sum);
                }
            }
            store<T>(products + shift * stride + at, sum, stride - at);
        }
}

// Adds bounds on |sum_s d_s (a_s, 1)^T|^2 and (sum_s |d_s| |(a_s, 1)|)^2 over the `places` columns s of each example, from
// the entries of their Gram matrices, as `pair_bounds` of forms.py has them; sums over pairs are in double.
template <typename T>
static void add_bounds(const T *of_outputs, const T *of_inputs, long outputs, long inputs, bool biased, long places,
                       long stride, double *norms, double *magnitudes) {
    typedef std::numeric_limits<T> Limits;
    const double eps = Limits::epsilon(), tiny = Limits::min(), one = biased ? 1 : 0;
    const long terms = outputs, other = inputs + (biased ? 1 : 0);
    for (long example = 0; example < stride / places; example++) {
        double total = 0, m = 0, x = 0, y = 0;
        for (long s = 0; s < places; s++) {
            const long at = example * places + s;
            for (long shift = 0; s + shift < places; shift++) {
                const double product = double(of_outputs[shift * stride + at]) * (of_inputs[shift * stride + at] + one);
                total += shift ? 2 * product : product;
            }
            const double d = std::sqrt((1 + (terms + 2) * eps) * double(of_outputs[at]) + 2 * terms * tiny);
            const double a = std::sqrt((1 + (other + 2) * eps) * (of_inputs[at] + one) + 2 * other * tiny);
            m += d * a;
            x += a;
            y += d;
        }
        const double lost = (terms + other + 2 * places + 8) * eps / 2 * (1 + 1.0 / 16) * m * m +
                            4 * tiny * ((terms + 2) * x * x + (other + 2) * y * y);
        const double bound = total + lost;
        norms[example] += (bound < 0 ? 0 : bound) + 8 * (terms + other + 1) * double(places * places) * tiny;
        magnitudes[example] += m * m;
    }
}

// The same for all layers, of examples that are `places` consecutive columns each.
template <typename T>
static void folded_bounds(const Chain<T> &chain, const T *values, long places, double *norms, double *magnitudes) {
    const long examples = chain.examples, *widths = chain.widths;
    const T *d = values, *a = values + chain.outputs() * examples;
    std::vector<T> of_outputs(places * examples), of_inputs(places * examples);
    for (long example = 0; example < examples / places; example++) norms[example] = magnitudes[example] = 0;
    for (long layer = 0; layer < chain.layers; layer++) {
        shifted_products<T>(d, widths[layer + 1], places, examples, of_outputs.data());
        shifted_products<T>(a, widths[layer], places, examples, of_inputs.data());
        add_bounds<T>(of_outputs.data(), of_inputs.data(), widths[layer + 1], widths[layer],
                      chain.biases[layer] != nullptr, places, examples, norms, magnitudes);
        d += widths[layer + 1] * examples;
        a += widths[layer] * examples;
    }
}

// found[i][j] += coefficients d[i] a[j], vector by vector, for R rows of d and K of a; `loaded` reads a vector.
template <typename T, int R, int K, typename Load>
INLINE void add_products(const T *coefficients, const T *d, const T *a, long stride, Load loaded, V<T> (&found)[R][K]) {
    V<T> scaled[R];
    for (int i = 0; i < R; i++) scaled[i] = loaded(coefficients) * loaded(d + i * stride);
    for (int j = 0; j < K; j++) {
        const V<T> input = loaded(a + j * stride);
        for (int i = 0; i < R; i++) found[i][j] = multiply_add(scaled[i], input, found[i][j]);
    }
}

template <typename T> using Places = V<std::conditional_t<sizeof(T) == 4, int, long>>;

// The entries of x and then y that are at these places.
template <typename T> INLINE V<T> chosen(V<T> x, V<T> y, Places<T> places) {
#if defined(__clang__)
    V<T> found;
    for (int to = 0; to < LANES<T>; to++)
        found[to] = places[to] < LANES<T> ? x[places[to]] : y[places[to] - LANES<T>];
    return found;
#else
    return __builtin_shuffle(x, y, places);
#endif
}

// x and y folded into one vector: the sums of the halves of every `Segment` entries, first those of x, then those of y.
template <typename T, int Segment> INLINE V<T> folded(V<T> x, V<T> y) {
    Places<T> low, high;
    for (int to = 0; to < LANES<T>; to++) {
        const int half = Segment / 2, from = to / half * Segment + to % half;
        low[to] = from;
        high[to] = from + half;
    }
    return chosen<T>(x, y, low) + chosen<T>(x, y, high);
}

// The sums of the entries of LANES vectors: entry i of the result belongs to values[i].
template <typename T, int Count = LANES<T>> INLINE V<T> sums_of(const V<T> *values) {
    if constexpr (Count == 1) {
        return values[0];
    } else {
        return folded<T, 2 * LANES<T> / Count>(sums_of<T, Count / 2>(values), sums_of<T, Count / 2>(values + Count / 2));
    }
}

// sums[i * columns + j] = sum_k coefficients[k] d[i, k] a[j, k] for R rows and K columns.
template <typename T, int R, int K>
INLINE void dots(const T *coefficients, const T *d, const T *a, long columns, long stride, double *sums) {
    double totals[R * K] = {};
    for (long at = 0; at < stride;) {
        V<T> found[R][K] = {};
        const long end = at + BLOCK<T> < stride ? at + BLOCK<T> : stride;
        for (; at + LANES<T> <= end; at += LANES<T>)
            add_products<T, R, K>(coefficients + at, d + at, a + at, stride, load<T>, found);
        if (at < end) {
            const auto loaded = [count = end - at](const T *from) { return load_part<T>(from, count); };
            add_products<T, R, K>(coefficients + at, d + at, a + at, stride, loaded, found);
            at = end;
        }
        if constexpr (R * K % LANES<T> == 0) {
            for (int first = 0; first < R * K; first += LANES<T>) {
                const V<T> several = sums_of<T>(&found[0][0] + first);
                for (int i = 0; i < LANES<T>; i++) totals[first + i] += several[i];
            }
        } else {
            for (int i = 0; i < R * K; i++) totals[i] += sum_of<T>((&found[0][0])[i]);
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < K; j++) sums[i * columns + j] = totals[i * K + j];
}

template <typename T, int R>
INLINE void rows_of_dots(const T *coefficients, const T *d, const T *a, long columns, long stride, double *sums) {
    in_tiles<VECTORS>(
        columns, [=](long j) { dots<T, R, VECTORS>(coefficients, d, a + j * stride, columns, stride, sums + j); },
        [=](long j) { dots<T, R, 1>(coefficients, d, a + j * stride, columns, stride, sums + j); });
}

// The weighted sums of all gradients, one layer after the other, the bias after the weight.
template <typename T>
static void weighted_sum(const Chain<T> &chain, const T *coefficients, const T *values, double *sums) {
    const long examples = chain.examples, *widths = chain.widths;
    const std::vector<T> ones(examples, T(1));  // a bias is the weight of an input that is always 1
    const T *one = ones.data(), *d = values, *a = values + chain.outputs() * examples;
    for (long layer = 0; layer < chain.layers; layer++) {
        const long outputs = widths[layer + 1], inputs = widths[layer];
        in_tiles<ROWS>(
            outputs,
            [=](long i) { rows_of_dots<T, ROWS>(coefficients, d + i * examples, a, inputs, examples, sums + i * inputs); },
            [=](long i) { rows_of_dots<T, 1>(coefficients, d + i * examples, a, inputs, examples, sums + i * inputs); });
        sums += outputs * inputs;
        if (chain.biases[layer]) {
            in_tiles<ROWS>(
                outputs, [=](long i) { dots<T, ROWS, 1>(coefficients, d + i * examples, one, 1, examples, sums + i); },
                [=](long i) { dots<T, 1, 1>(coefficients, d + i * examples, one, 1, examples, sums + i); });
            sums += outputs;
        }
        d += outputs * examples;
        a += inputs * examples;
    }
}

#define FOR_TYPE(T)                                                                                                  \
    void forward_##T(const Chain<T> *chain, const T *inputs, T *values, T *outputs) {                                \
        forward<T>(*chain, inputs, values, outputs);                                                                 \
    }                                                                                                                \
    bool backward_##T(const Chain<T> *chain, const T *output, const T *gradient, T *values, double *squared_norms) { \
        return backward<T>(*chain, output, gradient, values, squared_norms);                                         \
    }                                                                                                                \
    void weighted_sum_##T(const Chain<T> *chain, const T *coefficients, const T *values, double *sums) {             \
        weighted_sum<T>(*chain, coefficients, values, sums);                                                         \
    }                                                                                                                \
    void folded_bounds_##T(const Chain<T> *chain, const T *values, long places, double *norms, double *magnitudes) { \
        folded_bounds<T>(*chain, values, places, norms, magnitudes);                                                 \
    }                                                                                                                \
    long lanes_##T() { return LANES<T>; }

extern "C" {
FOR_TYPE(float)
FOR_TYPE(double)
}
