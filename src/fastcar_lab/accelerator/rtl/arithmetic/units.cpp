// Feeds the parts of units.sv from a file and compares what they give with another, or writes it to standard output.
//
// All words are int32; a request is its number, a count n and its arrays, one after another:
//   1 sums: n outputs; each is its terms k, then k inputs, then k weights               -> n sums
//   2 requantise: n sums, n multipliers, n mantissas, n shifts                          -> n numbers
//   3 activate: n gates, n ups                                                          -> n numbers
//   4 code: n numbers                                                                   -> mantissa, drop, n codes
// Gaps of random length lie between the inputs. What does not come when it should is an error; exit status 1 at the first
// difference.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include <parameters.h>
#include "Vunits.h"

using Words = std::vector<int32_t>;
static std::mt19937 randomness(1);
static Vunits top;
static FILE* given;

static bool gap() { return randomness() % 4 == 0; }

static void tick() {
    top.clk = 0;
    top.eval();
    top.clk = 1;
    top.eval();
}

static Words read_words(size_t n) {
    Words words(n);
    if (n && fread(words.data(), 4, n, given) != n) exit(2);
    return words;
}

static void expect(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "DIFFERENCE: %s\n", what);
    exit(1);
}

// Offers n inputs with gaps between them, then waits; `offer(i)` sets the ports, `take` is called after every cycle.
template <class Offer, class Quiet, class Take>
static void stream(size_t n, Offer offer, Quiet quiet, Take take) {
    for (size_t i = 0; i < n;) {
        if (gap()) {
            quiet();
        } else {
            offer(i++);
        }
        tick();
        take();
    }
    quiet();
    for (int i = 0; i < 16; i++) {
        tick();
        take();
    }
}

template <class Valid, class Out, class Offer, class Quiet>
static Words through(size_t n, Offer offer, Quiet quiet, Valid valid, Out out) {
    Words found;
    stream(n, offer, quiet, [&] { if (valid()) found.push_back(out()); });
    expect(found.size() == n, "as many results as inputs were expected");
    return found;
}

// Sets a port of MACS bytes to those given, zeros behind them; with none, to anything.
template <class Port>
static void put(Port& port, const int32_t* bytes, size_t count) {
    for (int w = 0; w < MACS / 4; w++) {
        uint32_t packed = bytes ? 0 : randomness();
        for (size_t b = 4 * w; bytes && b < std::min<size_t>(count, 4 * w + 4); b++) packed |= (bytes[b] & 255u) << 8 * (b % 4);
        port[w] = packed;
    }
}

static Words sums(size_t n) {
    Words found;
    auto take = [&] { if (top.mac_done) found.push_back(static_cast<int32_t>(top.mac_sum)); };
    for (size_t o = 0; o < n; o++) {
        const size_t k = read_words(1)[0];
        const Words x = read_words(k), weights = read_words(k);
        for (size_t i = 0; i < k;) {
            // What is at the ports without `valid` must not matter.
            const bool valid = top.mac_valid = !gap();
            top.mac_first = valid ? i == 0 : randomness() & 1;
            top.mac_last = valid ? i + MACS >= k : randomness() & 1;
            put(top.mac_x, valid ? &x[i] : nullptr, k - i);
            put(top.mac_weights, valid ? &weights[i] : nullptr, k - i);
            if (valid) i += MACS;
            tick();
            take();
        }
    }
    top.mac_valid = 0;
    for (int i = 0; i < 32; i++) {
        tick();
        take();
    }
    expect(found.size() == n, "as many sums as outputs were expected");
    return found;
}

static Words requantise(size_t n) {
    const Words sum = read_words(n), multiplier = read_words(n), mantissa = read_words(n), by = read_words(n);
    return through(
        n,
        [&](size_t i) {
            top.requantise_valid = 1;
            top.requantise_sum = sum[i];
            top.requantise_multiplier = multiplier[i];
            top.requantise_mantissa = mantissa[i];
            top.requantise_by = by[i];
        },
        [] { top.requantise_valid = 0; }, [] { return top.requantise_out_valid; }, [] { return top.requantise_out; });
}

static Words activate(size_t n) {
    const Words gate = read_words(n), up = read_words(n);
    return through(
        n,
        [&](size_t i) {
            top.activate_valid = 1;
            top.activate_gate = gate[i];
            top.activate_up = up[i];
        },
        [] { top.activate_valid = 0; }, [] { return top.activate_out_valid; }, [] { return top.activate_out; });
}

static Words code(size_t n) {
    const Words x = read_words(n);
    top.coder_clear = 1;
    tick();
    top.coder_clear = 0;
    stream(n, [&](size_t i) { top.coder_measure = 1, top.coder_x = x[i]; }, [] { top.coder_measure = 0; }, [] {});
    top.coder_fix = 1;
    tick();
    top.coder_fix = 0;
    Words found{static_cast<int32_t>(top.coder_mantissa), static_cast<int32_t>(top.coder_drop)};
    const Words codes = through(
        n, [&](size_t i) { top.coder_valid = 1, top.coder_x = x[i]; }, [] { top.coder_valid = 0; },
        [] { return top.coder_out_valid; }, [] { return static_cast<int8_t>(top.coder_q); });
    found.insert(found.end(), codes.begin(), codes.end());
    return found;
}

// Whether results are those of the file; prints the first that is not, by part and place.
static bool same(const Words& found, FILE* expected, const char* part) {
    Words wanted(found.size());
    expect(fread(wanted.data(), 4, wanted.size(), expected) == wanted.size(), "more results than were expected");
    for (size_t i = 0; i < found.size(); i++) {
        if (found[i] == wanted[i]) continue;
        printf("DIFFERENCE: arithmetic, %s, number %zu: %d, expected %d\n", part, i, found[i], wanted[i]);
        return false;
    }
    return true;
}

int main(int argc, char** argv) {
    given = argc > 1 ? fopen(argv[1], "rb") : nullptr;
    FILE* expected = argc > 2 ? fopen(argv[2], "rb") : nullptr;
    expect(given && (argc == 2 || expected), "a file can't be read");
    top.reset = 1;
    for (int i = 0; i < 16; i++) tick();
    top.reset = 0;
    const char* parts[] = {"mac_array", "requantise", "activate", "coder"};
    size_t count = 0;
    int32_t request[2];
    while (fread(request, 4, 2, given) == 2) {
        const size_t n = request[1];
        const Words found = request[0] == 1   ? sums(n)
                            : request[0] == 2 ? requantise(n)
                            : request[0] == 3 ? activate(n)
                                              : code(n);
        if (!expected) fwrite(found.data(), 4, found.size(), stdout);
        else if (!same(found, expected, parts[request[0] - 1])) return 1;
        count += found.size();
    }
    if (expected) printf("arithmetic: %zu numbers: no difference\n", count);
    return 0;
}
