// Runs layers.csv on the verilated accelerator and compares every row with expected.csv.
// Ends with status 1 at the first difference and names layer, row and cycle.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <deque>
#include <map>
#include <vector>
#include "Vaccelerator.h"
#include "verilated.h"
#ifdef SAIF
#include "verilated_saif_c.h"
#endif
// By the order of the compiler's folders: each machine has its own.
#include <parameters.h>

using Words = std::vector<uint64_t>;
const int64_t NEVER = -1;

struct Row { int row; int64_t core, first, last, begin, end; };
struct Layer { std::string name; uint32_t index; int rows, packet; int64_t cycles; std::vector<Row> expected; std::map<int, int> gaps; };

static std::vector<std::vector<std::string>> table(const char* file) {
  std::ifstream in(file);
  if (!in) { fprintf(stderr, "%s can't be read\n", file); exit(2); }
  std::vector<std::vector<std::string>> rows;
  std::string line, cell;
  std::getline(in, line);
  while (std::getline(in, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::vector<std::string> cells;
    std::stringstream parts(line);
    while (std::getline(parts, cell, ',')) cells.push_back(cell);
    rows.push_back(cells);
  }
  return rows;
}

static int64_t number(const std::vector<std::string>& row, size_t column) {
  return column < row.size() && !row[column].empty() ? std::stoll(row[column]) : NEVER;
}

static Words packet(int which) {
  std::ifstream in("packet_" + std::to_string(which) + ".hex");
  Words words;
  std::string line;
  while (std::getline(in, line)) if (!line.empty()) words.push_back(std::stoull(line, nullptr, 16));
  if (words.empty()) { fprintf(stderr, "packet_%d.hex can't be read\n", which); exit(2); }
  return words;
}

static bool difference(const Layer& layer, int row, int64_t cycle, const std::string& what) {
  printf("DIFFERENCE: %s, row %d, cycle %" PRId64 ": %s (machine of %d cores)\n", layer.name.c_str(), row, cycle, what.c_str(), CORES);
  return false;
}

static std::string text(int64_t n) { return n == NEVER ? "none" : std::to_string(n); }

// Whether a row's cycle or core is the expected one; `at` is the cycle to name where it is a core.
static bool same(const Layer& layer, int row, const char* what, int64_t found, int64_t expected, int64_t at = NEVER) {
  if (found == expected) return true;
  if (at == NEVER) at = found == NEVER ? expected : found;
  return difference(layer, row, at, what + (" " + text(found)) + ", expected " + text(expected));
}

// Runs one layer; its first cycle is the one that the model is in. In cycle `until` a cycle of reset ends it. Returns
// whether it is as expected.
static bool run(Vaccelerator* top, VerilatedContext* context, const Layer& layer, const Words& words, int64_t& total, void (*dump)(VerilatedContext*), int64_t until = NEVER) {
  std::vector<Row> rows(layer.rows);
  for (int r = 0; r < layer.rows; r++) rows[r] = {r, NEVER, NEVER, NEVER, NEVER, NEVER};
  std::deque<int> queued[CORES];
  int running[CORES], at = 0;
  for (int& r : running) r = -1;
  size_t word = 0;
  auto gap_of = [&](int row) { auto g = layer.gaps.find(row); return g == layer.gaps.end() ? 0 : g->second; };
  // A late packet is late from the cycle on in which it could have come first.
  int64_t from = gap_of(0) ? 1 + REMAP + gap_of(0) : 0;
  for (int64_t t = 0;; t++) {
    top->start = t == 0;
    top->index = layer.index;
    top->rows = layer.rows;
    top->in_valid = at < layer.rows && t >= from;
    top->in_word = word ? words[word] : (words[0] & ~0xff0000ull) | (uint64_t)at << 16;
    top->rst = t == until;
    top->eval();
    if (t == 0 && !same(layer, 0, "bits of the Index Register", top->index_bits, INDEX_BITS, 0)) return false;
    // The first Mapping Register is written in cycle 1.
    if (t == 1 && !same(layer, 0, "bits of a Mapping Register", top->mapping_bits, MAPPING_BITS, 1)) return false;
    if (top->out_of_step) return difference(layer, std::max(running[0], 0), t, "cores of a round are out of step");
    for (int c = 0; c < CORES; c++) if (t && top->finished >> c & 1) {
      int row = ((const uint8_t*)&top->row)[c];
      if (running[c] < 0 || row != running[c]) return difference(layer, row, t, "core " + text(c) + " finishes it and does not run it");
      rows[row].end = t;
      running[c] = -1;
    }
    for (int c = 0; c < CORES; c++) if (top->go >> c & 1) {
      if (queued[c].empty() || running[c] >= 0) return difference(layer, std::min(at, layer.rows - 1), t, "core " + text(c) + " starts without a packet");
      running[c] = queued[c].front();
      queued[c].pop_front();
      rows[running[c]].begin = t + 1;
    }
    bool done = t && top->done;
    if (top->in_valid && top->in_ready && !done) {
      int core = -1, count = 0;
      for (int c = 0; c < CORES; c++) if (top->sent >> c & 1) { core = c; count++; }
      Row& row = rows[at];
      if (!word) { row.first = t; row.core = core; }
      if (count > 1 || core != row.core) return difference(layer, at, t, "a word goes to another core");
      row.last = t;
      if (++word == words.size() || top->skip) {
        if (row.core >= 0) queued[row.core].push_back(at);
        from = gap_of(++at) ? t + (top->skip ? DROP : 1) + gap_of(at) : 0;
        word = 0;
      }
    }
    const bool hangs = t > layer.cycles + 100000;
    if (done || hangs) {
      total += t;
      // The earliest difference is the first.
      const Row* earliest = nullptr;
      auto equal = [](const Row& a, const Row& b) { return a.core == b.core && a.first == b.first && (a.core < 0 || (a.last == b.last && a.begin == b.begin && a.end == b.end)); };
      for (const Row& e : layer.expected) if (!equal(rows[e.row], e) && (!earliest || e.first < earliest->first)) earliest = &e;
      if (earliest) {
        const Row& e = *earliest; const Row& f = rows[e.row];
        return same(layer, e.row, "first word in cycle", f.first, e.first) && same(layer, e.row, "core", f.core, e.core, e.first) &&
               same(layer, e.row, "last word in cycle", f.last, e.last) && same(layer, e.row, "begins in cycle", f.begin, e.begin) &&
               same(layer, e.row, "ends in cycle", f.end, e.end);
      }
      if (hangs) return difference(layer, std::min(at, layer.rows - 1), t, "the layer continues, expected its end in cycle " + text(layer.cycles));
      return same(layer, layer.rows - 1, "layer ends in cycle", t, layer.cycles);
    }
    top->clk = 1; top->eval(); dump(context); context->timeInc(1);
    top->clk = 0; top->eval(); dump(context); context->timeInc(1);
    if (t == until) {
      top->rst = 0;
      top->eval();
      return !top->done || difference(layer, 0, t, "a layer is done after a reset");
    }
  }
}

#ifdef SAIF
static VerilatedSaifC* saif;
static void dump(VerilatedContext* context) { saif->dump(context->time()); }
#else
static void dump(VerilatedContext*) {}
#endif

int main(int argc, char** argv) {
  size_t most = argc > 1 ? strtoull(argv[1], nullptr, 10) : SIZE_MAX;
  std::vector<Layer> layers;
  std::map<int, Words> packets;
  for (auto& r : table("layers.csv")) {
    Layer layer{r[1].empty() ? "random layer " + r[2] : "layer " + r[2] + " of pass " + r[1], (uint32_t)std::stoul(r[3], nullptr, 16), (int)number(r, 4), (int)number(r, 5), number(r, 6), {}, {}};
    if (!packets.count(layer.packet)) packets[layer.packet] = packet(layer.packet);
    layers.push_back(layer);
  }
  for (auto& r : table("expected.csv")) layers.at(number(r, 0)).expected.push_back({(int)number(r, 3), number(r, 4), number(r, 5), number(r, 6), number(r, 7), number(r, 8)});
  for (auto& r : table("gaps.csv")) layers.at(number(r, 0)).gaps[number(r, 1)] = number(r, 2);
  VerilatedContext context;
  Vaccelerator top(&context);
#ifdef SAIF
  context.traceEverOn(true);
  saif = new VerilatedSaifC;
  top.trace(saif, 99);
  saif->open("activity.saif");
#endif
  top.rst = 1; top.start = 0; top.in_valid = 0;
  for (int i = 0; i < 4; i++) { top.clk = i & 1; top.eval(); }
  top.clk = 0; top.rst = 0; top.eval();
  int64_t total = 0;
  size_t done = 0, rows = 0;
  for (const Layer& layer : layers) {
    if (done == most) break;
    // Whatever a reset finds under way, nothing of it is left.
    if (done % 4 == 3 && layer.cycles && !run(&top, &context, layer, packets[layer.packet], total, dump, layer.cycles / 2)) return 1;
    if (!run(&top, &context, layer, packets[layer.packet], total, dump)) return 1;
    done++;
    rows += layer.expected.size();
  }
#ifdef SAIF
  saif->close();
#endif
  printf("%d cores: %zu layers, %zu rows, %" PRId64 " cycles of RTL: no difference\n", CORES, done, rows, total);
  return 0;
}
