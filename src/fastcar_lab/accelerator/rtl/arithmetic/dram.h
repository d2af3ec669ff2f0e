// One channel of a memory as device.py has it, in whole picoseconds, and the words that it gives in cycles of the cores.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

struct Timing {
    int64_t period, across, columns, groups, banks, in_rows, ahead, port, ccd_s, ccd_l, data;
    int64_t rcd, rp, ras, rtp, rrd_s, rrd_l, faw, cl, rfc, refi;
};

class Dram {
    struct Open { int64_t row, activated, read; };
    const Timing t;
    std::map<std::pair<int64_t, int64_t>, Open> open;
    std::deque<std::pair<int64_t, int64_t>> activated{4, {-1000000000, 0}};
    std::deque<int64_t> delivered;
    std::pair<int64_t, int64_t> last{-1000000000, 0};
    int64_t refreshes = 0, closed = 0, bursts = 0, passed = 0, there = 0, fresh = -1;

    int64_t command(int64_t at, std::pair<int64_t, int64_t> bank, int64_t row) {
        const int64_t earliest = std::max({at, closed, last.first + (last.second == bank.first ? t.ccd_l : t.ccd_s)});
        const auto held = open.find(bank);
        fresh = -1;
        if (held != open.end() && held->second.row == row) return std::max(earliest, held->second.activated + t.rcd);
        int64_t ready = std::max(at, closed);
        if (held != open.end()) ready = std::max({ready, held->second.read + t.rtp, held->second.activated + t.ras}) + t.rp;
        const auto before = activated.back();
        fresh = std::max({ready, before.first + (before.second == bank.first ? t.rrd_l : t.rrd_s), activated.front().first + t.faw});
        return std::max(earliest, fresh + t.rcd);
    }

    // When the next burst has passed the port.
    int64_t read(int64_t at) {
        const int64_t burst = bursts++;
        at = std::max(at, delivered.front());
        const int64_t group = t.in_rows ? burst / t.columns % t.groups : burst % t.groups;
        const int64_t rest = burst / t.groups / t.columns;
        const std::pair<int64_t, int64_t> bank{group, rest % t.banks};
        const int64_t row = rest / t.banks;
        int64_t when;
        while ((when = command(at, bank, row)) >= (refreshes + 1) * t.refi) {
            refreshes++;
            closed = std::max(refreshes * t.refi, last.first + t.rtp) + (open.empty() ? 0 : t.rp) + t.rfc;
            open.clear();
        }
        if (fresh >= 0) {
            activated.pop_front();
            activated.push_back({fresh, group});
        }
        const int64_t since = fresh >= 0 ? fresh : open[bank].activated;
        open[bank] = {row, since, when};
        last = {when, group};
        const int64_t done = std::max(when + t.cl + t.data, delivered.back() + t.port);
        delivered.pop_front();
        delivered.push_back(done);
        return done;
    }

  public:
    explicit Dram(const Timing& timing) : t(timing), delivered(timing.ahead, 0) {}

    // The cycles of the words of a tile that is requested in cycle `at`; `bytes` are those of a word.
    std::deque<int64_t> serve(int64_t at, int64_t words, int64_t bytes) {
        std::deque<int64_t> cycles;
        int64_t fetched = 0;
        for (int64_t w = 1; w <= words; w++) {
            for (; fetched < w * bytes; fetched += t.across) there = read(at * t.period);
            passed = std::max(passed, (there + t.period - 1) / t.period);
            cycles.push_back(passed++);
        }
        return cycles;
    }
};
