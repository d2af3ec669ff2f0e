// Runs rows on core.sv and writes what its MAC array sums, or compares it; all words are int32.
//
// Standard input, a row after another: words of the packet (64 bit each), of the row's own vector and of the activated one
// (MACS bytes each), latency of the memory; then the packet, the vectors, and for each load its words of weights and these.
// Output: of every row its sums, and for each the cycle from the row's begin in which it comes and the sum. With a file
// as argument they are compared with its words instead; exit status 1 at the first difference.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <vector>

#include "Vcore.h"

using Words = std::vector<int32_t>;
static const int WORD = MACS / 4;
static Vcore top;

static bool read_words(Words& words, size_t n) {
    words.resize(n);
    return fread(words.data(), 4, n, stdin) == n;
}

// The memory: a load waits its latency, then its words come evenly over its cycles, after those of the load before.
struct Load { int64_t begin, cycles; };

static void tick() {
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.eval();
}

static void vector(int which, const Words& words) {
    for (size_t i = 0; i < words.size() / WORD; i++) {
        top.vector_valid = 1;
        top.vector_of = which;
        top.vector_at = i;
        std::copy_n(&words[i * WORD], WORD, &top.vector_word[0]);
        tick();
    }
    top.vector_valid = 0;
    (which ? top.activated_words : top.own_words) = words.size() / WORD;
}

// Runs a row until nothing of it is left; what comes is (cycle, sum).
static Words run(const Words& packet, int latency, const std::vector<Words>& tiles) {
    Words found;
    std::deque<Load> loads;
    size_t word = 0, tile = 0, sent = 0;
    int64_t begun = -1, free_at = 0, rest = 64;
    for (int64_t t = 0; rest; t++) {
        top.in_valid = word < packet.size();
        if (top.in_valid) {
            top.in_word = (uint32_t)packet[word] | (uint64_t)(uint32_t)packet[word + 1] << 32;
            top.in_head = word == 0;
            top.in_last = word + 2 == packet.size();
            word += 2;
        }
        top.weight_valid = top.load_done = 0;
        if (!loads.empty() && t >= loads[0].begin) {
            const int64_t passed = t - loads[0].begin + 1, cycles = loads[0].cycles, all = tiles.at(tile).size() / WORD;
            if ((int64_t)sent < passed * all / cycles) {
                top.weight_valid = 1;
                std::copy_n(&tiles[tile][sent++ * WORD], WORD, &top.weight_word[0]);
            }
            if (passed == cycles) {
                top.load_done = 1;
                loads.pop_front();
                tile++;
                sent = 0;
            }
        }
        top.eval();
        if (top.begins) begun = t + 1;
        if (top.load_valid) {
            loads.push_back({std::max(t + latency, free_at), top.load_cycles});
            free_at = loads.back().begin + loads.back().cycles;
        }
        if (top.sum_valid) found.insert(found.end(), {(int32_t)(t - begun), (int32_t)top.sum});
        if (rest < 64 || (begun > 0 && t >= begun && top.finished)) rest--;
        if (t > 100000000) break;
        tick();
    }
    return found;
}

int main(int argc, char** argv) {
    FILE* expected = argc > 1 ? fopen(argv[1], "rb") : nullptr;
    if (argc > 1 && !expected) return fprintf(stderr, "%s can't be read\n", argv[1]), 2;
    top.rst = 1;
    for (int i = 0; i < 2; i++) tick();
    top.rst = 0;
    Words sizes, packet, x, activated, count, wanted(2);
    size_t rows = 0, sums = 0;
    for (; read_words(sizes, 5); rows++) {
        std::vector<Words> tiles(sizes[4]);
        bool whole = read_words(packet, 2 * sizes[0]) && read_words(x, sizes[1] * WORD) && read_words(activated, sizes[2] * WORD);
        for (auto& tile : tiles) whole = whole && read_words(count, 1) && read_words(tile, count[0] * WORD);
        if (!whole) return fprintf(stderr, "a row ends early\n"), 2;
        vector(0, x);
        vector(1, activated);
        const Words found = run(packet, sizes[3], tiles);
        const int32_t n = found.size() / 2;
        if (!expected) {
            fwrite(&n, 4, 1, stdout);
            fwrite(found.data(), 4, found.size(), stdout);
            continue;
        }
        int32_t all = 0;
        if (fread(&all, 4, 1, expected) != 1) return fprintf(stderr, "%s ends early\n", argv[1]), 2;
        for (int32_t i = 0; i < all; i++, sums++) {
            if (fread(wanted.data(), 4, 2, expected) != 2) return fprintf(stderr, "%s ends early\n", argv[1]), 2;
            const int32_t cycle = i < n ? found[2 * i] : -1, sum = i < n ? found[2 * i + 1] : 0;
            if (cycle == wanted[0] && sum == wanted[1]) continue;
            printf("DIFFERENCE: core, layer %zu, row 0, cycle %d: sum %d is %d in cycle %d, expected %d\n", rows, wanted[0], i, sum, cycle, wanted[1]);
            return 1;
        }
        if (n != all) return printf("DIFFERENCE: core, layer %zu, row 0, cycle %d: %d sums, expected %d\n", rows, found[2 * all], n, all), 1;
    }
    if (expected) printf("core: %zu rows, %zu sums: no difference\n", rows, sums);
    return 0;
}
