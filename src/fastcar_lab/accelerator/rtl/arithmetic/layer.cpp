// Runs layers on layer.sv and compares every row with the emulator: core, cycles and outputs. All words are int32.
//
// The first file: the timing of the memory (dram.h), then of each layer: rows, index, words of a row's vector and of the
// activated one, three shifts, width, whether the memory is that DRAM (else beats at the packet's rate), its latency, words
// of the packet, tiles, outputs of gate, up, down; the packet (64 bit each); of each row the cycles that its packet comes
// late, mantissa, exponent and vector; multipliers of the three matrices; of each tile its words and these.
// The second: of each layer its cycles, and of each row core (-1: dropped), first and last word, begin, end, and the
// outputs of one that computes. Exit status 1 at the first difference.
// Without a second file outputs go to standard output.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include <parameters.h>
#include "Vlayer.h"
#include "dram.h"

using Words = std::vector<int32_t>;
const int WORD = MACS / 4, PORTS = WEIGHTS == 0 ? CORES : 1;
static Vlayer top;

static FILE* opened(const char* name) {
    FILE* file = fopen(name, "rb");
    if (!file) fprintf(stderr, "%s can't be read\n", name), exit(2);
    return file;
}

static bool read_words(FILE* file, Words& words, size_t n) {
    words.resize(n);
    return fread(words.data(), 4, n, file) == n;
}

static void need(FILE* file, Words& words, size_t n) {
    if (!read_words(file, words, n)) fprintf(stderr, "a file ends early\n"), exit(2);
}

static void tick() {
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.eval();
}

// A port of any width as 32-bit words: Verilator has integers for the narrow ones.
template <class Port> static uint32_t* words_of(Port& port) { return reinterpret_cast<uint32_t*>(&port); }
template <class Port> static bool bit(const Port& port, int n) { return reinterpret_cast<const uint32_t*>(&port)[n / 32] >> n % 32 & 1; }

static void write(int what, int row, int at, const int32_t* words, int count) {
    top.write = 1;
    top.what = what;
    top.write_row = row;
    top.write_at = at;
    std::memset(&top.write_word, 0, MACS);
    std::memcpy(&top.write_word, words, 4 * count);
    tick();
    top.write = 0;
}

struct Row { int64_t core = -1, first = -1, last = -1, begin = -1, end = -1; Words out; };

// A port of the memory: words under way, each with its cycle.
struct Port {
    Dram dram;
    std::deque<std::pair<int64_t, const int32_t*>> words;
    std::deque<int64_t> ends;
    size_t tile = 0;
    int64_t free_at = 0;
    explicit Port(const Timing& timing) : dram(timing) {}
};

