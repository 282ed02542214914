// The chain's kernel on random shapes, every array exactly as large as it says: for a build with sanitizers.
// With an argument there is no room for the last vector of the last row, and the sanitizer must speak.

#include KERNEL

#include <cstdio>
#include <random>

template <typename T> static std::vector<T> numbers(long count, std::mt19937 &source) {
    std::vector<T> drawn(count);
    for (T &number : drawn) number = std::uniform_int_distribution<int>(-3, 3)(source);
    drawn.shrink_to_fit();
    return drawn;
}

template <typename T> static void pass(std::mt19937 &source, long vectors_of_room) {
    const auto between = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(source); };
    const long layers = between(1, 5), examples = between(1, 150);
    std::vector<long> widths = {between(1, 20)};
    std::vector<unsigned char> rectified;
    std::vector<std::vector<T>> weights, biases;
    std::vector<const T *> to_weights, to_biases;
    long rows = 0, sums = 0;
    for (long layer = 0; layer < layers; layer++) {
        const long inputs = widths.back(), outputs = between(1, 20), biased = between(0, 1);
        widths.push_back(outputs);
        rectified.push_back(between(0, 1));
        weights.push_back(numbers<T>(inputs * outputs, source));
        biases.push_back(numbers<T>(biased * outputs, source));
        to_weights.push_back(weights.back().data());
        to_biases.push_back(biased ? biases.back().data() : nullptr);
        rows += inputs + outputs;
        sums += (inputs + biased) * outputs;
    }
    const Chain<T> chain = {layers, widths.data(), rectified.data(), to_weights.data(), to_biases.data(), examples};
    const std::vector<T> inputs = numbers<T>(examples * widths[0], source);
    std::vector<T> values(rows * examples + vectors_of_room * LANES<T>), output(examples * widths[layers]);
    const std::vector<T> coefficients = numbers<T>(examples, source);
    std::vector<double> squares(examples), total(sums);
    forward<T>(chain, inputs.data(), values.data(), output.data());
    backward<T>(chain, output.data(), output.data(), values.data(), squares.data());
    weighted_sum<T>(chain, coefficients.data(), values.data(), total.data());
    for (long places = 1; places <= examples; places++) {
        if (examples % places) continue;
        std::vector<double> norms(examples / places), magnitudes(examples / places);
        folded_bounds<T>(chain, values.data(), places, norms.data(), magnitudes.data());
    }
}

int main(int arguments, char **) {
    std::mt19937 source(1);
    for (int turn = 0; turn < 300; turn++) {
        pass<float>(source, arguments == 1);
        pass<double>(source, arguments == 1);
    }
    std::puts("within bounds");
}
