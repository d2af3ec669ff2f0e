// A leader publishes a stage at a time, in chunks that every member claims as it gets to them. Each begins with a share
// of neighbouring chunks, so that it reads memory in order, and then takes from the shares of others. A helper that
// comes late, or never, costs time but blocks nothing; only a chunk that is claimed must be waited for. Where that takes
// long, the helper has lost its core to other work; then the leader sleeps, and ends the pass alone. The time a leader is
// off its core, asleep or pushed off it, is what a team loses to a busy machine: where it is a good part of the time that
// passes take, the leader goes alone for a while and tries again later.
#include "team.h"

#include <stdint.h>

#ifdef _WIN32
#include <windows.h>

int64_t now() {
    LARGE_INTEGER ticks, a_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&a_second);
    return int64_t(double(ticks.QuadPart) * 1e9 / double(a_second.QuadPart));
}


// One thread: the pool is written for POSIX threads.
Team::Team(long) : members(1) {}
Team::~Team() {}
void Team::run(long chunks, void (*work)(void*, long), void* context) {
    for (long i = 0; i < chunks; i++) work(context, i);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static int64_t clock(clockid_t of) {
    timespec t;
    clock_gettime(of, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int64_t now() { return clock(CLOCK_MONOTONIC); }

namespace {

constexpr long MOST = 64;
constexpr int64_t MICROSECOND = 1000, MILLISECOND = 1000 * MICROSECOND;
// A helper without work looks for some this long before it sleeps.
constexpr int64_t LOOKS = 300 * MICROSECOND;
// No chunk takes this long on a core of its own; a lost core is lost for some milliseconds.
constexpr int64_t STALL = 400 * MICROSECOND;
// Losses are judged over this much time of passes, and are too many above one part in ENOUGH. A single loss, which
// every machine knows, is not.
constexpr int64_t WINDOW = 20 * MILLISECOND, ENOUGH = 4;
// How long the leader goes alone then; doubled each time it is so again.
constexpr int64_t SHORTEST = 50 * MILLISECOND, LONGEST = 1600 * MILLISECOND;
constexpr timespec NAP{0, 100 * MICROSECOND};
constexpr int LOOKS_A_CLOCK = 64;

// Time that the calling thread had a core.
int64_t worked() { return clock(CLOCK_THREAD_CPUTIME_ID); }

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

template <class T>
T load(const T& at) {
    return __atomic_load_n(&at, __ATOMIC_SEQ_CST);
}
template <class T>
void store(T& at, T value) {
    __atomic_store_n(&at, value, __ATOMIC_SEQ_CST);
}

// A member's share of the open stage: number of the stage above, chunks left below. The number keeps a member that
// was held up from claiming a chunk of a stage it no longer knows.
struct alignas(64) Ticket {
    uint64_t value;
};
constexpr uint64_t LEFT = 0xFFFFFFFF;

struct alignas(64) Bed {
    pthread_mutex_t mutex;
    pthread_cond_t woken;
    int asleep;
};

Ticket tickets[MOST];
Bed beds[MOST];
alignas(64) long done;
// The open stage; written before its tickets and read after a claim, which keeps it open.
alignas(64) long members, chunks;
void (*work)(void*, long);
void* context;
uint64_t stage;

// The process that a pass is open in, or 0.
alignas(64) pid_t taken;
long helpers;
// Whose helpers they are: a forked child has none of its parent's threads.
pid_t process;
int64_t alone_until, alone_for;
// Of the open pass, and of the passes of this window.
int64_t began, worked_before, passed, lost;

// Count a pass; where other work wants the cores, the leader goes alone for a while.
void judge() {
    int64_t t = now(), took = t - began;
    passed += took;
    lost += took - (worked() - worked_before);
    if (passed < WINDOW) return;
    if (lost * ENOUGH > passed) {
        alone_for = alone_for ? 2 * alone_for : SHORTEST;
        if (alone_for > LONGEST) alone_for = LONGEST;
        alone_until = t + alone_for;
    } else {
        alone_for = 0;
    }
    passed = lost = 0;
}

// A chunk of the open stage that is the caller's now, or -1.
long claim(long member) {
    long of = __atomic_load_n(&members, __ATOMIC_RELAXED);
    for (long k = 0; member < of && k < of; k++) {
        long owner = (member + k) % of;
        uint64_t ticket = load(tickets[owner].value);
        while (ticket & LEFT) {
            if (__atomic_compare_exchange_n(&tickets[owner].value, &ticket, ticket - 1, false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST))
                return chunks * (owner + 1) / members - long(ticket & LEFT);
        }
    }
    return -1;
}

bool open_to(long member) {
    long of = __atomic_load_n(&members, __ATOMIC_RELAXED);
    for (long owner = 0; member < of && owner < of; owner++)
        if (load(tickets[owner].value) & LEFT) return true;
    return false;
}

bool take(long member) {
    bool any = false;
    for (long i = claim(member); i >= 0; i = claim(member)) {
        work(context, i);
        __atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
        any = true;
    }
    return any;
}

void rest(long member) {
    Bed& bed = beds[member];
    store(bed.asleep, 1);
    // The leader opens a stage before it looks who sleeps, so one of the two sees the other.
    if (open_to(member)) {
        store(bed.asleep, 0);
        return;
    }
    pthread_mutex_lock(&bed.mutex);
    while (load(bed.asleep)) pthread_cond_wait(&bed.woken, &bed.mutex);
    pthread_mutex_unlock(&bed.mutex);
}

void wake(long member) {
    Bed& bed = beds[member];
    if (!load(bed.asleep)) return;
    pthread_mutex_lock(&bed.mutex);
    store(bed.asleep, 0);
    pthread_cond_signal(&bed.woken);
    pthread_mutex_unlock(&bed.mutex);
}

void* help(void* member) {
    for (;;) {
        int64_t since = now();
        for (int looks = 0; !take(long(member)); relax()) {
            if (++looks % LOOKS_A_CLOCK) continue;
            // The leader may wait for this very core.
            sched_yield();
            if (now() - since > LOOKS) {
                rest(long(member));
                break;
            }
        }
    }
    return nullptr;
}

// No pass and no helper yet.
void start() {
    for (long i = 0; i < MOST; i++) {
        tickets[i].value = 0;
        beds[i].asleep = 0;
        pthread_mutex_init(&beds[i].mutex, nullptr);
        pthread_cond_init(&beds[i].woken, nullptr);
    }
    helpers = 0;
    alone_until = alone_for = passed = lost = 0;
    process = getpid();
}

// Start helpers until there are `wanted`, or as many as the system allows. They leave signals to the program's threads.
void hire(long wanted) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_t options;
    pthread_attr_init(&options);
    pthread_attr_setdetachstate(&options, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&options, 512 << 10);
    for (pthread_t thread; helpers < wanted; helpers++)
        if (pthread_create(&thread, &options, help, reinterpret_cast<void*>(helpers + 1))) break;
    pthread_attr_destroy(&options);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace

Team::Team(long threads) : members(1) {
    if (threads <= 1) return;
    // A pass that was open when its process forked is none of the child's.
    int free = 0;
    while (!__atomic_compare_exchange_n(&taken, &free, getpid(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        if (free == getpid()) return;
    if (process != getpid()) start();
    if (threads > MOST) threads = MOST;
    if (helpers < threads - 1) hire(threads - 1);
    if (threads > helpers + 1) threads = helpers + 1;
    if (threads == 1 || now() < alone_until) {
        store(taken, pid_t(0));
        return;
    }
    members = threads;
    began = now();
    worked_before = worked();
}

Team::~Team() {
    if (members == 1) return;
    judge();
    store(taken, pid_t(0));
}

void Team::run(long count, void (*body)(void*, long), void* with) {
    ::chunks = count;
    ::work = body;
    ::context = with;
    __atomic_store_n(&::members, members, __ATOMIC_RELAXED);
    store(done, 0L);
    stage++;
    for (long i = 0; i < members; i++)
        store(tickets[i].value, stage << 32 | uint64_t(count * (i + 1) / members - count * i / members));
    for (long i = 1; i < members; i++) wake(i);
    take(0);
    if (load(done) == count) return;
    int64_t since = now();
    bool stalled = false;
    for (int looks = 0; load(done) < count; relax()) {
        // Asleep, the leader keeps its claim to a core.
        if (stalled) nanosleep(&NAP, nullptr);
        if (++looks % LOOKS_A_CLOCK == 0) stalled = stalled || now() - since > STALL;
    }
    if (!stalled) return;
    judge();
    members = 1;
    store(taken, pid_t(0));
}

#endif