int main(int argc, char** argv) {
    if (argc < 2) return fprintf(stderr, "a file is missing\n"), 2;
    FILE* given = opened(argv[1]);
    const bool print = argc == 2;
    FILE* expected = print ? nullptr : opened(argv[2]);
    Words head, packet, late, scales, numbers, one, wanted;
    need(given, head, 21);
    Timing timing;
    for (int i = 0; i < 21; i++) (&timing.period)[i] = head[i];
    top.rst = 1;
    for (int i = 0; i < 4; i++) tick();
    top.rst = 0;
    size_t layers = 0, outputs = 0;
    int64_t cycles = 0;
    for (; read_words(given, head, 15); layers++) {
        const int rows = head[0], width = head[7];
        const uint32_t index = head[1];
        top.own_words = head[2];
        top.code_words = head[3];
        top.shifts = head[4] | head[5] << 6 | head[6] << 12;
        need(given, packet, 2 * head[10]);
        late.resize(rows);
        for (int r = 0; r < rows; r++) {
            need(given, one, 3);
            late[r] = one[0];
            const int32_t scale = one[1] | one[2] << 16;
            write(1, r, 0, &scale, 1);
            need(given, one, head[2] * WORD);
            for (int w = 0; w < head[2]; w++) write(0, r, w, &one[w * WORD], WORD);
        }
        for (int m = 0; m < 3; m++) {
            need(given, one, head[12 + m]);
            for (int i = 0; i < head[12 + m]; i++) write(2, m, i, &one[i], 1);
        }
        std::vector<Words> tiles(head[11]);
        for (auto& tile : tiles) {
            need(given, one, 1);
            need(given, tile, one[0] * WORD);
        }

        std::vector<Row> found(rows);
        std::deque<int> queued[CORES];
        int running[CORES], at = 0;
        for (int& r : running) r = -1;
        std::vector<Port> ports(PORTS, Port(timing));
        int64_t from = late[0] ? 1 + REMAP + late[0] : 0, t = 0;
        int64_t whole = 100000000;
        if (!print) need(expected, one, 1), whole = one[0];
        int word = 0;
        // Some layers are reset on their way and run again: nothing of them is left.
        int64_t until = !print && layers % 3 == 2 ? whole / 2 : -1;
        for (;; t++) {
            if (t == until) {
                top.rst = 1;
                tick();
                top.rst = 0;
                found.assign(rows, Row());
                std::vector<Port>(PORTS, Port(timing)).swap(ports);
                for (int c = 0; c < CORES; c++) queued[c].clear(), running[c] = -1;
                at = word = t = 0;
                until = -1;
                from = late[0] ? 1 + REMAP + late[0] : 0;
            }
            top.start = t == 0;
            top.index = index;
            top.rows = rows;
            top.in_valid = at < rows && t >= from;
            top.in_word = (uint32_t)packet[2 * word] | (uint64_t)(uint32_t)packet[2 * word + 1] << 32;
            if (!word) top.in_word = (top.in_word & ~0xff0000ull) | (uint64_t)at << 16;
            uint32_t valid = 0, done = 0;
            for (int p = 0; p < PORTS; p++) {
                Port& port = ports[p];
                if (!port.words.empty() && port.words[0].first == t) {
                    valid |= 1u << p;
                    std::memcpy(words_of(top.weight_word) + p * WORD, port.words[0].second, MACS);
                    port.words.pop_front();
                }
                if (!port.ends.empty() && port.ends[0] == t) {
                    done |= 1u << p;
                    port.ends.pop_front();
                }
            }
            top.weight_valid = valid;
            top.load_done = done;
            top.eval();
            if (top.out_of_step) return printf("DIFFERENCE: layer %zu, row 0, cycle %" PRId64 ": cores of a round are out of step\n", layers, t), 1;
            for (int c = 0; c < CORES; c++) {
                if (bit(top.out_valid, c) && running[c] >= 0)
                    for (int l = 0; l < LANES; l++) found[running[c]].out.push_back(words_of(top.out)[c * LANES + l]);
                if (t && bit(top.finished, c) && running[c] >= 0) {
                    found[running[c]].end = t;
                    running[c] = -1;
                }
                if (bit(top.go, c)) {
                    if (queued[c].empty()) return printf("DIFFERENCE: layer %zu, row %d, cycle %" PRId64 ": core %d starts without a packet\n", layers, std::min(at, rows - 1), t, c), 1;
                    running[c] = queued[c].front();
                    queued[c].pop_front();
                    found[running[c]].begin = t + 1;
                }
            }
            for (int p = 0; p < PORTS; p++) if (bit(top.ask, p)) {
                Port& port = ports[p];
                const Words& tile = tiles[port.tile];
                port.tile = (port.tile + 1) % tiles.size();
                const int64_t count = tile.size() / WORD, asked = t + head[9];
                int64_t length = 0;
                for (int b = 0; b < 29; b++) length |= (int64_t)bit(top.load_cycles, 29 * p + b) << b;
                std::deque<int64_t> when;
                if (head[8]) {
                    when = port.dram.serve(asked, count, MACS);
                } else {
                    const int64_t begin = std::max(asked, port.free_at);
                    for (int64_t w = 1; w <= count; w++) when.push_back(begin + (w * length + count - 1) / count - 1);
                    port.free_at = begin + length;
                }
                for (int64_t w = 0; w < count; w++) port.words.push_back({when[w], &tile[w * WORD]});
                port.ends.push_back(when.back());
            }
            const bool over = t && top.done;
            if (top.in_valid && top.in_ready && !over) {
                int core = -1;
                for (int c = 0; c < CORES; c++) if (bit(top.sent, c)) core = c;
                Row& row = found[at];
                if (!word) row.first = t, row.core = core;
                if (core != row.core) return printf("DIFFERENCE: layer %zu, row %d, cycle %" PRId64 ": a word goes to another core\n", layers, at, t), 1;
                row.last = t;
                if (++word == head[10] || top.skip) {
                    if (row.core >= 0) queued[row.core].push_back(at);
                    at++;
                    from = at < rows && late[at] ? t + (top.skip ? DROP : 1) + late[at] : 0;
                    word = 0;
                }
            }
            if (over || t > whole + 100000) break;
            tick();
        }
        cycles += t;
        if (print) {
            for (Row& row : found) fwrite(row.out.data(), 4, row.out.size(), stdout);
            continue;
        }
        for (int r = 0; r < rows; r++) {
            Row& row = found[r];
            need(expected, one, 5);
            const int64_t values[] = {row.core, row.first, row.last, row.begin, row.end};
            const char* names[] = {"core", "first word in cycle", "last word in cycle", "begins in cycle", "ends in cycle"};
            // A dropped packet is jumped over from its header on.
            for (int i = 0; i < 5; i++) if (values[i] != one[i] && !(i == 2 && one[0] < 0))
                return printf("DIFFERENCE: layer %zu, row %d, cycle %d: %s %" PRId64 ", expected %d (%d cores)\n", layers, r, one[1], names[i], values[i], one[i], CORES), 1;
            if (one[0] < 0) continue;
            need(expected, wanted, width);
            for (int i = 0; i < width; i++, outputs++) {
                const bool there = i < (int)row.out.size();
                if (!there || row.out[i] != wanted[i])
                    return printf("DIFFERENCE: layer %zu, row %d, cycle %d: output %d is %d, expected %d (%d cores)\n", layers, r, one[4], i, there ? row.out[i] : 0, wanted[i], CORES), 1;
            }
            if ((int)row.out.size() != width) return printf("DIFFERENCE: layer %zu, row %d, cycle %d: %zu outputs, expected %d\n", layers, r, one[4], row.out.size(), width), 1;
        }
        if (t != whole) return printf("DIFFERENCE: layer %zu, row %d, cycle %" PRId64 ": the layer ends, expected %" PRId64 "\n", layers, rows - 1, t, whole), 1;
    }
    if (!print) printf("layer, %d cores, weights %d: %zu layers, %zu outputs, %" PRId64 " cycles of RTL: no difference\n", CORES, WEIGHTS, layers, outputs, cycles);
    return 0;
}
