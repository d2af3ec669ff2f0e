// How a team runs a stage. The leader publishes the stage as chunks, and every member claims one after another: first
// its own share of neighbouring chunks, so that it reads memory in order, then chunks of other shares. Only a claimed
// chunk must be waited for. If that takes long, the helper has lost its core to other work; then the leader sleeps
// until the chunk is done. Where the leader is off its core, asleep or preempted, for a large part of a pass or of the
// passes' time, it works alone for a while and tries the team again later.
#include "team.h"

#include <stdint.h>

#ifdef _WIN32
#include <windows.h>

int64_t monotonic_ns() {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return int64_t(double(ticks.QuadPart) * 1e9 / double(per_second.QuadPart));
}

// One thread only: the helpers are written for POSIX threads.
Team::Team(int64_t) : members(1) {}
Team::~Team() {}
void Team::run(int64_t chunks, void (*work)(void*, int64_t), void* context) {
    for (int64_t i = 0; i < chunks; i++) work(context, i);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_ns(clockid_t id) {
    timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * int64_t(1000000000) + t.tv_nsec;
}

int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

namespace {

constexpr int64_t MAX_MEMBERS = 64;
constexpr int64_t MICROSECOND = 1000, MILLISECOND = 1000 * MICROSECOND;
// A helper without work spins this long before it parks.
constexpr int64_t SPIN_TIME = 300 * MICROSECOND;
// A helper that takes this much longer than LONG_CHUNKS chunks of the leader has lost its core.
constexpr int64_t STALL = 400 * MICROSECOND, LONG_CHUNKS = 2;
// The loss is judged over this much time of passes, and is too much above one part in TOLERATED_LOSS. Within a pass the
// leader works alone until so much of it was lost at most.
constexpr int64_t WINDOW = 20 * MILLISECOND, TOLERATED_LOSS = 4;
// How long the leader works alone after such a window; doubled each time the next window is as bad.
constexpr int64_t SHORTEST_SOLO = 50 * MILLISECOND, LONGEST_SOLO = 1600 * MILLISECOND;
constexpr timespec STALLED_SLEEP{0, 100 * MICROSECOND};
// Reading the clock is slow beside a spin.
constexpr int SPINS_PER_CLOCK_READ = 64;

// Time for which the calling thread had a core.
int64_t cpu_time() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <class T>
T atomic_load(const T& at) {
    return __atomic_load_n(&at, __ATOMIC_SEQ_CST);
}
template <class T>
void atomic_store(T& at, T value) {
    __atomic_store_n(&at, value, __ATOMIC_SEQ_CST);
}

// A member's share of the open stage: the number of the stage in the upper half, the chunks left in the lower half. The
// number keeps a member that was preempted during a claim from claiming a chunk of a later stage.
struct alignas(64) Ticket {
    uint64_t value;
};
constexpr uint64_t CHUNKS_LEFT = 0xFFFFFFFF;

// What a parked helper waits on.
struct alignas(64) Sleeper {
    pthread_mutex_t mutex;
    pthread_cond_t wakeup;
    int parked;
};

Ticket tickets[MAX_MEMBERS];
Sleeper sleepers[MAX_MEMBERS];
alignas(64) int64_t chunks_done;
// The open stage: written before its tickets, read only after a claim. A claimed chunk keeps the stage open.
alignas(64) int64_t members, chunks;
void (*work)(void*, int64_t);
void* context;
uint64_t stage;

// Lock of the helpers: the process whose pass uses them, or 0.
alignas(64) pid_t pass_owner;
int64_t helpers;
// The process that the helpers belong to: a forked child has none of its parent's threads.
pid_t helpers_process;
int64_t solo_until, solo_time;
// When the open pass began, on the clock and in CPU time, and until when its leader works alone; time of this window's
// passes, and how much of it was lost.
int64_t pass_start, cpu_time_at_start, alone_until, window_time, window_lost;

// How long the leader of the open pass was off its core.
int64_t pass_lost() { return monotonic_ns() - pass_start - (cpu_time() - cpu_time_at_start); }

// Counts a pass into its window; at the window's end decides whether the leader works alone for a while.
void count_pass() {
    int64_t t = monotonic_ns();
    window_time += t - pass_start;
    window_lost += pass_lost();
    if (window_time < WINDOW) return;
    if (window_lost * TOLERATED_LOSS > window_time) {
        solo_time = solo_time ? 2 * solo_time : SHORTEST_SOLO;
        if (solo_time > LONGEST_SOLO) solo_time = LONGEST_SOLO;
        solo_until = t + solo_time;
    } else {
        solo_time = 0;
    }
    window_time = window_lost = 0;
}

// Claims a chunk of the open stage for this member; returns its number, or -1 when none is left.
int64_t claim_chunk(int64_t member) {
    int64_t count = __atomic_load_n(&members, __ATOMIC_RELAXED);
    for (int64_t k = 0; member < count && k < count; k++) {
        int64_t owner = (member + k) % count;
        uint64_t ticket = atomic_load(tickets[owner].value);
        while (ticket & CHUNKS_LEFT) {
            if (__atomic_compare_exchange_n(&tickets[owner].value, &ticket, ticket - 1, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
                return chunks * (owner + 1) / members - int64_t(ticket & CHUNKS_LEFT);
        }
    }
    return -1;
}

// Whether a chunk of the open stage is left for this member.
bool has_work(int64_t member) {
    int64_t count = __atomic_load_n(&members, __ATOMIC_RELAXED);
    for (int64_t owner = 0; member < count && owner < count; owner++)
        if (atomic_load(tickets[owner].value) & CHUNKS_LEFT) return true;
    return false;
}

// Runs the chunks that this member can claim; returns how many there were.
int64_t run_chunks(int64_t member) {
    int64_t count = 0;
    for (int64_t i = claim_chunk(member); i >= 0; i = claim_chunk(member)) {
        work(context, i);
        __atomic_fetch_add(&chunks_done, 1, __ATOMIC_SEQ_CST);
        count++;
    }
    return count;
}

// Blocks until a stage is published.
void park(int64_t member) {
    Sleeper& sleeper = sleepers[member];
    atomic_store(sleeper.parked, 1);
    // The leader publishes a stage before it checks who is parked, so one of the two sees the other's store.
    if (has_work(member)) {
        atomic_store(sleeper.parked, 0);
        return;
    }
    pthread_mutex_lock(&sleeper.mutex);
    while (atomic_load(sleeper.parked)) pthread_cond_wait(&sleeper.wakeup, &sleeper.mutex);
    pthread_mutex_unlock(&sleeper.mutex);
}

void wake(int64_t member) {
    Sleeper& sleeper = sleepers[member];
    if (!atomic_load(sleeper.parked)) return;
    pthread_mutex_lock(&sleeper.mutex);
    atomic_store(sleeper.parked, 0);
    pthread_cond_signal(&sleeper.wakeup);
    pthread_mutex_unlock(&sleeper.mutex);
}

void* helper_loop(void* member) {
    for (;;) {
        int64_t wait_start = monotonic_ns();
        for (int spins = 0; !run_chunks(intptr_t(member)); spin_pause()) {
            if (++spins % SPINS_PER_CLOCK_READ) continue;
            // The leader may be waiting for this core.
            sched_yield();
            if (monotonic_ns() - wait_start > SPIN_TIME) {
                park(intptr_t(member));
                break;
            }
        }
    }
    return nullptr;
}

// Sets the state of a process without an open pass and without helpers.
void reset() {
    for (int64_t i = 0; i < MAX_MEMBERS; i++) {
        tickets[i].value = 0;
        sleepers[i].parked = 0;
        pthread_mutex_init(&sleepers[i].mutex, nullptr);
        pthread_cond_init(&sleepers[i].wakeup, nullptr);
    }
    helpers = 0;
    solo_until = solo_time = window_time = window_lost = 0;
    helpers_process = getpid();
}

// Spawns helpers until there are `wanted` or the system allows no more. Signals are left to the program's own threads.
void spawn_helpers(int64_t wanted) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t options;
    pthread_attr_init(&options);
    pthread_attr_setdetachstate(&options, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&options, 512 << 10);
    for (pthread_t thread; helpers < wanted; helpers++)
        if (pthread_create(&thread, &options, helper_loop, reinterpret_cast<void*>(helpers + 1))) break;
    pthread_attr_destroy(&options);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace

Team::Team(int64_t threads) : members(1) {
    if (threads <= 1) return;
    // A forked child takes over the lock of a pass that its parent had open.
    int owner = 0;
    while (!__atomic_compare_exchange_n(&pass_owner, &owner, getpid(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        if (owner == getpid()) return;
    if (helpers_process != getpid()) reset();
    if (threads > MAX_MEMBERS) threads = MAX_MEMBERS;
    if (helpers < threads - 1) spawn_helpers(threads - 1);
    if (threads > helpers + 1) threads = helpers + 1;
    if (threads == 1 || monotonic_ns() < solo_until) {
        atomic_store(pass_owner, pid_t(0));
        return;
    }
    members = threads;
    pass_start = monotonic_ns();
    cpu_time_at_start = cpu_time();
    alone_until = 0;
}

Team::~Team() {
    if (members == 1) return;
    count_pass();
    atomic_store(pass_owner, pid_t(0));
}

void Team::run(int64_t count, void (*body)(void*, int64_t), void* argument) {
    if (alone_until && monotonic_ns() < alone_until) {
        for (int64_t i = 0; i < count; i++) body(argument, i);
        return;
    }
    ::chunks = count;
    ::work = body;
    ::context = argument;
    __atomic_store_n(&::members, members, __ATOMIC_RELAXED);
    atomic_store(chunks_done, int64_t(0));
    stage++;
    for (int64_t i = 0; i < members; i++)
        atomic_store(tickets[i].value, stage << 32 | uint64_t(count * (i + 1) / members - count * i / members));
    for (int64_t i = 1; i < members; i++) wake(i);
    int64_t start = monotonic_ns();
    int64_t own = run_chunks(0);
    if (atomic_load(chunks_done) == count) return;
    int64_t wait_start = monotonic_ns(), chunk = (wait_start - start) / (own ? own : 1);
    bool stalled = false;
    for (int spins = 0; atomic_load(chunks_done) < count; spin_pause()) {
        // A thread that sleeps keeps its claim to a core; one that spins uses it up.
        if (stalled) nanosleep(&STALLED_SLEEP, nullptr);
        if (++spins % SPINS_PER_CLOCK_READ == 0)
            stalled = stalled || monotonic_ns() - wait_start > STALL + LONG_CHUNKS * chunk;
    }
    if (stalled) alone_until = pass_start + pass_lost() * TOLERATED_LOSS;
}

#endif
